// The shared-memory backend against peers that know its socket and not its manners, and what becomes of memory that
// somebody still reads.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <thread>

#include "tests/conformance/run_until.h"
#include "transport/local_host.h"
#include "transport/shared_memory.h"
#include "transport/shm/factory.h"
#include "transport/shm/shm_orphans.h"
#include "transport/shm/shm_wire.h"

namespace everstep::transport::shm {
namespace {

using testing::HasSubstr;

class Listening : public ConnectionHandler {
 public:
  void OnFrame(Connection&, Received received) override {
    ++frames;
    if (keep) payloads.push_back(std::move(received.payload));
  }
  void OnClosed(Connection&, const Status& status) override {
    ++closed;
    why = status;
  }
  bool keep = false;
  int frames = 0;
  int closed = 0;
  Status why;
  std::vector<Buffer> payloads;
};

// A peer that writes what it likes.
class Stranger {
 public:
  explicit Stranger(const std::string& address) : fd_(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_un remote = {};
    remote.sun_family = AF_UNIX;
    const std::string path = std::string(1, '\0') + "everstep/shm/" + address.substr(std::strlen("shm://"));
    std::memcpy(remote.sun_path, path.data(), path.size());
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&remote),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size())),
              0);
  }
  ~Stranger() { close(fd_); }
  void Write(const void* data, size_t size) {
    EXPECT_EQ(send(fd_, data, size, MSG_NOSIGNAL), static_cast<ssize_t>(size));
  }
  void Put(const Record& record, const std::string& text = "") {
    Write(&record, sizeof record);
    if (!text.empty()) Write(text.data(), text.size());
  }
  void PutWithDescriptor(const Record& record, int fd) {
    iovec iov{const_cast<Record*>(&record), sizeof record};
    msghdr message = {};
    message.msg_iov = &iov;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &fd, sizeof fd);
    EXPECT_GT(sendmsg(fd_, &message, MSG_NOSIGNAL), 0);
  }
  void ShakeHands() { Put({Kind::kHello, 0, kMagic, kVersion, 1 << 20}); }

 private:
  const int fd_;
};

class ShmStrangers : public testing::Test {
 protected:
  ShmStrangers() {
    listener_ = server_->Listen("shm://*", [this](auto) { return &handler_; }).value();
  }
  bool RunUntil(const std::function<bool()>& done) { return test::RunUntil(loop_, done, test::kPatience); }
  // Whatever the stranger does after its hello ends its connection and nothing else.
  void ExpectBroken(const std::function<void(Stranger&)>& act, const std::string& reason) {
    SCOPED_TRACE(reason);
    handler_.closed = 0;
    Stranger stranger(listener_->address());
    stranger.ShakeHands();
    act(stranger);
    ASSERT_TRUE(RunUntil([&] { return handler_.closed == 1; }));
    EXPECT_EQ(handler_.why.code(), Code::kCorrupt) << handler_.why.ToString();
    EXPECT_THAT(handler_.why.message(), HasSubstr(reason));
  }

  Loop loop_;
  Listening handler_;
  std::unique_ptr<Context> server_ =
      MakeContext(loop_, {.window_bytes = 64 << 10, .handshake_deadline = std::chrono::milliseconds(200)});
  std::unique_ptr<Listener> listener_;
};

