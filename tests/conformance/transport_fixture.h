// What the transport conformance suite is written with: the Backend under test, a recording handler, the helper
// process, and a fixture that holds both ends. Both ends of each case run on one loop, on the test's thread, through
// two contexts of their own, so that no case depends on scheduling; cases with a real second process use the helper
// program transport_peer.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/loop.h"
#include "base/random.h"
#include "tests/conformance/run_until.h"
#include "tests/support/seed.h"
#include "transport/registry.h"
#include "transport/transport.h"

extern char** environ;

namespace everstep::transport {

struct Backend {
  std::string scheme;
  std::function<std::string()> fresh_address;  // to listen on; never the same file or name twice
  bool across_processes = true;                // whether another process can connect
  std::string peer_program;                    // the path of transport_peer
  bool shared_memory = false;                  // whether processes of one host go around the network
  std::string name = scheme;                   // of the cases
};

inline std::ostream& operator<<(std::ostream& out, const Backend& backend) { return out << backend.name; }

// Bytes that say which frame they belong to and where in it they are.
inline Buffer Pattern(uint64_t seed, size_t size) {
  MutableBuffer bytes(size);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = Mix64(seed + i);
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, size - i));
  }
  return std::move(bytes).Freeze();
}

inline bool SameBytes(const Buffer& a, const Buffer& b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

inline Frame Text(std::string_view header, Buffer payload = {}) { return {Buffer::Copy(header), std::move(payload)}; }

// Set while the test is inside a call of the transport: a callback that sees it was made inline.
inline int& InCall() {
  static int depth = 0;
  return depth;
}
template <typename F>
auto Guarded(F&& call) {
  struct Scope {
    Scope() { ++InCall(); }
    ~Scope() { --InCall(); }
  } scope;
  return call();
}

class Recorder : public ConnectionHandler {
 public:
  void OnFrame(Connection& connection, Received received) override {
    EXPECT_EQ(InCall(), 0) << "OnFrame inside a call";
    EXPECT_FALSE(closed_ids.contains(connection.id())) << "OnFrame after OnClosed";
    bytes += received.payload.size();
    headers.emplace_back(received.header.text());
    if (keep_payloads) payloads.push_back(received.payload);
    if (hold_credits) credits.push_back(std::move(received.credit));
    if (on_frame) on_frame(connection, received);
  }
  void OnClosed(Connection& connection, const Status& status) override {
    EXPECT_EQ(InCall(), 0) << "OnClosed inside a call";
    EXPECT_TRUE(closed_ids.insert(connection.id()).second) << "OnClosed twice";
    ++closed;
    why = status;
    if (on_closed) on_closed(connection);
  }

  bool keep_payloads = false;
  bool hold_credits = false;
  std::function<void(Connection&, const Received&)> on_frame;
  std::function<void(Connection&)> on_closed;

  std::vector<std::string> headers;
  std::vector<Buffer> payloads;
  std::vector<Credit> credits;
  size_t bytes = 0;
  int closed = 0;
  std::set<uint64_t> closed_ids;
  Status why;
};

// A process that runs transport_peer; killed and waited for at the end.
class PeerProcess {
 public:
  PeerProcess(const std::string& program, std::vector<std::string> arguments) {
    int out[2];
    EXPECT_EQ(pipe(out), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    std::vector<char*> argv = {const_cast<char*>(program.c_str())};
    for (std::string& argument : arguments) argv.push_back(argument.data());
    argv.push_back(nullptr);
    EXPECT_EQ(posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv.data(), environ), 0) << program;
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    out_ = fdopen(out[0], "r");
  }
  ~PeerProcess() {
    Kill();
    fclose(out_);
  }
  std::string ReadLine() {
    char line[512] = "";
    if (fgets(line, sizeof line, out_) == nullptr) return "";
    std::string text(line);
    while (!text.empty() && text.back() == '\n') text.pop_back();
    return text;
  }
  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  FILE* out_ = nullptr;
};

class TransportConformance : public testing::TestWithParam<Backend> {
 protected:
  static constexpr Duration kPatience = test::kPatience;
  static constexpr Duration kDeadline = std::chrono::seconds(10);

  TransportConformance() : server_(NewContext(loop_)), client_(NewContext(loop_)) {}

  static std::unique_ptr<Context> NewContext(Loop& loop) { return MakeContext(loop, {GetParam().shared_memory}); }
  static std::vector<std::string> PeerArguments(const std::string& what, const std::string& address) {
    return {what, address, GetParam().shared_memory ? "shared" : "apart"};
  }

  bool RunUntil(const std::function<bool()>& done, Duration patience = kPatience) {
    return test::RunUntil(loop_, done, patience);
  }
  // For "nothing (more) happens": a bounded look, never a way to wait for something.
  void RunFor(Duration time) {
    RunUntil([] { return false; }, time);
  }

  // A listener whose connections all go to `server_side_`, kept in `accepted_`.
  void Listen() {
    Result<std::unique_ptr<Listener>> made =
        Guarded([&] { return server_->Listen(GetParam().fresh_address(), Accepting()); });
    ASSERT_TRUE(made.ok()) << made.status().ToString();
    listener_ = std::move(made).value();
  }
  OnAccept Accepting() {
    return [this](std::shared_ptr<Connection> connection) -> ConnectionHandler* {
      EXPECT_EQ(InCall(), 0) << "OnAccept inside a call";
      accepted_.push_back(std::move(connection));
      return &server_side_;
    };
  }
  std::shared_ptr<Connection> Connect(ConnectionHandler* handler) {
    auto made = Guarded([&] { return client_->Connect(listener_->address(), handler, kDeadline); });
    EXPECT_TRUE(made.ok()) << made.status().ToString();
    return made.ok() ? *made : nullptr;
  }
  // Both ends of one connection, ready to use.
  void ListenAndConnect() {
    ASSERT_NO_FATAL_FAILURE(Listen());
    connection_ = Connect(&client_side_);
    ASSERT_NE(connection_, nullptr);
    ASSERT_TRUE(RunUntil([&] { return accepted_.size() == 1; }));
  }
  static Status Send(Connection& connection, Frame frame) {
    return Guarded([&] { return connection.Send(std::move(frame)); });
  }

  Loop loop_;
  Recorder server_side_;
  Recorder client_side_;
  std::unique_ptr<Context> server_;
  std::unique_ptr<Context> client_;
  std::unique_ptr<Listener> listener_;
  std::vector<std::shared_ptr<Connection>> accepted_;
  std::shared_ptr<Connection> connection_;
};

}  // namespace everstep::transport
