#include "tests/support/hostile.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>

#include "tests/support/probe.h"

namespace everstep::test {
namespace {

// A socket connected to the address, -1 when it does not take it.
int ConnectRaw(const std::string& address) {
  if (address.starts_with("ipc://")) {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    std::strncpy(name.sun_path, address.c_str() + 6, sizeof name.sun_path - 1);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0) return fd;
    close(fd);
    return -1;
  }
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_port = htons(static_cast<uint16_t>(std::stoul(address.substr(address.rfind(':') + 1))));
  name.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&name), sizeof name) == 0) return fd;
  close(fd);
  return -1;
}

std::string RandomBytes(Random& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& b : bytes) b = static_cast<char>(random.Next());
  return bytes;
}

// ZMTP 3.0's greeting (RFC 23) with the NULL mechanism, and a READY command of a DEALER.
std::string Greeting() {
  std::string greeting("\xff\0\0\0\0\0\0\0\1\x7f\3\0NULL", 16);
  greeting.resize(64, '\0');
  return greeting;
}
std::string ReadyCommand() {
  const std::string body = std::string("\5READY\13Socket-Type\0\0\0\6DEALER", 28);
  return std::string("\4", 1) + static_cast<char>(body.size()) + body;
}

// One message's worth of rubbish, of a kind that `random` picks.
std::string Rubbish(Random& random) {
  switch (random.Below(6)) {
    case 0: return RandomBytes(random, 1 + random.Below(2000));
    case 1: return Greeting().substr(0, random.Below(64));
    case 2: return Greeting() + RandomBytes(random, 500);
    case 3: return Greeting() + ReadyCommand() + RandomBytes(random, 1 + random.Below(3000));
    // A long frame that claims to be enormous.
    case 4:
      return Greeting() + ReadyCommand() + std::string("\2\x7f\xff\xff\xff\xff\xff\xff\xff", 9) +
             RandomBytes(random, 100);
    default: {
      // A short frame of the transport's own prelude, with a random kind.
      std::string head = "EVT\1" + RandomBytes(random, 1) + std::string(3, '\0') + RandomBytes(random, 8);
      return Greeting() + ReadyCommand() + std::string("\0", 1) + static_cast<char>(head.size()) + head;
    }
  }
}

}  // namespace

Status SendRubbish(const std::string& address, Random& random, int connections) {
  std::vector<int> open;
  int refused = 0;
  for (int i = 0; i < connections; ++i) {
    const int fd = ConnectRaw(address);
    if (fd < 0) {
      ++refused;
      continue;
    }
    const std::string bytes = Rubbish(random);
    (void)!send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (random.Chance(0.3)) {
      open.push_back(fd);  // says no more and does not go
    } else {
      close(fd);
    }
  }
  for (int fd : open) close(fd);
  if (refused == connections) return {Code::kUnavailable, address + " takes no connections"};
  return Status::Ok();
}

void SendDamagedMessages(const std::string& address, Random& random, int messages) {
  for (int i = 0; i < messages; ++i) {
    Probe probe(address);
    const Buffer real =
        Encode({{random.Next()}, {random.Below(9)}, ForgeBody(random.Below(std::variant_size_v<Body>), random)});
    std::string bytes(real.text());
    switch (random.Below(3)) {
      case 0: bytes = RandomBytes(random, 1 + random.Below(300)); break;
      case 1: bytes.resize(1 + random.Below(bytes.size())); break;
      default:
        for (int flips = 0; flips < 8; ++flips)
          bytes[random.Below(bytes.size())] ^= static_cast<char>(1u << random.Below(8));
    }
    probe.SendBytes(Buffer::Copy(bytes), Buffer::Copy(RandomBytes(random, random.Below(100))));
    (void)probe.Receive(std::chrono::milliseconds(5));
  }
}

void SendForgedMessages(const std::string& address, JobUid job, Random& random, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    Probe probe(address);
    for (size_t kind = 0; kind < std::variant_size_v<Body>; ++kind) {
      const Buffer payload = random.Chance(0.5) ? Buffer::Copy(RandomBytes(random, random.Below(5000))) : Buffer();
      probe.Send({random.Chance(0.9) ? job : JobUid{random.Next()}, {random.Below(4)}, ForgeBody(kind, random)},
                 payload);
    }
    (void)probe.Receive(std::chrono::milliseconds(20));
  }
}

// ---- Forging ----

