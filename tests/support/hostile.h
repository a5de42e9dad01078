// What strangers may do to a port: bytes that are no protocol, the transport's protocol broken half-way, messages that
// decode to nothing, and well-formed messages with forged contents. Nothing here waits for an answer that need not
// come. Everything is drawn from `random`, so that a seed replays it. One thread.
#pragma once

#include <string>

#include "base/random.h"
#include "base/status.h"
#include "schema/messages.h"

namespace everstep::test {

// Raw connections to tcp://HOST:PORT or ipc://PATH: random bytes, a broken greeting, a good greeting and rubbish after
// it, huge lengths, half-open connections. kUnavailable when the port does not take them.
Status SendRubbish(const std::string& address, Random& random, int connections);

// Frames of the real transport that are no messages: random headers, real messages cut short or with bytes flipped.
void SendDamagedMessages(const std::string& address, Random& random, int messages);

// Well-formed messages of every kind, with random contents, for a job whose uid is right.
void SendForgedMessages(const std::string& address, JobUid job, Random& random, int rounds);

// One of them: `kind` is an index into Body.
Body ForgeBody(size_t kind, Random& random);

}  // namespace everstep::test