int Memory(size_t bytes, int seals) {
  const int fd = memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  EXPECT_EQ(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  if (seals != 0) {
    EXPECT_EQ(fcntl(fd, F_ADD_SEALS, seals), 0);
  }
  return fd;
}

TEST_F(ShmStrangers, ThatSayNothingOrNonsenseAreGivenUp) {
  Stranger silent(listener_->address());
  Stranger rude(listener_->address());
  const std::string text(500, 'x');
  rude.Write(text.data(), text.size());
  Stranger old(listener_->address());
  old.Put({Kind::kHello, 0, kMagic, kVersion + 1, 1 << 20});
  ASSERT_TRUE(RunUntil([&] { return server_->counters().failed_handshakes == 3; }));
  Listening other;
  auto fine = server_->Connect(listener_->address(), &other, std::chrono::seconds(5)).value();
  ASSERT_TRUE(fine->Send({Buffer::Copy("hello"), {}}).ok());
  ASSERT_TRUE(RunUntil([&] { return handler_.frames == 1; }));
  EXPECT_EQ(handler_.closed, 0);
}

TEST_F(ShmStrangers, ThatBreakTheProtocolLoseTheirConnection) {
  const std::string page(4096, 'p');
  ExpectBroken([](Stranger& s) { s.Put({static_cast<Kind>(99), 0, 0, 0, 0}); }, "unknown kind");
  ExpectBroken([](Stranger& s) { s.Put({Kind::kInline, 0, 10, 0, 0}); }, "impossible size");
  ExpectBroken([](Stranger& s) { s.Put({Kind::kInline, 1, limits::kMaxPayloadBytes + 1, 0, 0}); }, "over its limit");
  ExpectBroken([](Stranger& s) { s.Put({Kind::kCredit, 0, 1, 0, 0}); }, "returned credit");
  ExpectBroken([](Stranger& s) { s.ShakeHands(); }, "shook hands twice");
  ExpectBroken([](Stranger& s) { s.Put({Kind::kRelease, 8, 0, 0, 0}, std::string(8, '\0')); }, "released a payload");
  ExpectBroken([](Stranger& s) { s.Put({Kind::kRelease, 7, 0, 0, 0}, "1234567"); }, "strange number");
  ExpectBroken([](Stranger& s) { s.Put({Kind::kShared, 1, 7, 0, 64}, "h"); }, "never offered");
  ExpectBroken([](Stranger& s) { s.Put({Kind::kSegment, 0, 1, 4096, 0}); }, "without its descriptor");
  ExpectBroken(
      [&](Stranger& s) {
        for (int i = 0; i < 20; ++i) s.Put({Kind::kInline, 1, page.size(), 0, 0}, "h" + page);
      },
      "more than its credit");
}

TEST_F(ShmStrangers, CannotOfferMemoryThatWouldFailUnderItsReader) {
  handler_.keep = true;
  const int fine = Memory(8192, F_SEAL_SHRINK);
  const int shrinks = Memory(8192, 0);
  const int small = Memory(100, F_SEAL_SHRINK);
  const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
  ExpectBroken([&](Stranger& s) { s.PutWithDescriptor({Kind::kSegment, 0, 1, 8192, 0}, shrinks); }, "could shrink");
  ExpectBroken([&](Stranger& s) { s.PutWithDescriptor({Kind::kSegment, 0, 1, 4096, 0}, file); }, "could shrink");
  ExpectBroken([&](Stranger& s) { s.PutWithDescriptor({Kind::kSegment, 0, 1, 4096, 0}, small); }, "smaller");
  for (const auto& [offset, bytes] :
       std::vector<std::pair<uint64_t, uint64_t>>{{8192, 8}, {8000, 193}, {~uint64_t{0} - 7, 8}, {4, 8}}) {
    ExpectBroken(
        [&](Stranger& s) {
          s.PutWithDescriptor({Kind::kSegment, 0, 1, 8192, 0}, fine);
          s.Put({Kind::kShared, 1, 1, offset, bytes}, "h");
        },
        "never offered");
  }
  // What a fine one offers stays readable when it is gone.
  {
    Stranger s(listener_->address());
    s.ShakeHands();
    ASSERT_EQ(pwrite(fine, "content", 7, 4096), 7);
    s.PutWithDescriptor({Kind::kSegment, 0, 1, 8192, 0}, fine);
    s.Put({Kind::kShared, 1, 1, 4096, 4096}, "h");
    ASSERT_TRUE(RunUntil([&] { return !handler_.payloads.empty(); }));
  }
  for (int fd : {fine, shrinks, small, file}) close(fd);
  ASSERT_TRUE(RunUntil([&] { return handler_.closed == 2 || handler_.why.code() == Code::kUnavailable; }));
  EXPECT_EQ(handler_.payloads[0].text().substr(0, 7), "content");
}

// ---- Memory that is read ----

class ShmMemory : public ShmStrangers {
 protected:
  ShmMemory() : client_(MakeContext(loop_, {})) {
    connection_ = client_->Connect(listener_->address(), &client_handler_, std::chrono::seconds(5)).value();
    handler_.keep = true;
  }
  // Sends a page of shared memory filled with `fill`, and lets it go.
  void SendPage(char fill) {
    MutableBuffer page = pool_.Take(8192);
    std::memset(page.data(), fill, page.size());
    ASSERT_TRUE(connection_->Send({Buffer::Copy("h"), std::move(page).Freeze()}).ok());
    const int before = handler_.frames;
    ASSERT_TRUE(RunUntil([&] { return handler_.frames == before + 1; }));
  }
  bool Idle(size_t bytes) {
    return RunUntil([&] { return pool_.idle_bytes() == bytes; });
  }

  BufferPool pool_{1 << 20, SharedAllocator()};
  Listening client_handler_;
  std::unique_ptr<Context> client_;
  std::shared_ptr<Connection> connection_;
};

TEST_F(ShmMemory, IsReadInPlaceAndComesBackWhenNobodyReadsIt) {
  SendPage('a');
  EXPECT_EQ(pool_.idle_bytes(), 0u) << "still read";
  EXPECT_EQ(handler_.payloads[0].text(), std::string(8192, 'a'));
  Buffer part = handler_.payloads[0].Slice(8, 8);
  handler_.payloads.clear();
  SendPage('b');  // elsewhere
  EXPECT_EQ(part.text(), "aaaaaaaa");
  part = {};
  ASSERT_TRUE(Idle(8192));
  handler_.payloads.clear();
  ASSERT_TRUE(Idle(2 * 8192));
  SendPage('c');
  EXPECT_EQ(pool_.idle_bytes(), 8192u) << "reused, not fresh";
}

TEST_F(ShmMemory, IsNotWrittenAgainWhileItIsReadAlthoughTheConnectionIsOver) {
  SendPage('a');
  connection_->Close();
  ASSERT_TRUE(RunUntil([&] { return handler_.closed == 1; }));
  MutableBuffer other = pool_.Take(8192);
  std::memset(other.data(), 'z', other.size());
  EXPECT_EQ(handler_.payloads[0].text(), std::string(8192, 'a'));
  handler_.payloads.clear();
  ASSERT_TRUE(Idle(8192)) << "the other end's word still arrives";
}

TEST_F(ShmMemory, IsCopiedWhenItLiesElsewhere) {
  std::string text(100'000, 'q');
  ASSERT_TRUE(connection_->Send({Buffer::Copy("h"), Buffer(nullptr, text.data(), text.size())}).ok());
  ASSERT_TRUE(RunUntil([&] { return handler_.frames == 1; }));
  text.assign(text.size(), '!');
  EXPECT_EQ(handler_.payloads[0].text(), std::string(100'000, 'q'));
}

TEST(ShmOrphans, AreKeptAsLongAsTheirReaderLives) {
  BufferPool pool(1 << 20, SharedAllocator());
  const pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  const size_t others = SweepOrphans();  // of the cases before, whose reader is this process
  std::vector<Buffer> payloads;
  payloads.push_back(pool.Take(8192).Freeze());
  KeepUntilDead(child, std::move(payloads));
  EXPECT_EQ(SweepOrphans(), others + 1);
  EXPECT_EQ(pool.idle_bytes(), 0u);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_EQ(SweepOrphans(), others);
  EXPECT_EQ(pool.idle_bytes(), 8192u);
}

TEST(SharedMemory, HasNoNameAndKnowsItsOwn) {
  const auto before = std::distance(std::filesystem::directory_iterator("/dev/shm"), {});
  BufferPool pool(0, SharedAllocator());
  const MutableBuffer small = pool.Take(100), large = pool.Take(20 << 20);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator("/dev/shm"), {}), before);
  EXPECT_TRUE(FindShared({small.data(), 100}));
  EXPECT_TRUE(FindShared({large.data() + 1000, 4096}));
  EXPECT_FALSE(FindShared({large.data() + (20 << 20) - 8, 4096}));
  const MutableBuffer heap(4096);
  EXPECT_FALSE(FindShared({heap.data(), 4096}));
}

TEST(SharedNames, LeadToThisHostOnly) {
  EXPECT_THAT(SharedNamesFor("127.0.0.1:70"), testing::Contains(SharedNameOf("127.0.0.1:70")));
  EXPECT_THAT(SharedNamesFor("127.0.0.1:70"), testing::Contains(SharedNameOf("*:70")));
  EXPECT_THAT(SharedNamesFor("localhost:70"), testing::Contains(SharedNameOf("127.0.0.1:70")));
  EXPECT_THAT(SharedNamesFor("[::1]:70"), testing::Contains(SharedNameOf("[::1]:70")));
  EXPECT_THAT(SharedNamesFor("203.0.113.7:70"), testing::IsEmpty());
  EXPECT_THAT(SharedNamesFor("ps0.example.org:70"), testing::IsEmpty());
  EXPECT_THAT(SharedNamesFor("nonsense"), testing::IsEmpty());
}

}  // namespace
}  // namespace everstep::transport::shm