namespace {

Lease ForgeLease(Random& random) {
  Lease lease{{random.Next()}, random.Below(3), {}};
  for (uint64_t at = random.Below(50); lease.ranges.size() < random.Below(4);) {
    const uint64_t end = at + 1 + random.Below(1000);
    lease.ranges.push_back({at, end});
    at = end + 1;
  }
  return lease;
}

Contribution ForgeContribution(Random& random) {
  return {{random.Next() | 1}, {random.Below(50)}, {random.Next()}, ForgeLease(random)};
}

Seal ForgeSeal(Random& random) {
  Seal seal;
  seal.id = {{random.Below(4)}, {random.Below(50)}};
  seal.contributors = {ForgeContribution(random)};
  seal.weights = {random.Uniform()};
  seal.previous = {random.Next()};
  seal.digest = random.Chance(0.5) ? SealDigest(seal) : Digest{random.Next()};
  return seal;
}

ParameterSpec ForgeSpec(Random& random) {
  ParameterSpec spec;
  for (uint64_t i = 0; i < random.Below(4); ++i) {
    spec.tensors.push_back({"t" + std::to_string(i), {random.Between(-1, 100)}, DType::kFloat32, Role::kTrainable});
  }
  return spec;
}

ShardMap ForgeMap(Random& random) {
  ShardMap map;
  map.ballot = {random.Below(1000)};
  map.spec_hash = random.Next();
  map.chunk_bytes = 64 * random.Below(100);
  map.servers = {{{static_cast<uint32_t>(random.Below(3))}, {random.Next()}, "tcp://127.0.0.1:1"}};
  return map;
}

Hello ForgeHello(Random& random) {
  Hello hello;
  // A forged worker with the job's own model would be a worker; this one never has it.
  hello.role = static_cast<PeerRole>(random.Below(3));
  hello.name = "stranger";
  hello.worker = {random.Next()};
  hello.incarnation = {random.Next()};
  hello.address = "tcp://127.0.0.1:1";
  hello.spec = ForgeSpec(random);
  hello.dataset_size = random.Next();
  return hello;
}

}  // namespace

Body ForgeBody(size_t kind, Random& random) {
  const WorkerId worker{random.Next() | 1};
  const ServerId server{static_cast<uint32_t>(random.Below(3))};
  const Version version{random.Below(60)};
  const ChunkId chunk{static_cast<uint32_t>(random.Below(5))};
  const std::string text(random.Below(200), 'x');
  const SealId seal{{random.Below(4)}, {random.Below(50)}};
  const Code code = static_cast<Code>(1 + random.Below(20));
  const Body bodies[] = {
      ForgeHello(random),
      Welcome{JobSpec{}, server, version, ForgeMap(random)},
      Refused{code, text},
      MapUpdate{ForgeMap(random)},
      Ready{worker, version, {random.Next()}},
      Grant{worker, random.Next(), version, ForgeLease(random)},
      Heartbeat{random.Chance(0.2) ? WorkerId{} : worker, Phase::kComputing, random.Next(), random.Next()},
      HeartbeatAck{},
      Report{worker, version, {random.Next()}, random.Chance(0.5), {{"loss", random.Uniform()}}},
      Fenced{worker, text},
      Leave{worker, text},
      LeaveAck{},
      Finish{version, true},
      JobFailed{code, text},
      Push{ForgeContribution(random), chunk},
      PushRefused{ForgeContribution(random), chunk, code, version, text},
      Pull{worker, version, random.Chance(0.5), {chunk}, ForgeContribution(random)},
      Missing{ForgeContribution(random), {chunk}},
      ChunkData{version, {random.Next()}, chunk},
      PullRefused{code, version, text},
      WrongShard{ForgeMap(random)},
      Promise{ForgeMap(random), ForgeSpec(random), RestoreFrom{text, ForgeSeal(random), 1}},
      Promised{
          server, {random.Next()}, version, {random.Next()}, ForgeSeal(random), 1, ForgeSeal(random), {{chunk, 1}}, {}},
      Staged{server, ForgeContribution(random)},
      SealStep{ForgeSeal(random), random.Chance(0.5)},
      Prepared{server, {random.Next()}, seal, {random.Next()}, {{chunk, 1}}},
      NonFinite{server, seal, {worker}},
      Commit{seal, {random.Next()}, random.Uniform()},
      Applied{server, {random.Next()}, seal, {random.Next()}, 1, {{chunk, random.Next()}}},
      StaleBallot{server, {random.Next()}, version},
      StatusRequest{},
      StatusReply{"{" + text},
      Snapshot{version, {random.Next()}, text},
      SnapshotDone{server, text, "../" + text, random.Next(), random.Next(), {chunk}, {text.substr(0, 20)}, code, text},
      ReplicateSum{server, {random.Next()}, seal, {random.Next()}, chunk, 1},
      WantSums{server, {random.Next()}, seal, {random.Next()}, {chunk, chunk}},
      ReceiveChunks{
          {server, {random.Next()}, "tcp://127.0.0.1:1"}, version, {random.Next()}, {chunk}, 64, ForgeSpec(random)},
      WantChunks{seal.ballot, version, {random.Next()}, {chunk, chunk}},
      History{version, {random.Next()}, ForgeSeal(random), 1, {{version, {random.Next()}}}, {}},
      ChunkState{version, {random.Next()}, chunk, {text.substr(0, 20)}},
      Copied{server, {random.Next()}, seal.ballot, version, {chunk}},
      Drained{},
      NotCoordinator{"tcp://127.0.0.1:1"},
      ControlRequest{random.Chance(0.5) ? "drain" : text, "nobody"},
      ControlReply{code, text},
  };
  static_assert(std::size(bodies) == std::variant_size_v<Body>, "one of each kind");
  return bodies[kind];
}

}  // namespace everstep::test
