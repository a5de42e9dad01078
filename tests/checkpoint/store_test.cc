// The directory store: the conformance suite, through a decorator too, and what is its own.
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/conformance/store_conformance.h"
#include "tests/support/faulty_store.h"

namespace everstep::test {
namespace {

std::shared_ptr<Store> Directory(const std::string& place) { return MakeDirectoryStore(place, true).value(); }

INSTANTIATE_TEST_SUITE_P(Directory, StoreConformance, testing::Values(StoreKind{"Directory", Directory}));
INSTANTIATE_TEST_SUITE_P(Faulty, StoreConformance,
                         testing::Values(StoreKind{"Faulty", [](const std::string& place) {
                                                     return std::make_shared<FaultyStore>(Directory(place));
                                                   }}));

TEST(DirectoryStore, AFolderThatIsMissingOrAFileIsSaid) {
  TempDir dir;
  EXPECT_EQ(MakeDirectoryStore(dir / "no", false).status().code(), Code::kNotFound);
  ASSERT_TRUE(WriteFileDurably(dir / "file", "x").ok());
  EXPECT_EQ(MakeDirectoryStore(dir / "file", false).status().code(), Code::kInvalidArgument);
  EXPECT_TRUE(MakeDirectoryStore(dir / "deep/er", true).ok());
}

// A process that is killed in mid-write leaves a file that List does not name and RemoveLeftovers takes away.
TEST(DirectoryStore, TheLeftoversOfAKilledWriterGo) {
  TempDir dir;
  const auto store = Directory(dir.path());
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    auto writer = store->Create("a").value();
    const std::string text(1000, 'x');
    if (!writer->Append(std::as_bytes(std::span(text.data(), text.size()))).ok()) _exit(1);
    if (write(ready[1], "x", 1) != 1) _exit(1);
    while (true) pause();
  }
  char c = 0;
  ASSERT_EQ(read(ready[0], &c, 1), 1);
  EXPECT_EQ(store->RemoveLeftovers().value(), 0u) << "it still writes";
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_THAT(store->Unfinished().value(), testing::ElementsAre("a"));
  EXPECT_THAT(store->List().value(), testing::IsEmpty());
  EXPECT_EQ(store->RemoveLeftovers().value(), 1u);
  EXPECT_THAT(store->Unfinished().value(), testing::IsEmpty());
  close(ready[0]);
  close(ready[1]);
}

TEST(DirectoryStore, AFullDiskIsSaidAndLeavesNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a small tmpfs needs root";
  TempDir dir;
  if (mount("none", dir.path().c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "no tmpfs can be mounted here: " << strerror(errno);
  const auto store = Directory(dir.path());
  ASSERT_TRUE(WriteToStore(*store, "small", "fits").ok());
  const Status full = WriteToStore(*store, "large", std::string(2 << 20, 'x'));
  EXPECT_EQ(full.code(), Code::kResourceExhausted) << full.ToString();
  EXPECT_THAT(full.message(), testing::HasSubstr("No space left"));
  EXPECT_THAT(store->List().value(), testing::ElementsAre("small"));
  EXPECT_THAT(store->Unfinished().value(), testing::IsEmpty());
  EXPECT_EQ(ReadFromStore(*store, "small", 100).value(), "fits");
  umount(dir.path().c_str());
}

}  // namespace
}  // namespace everstep::test
