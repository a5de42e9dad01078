#include "base/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "tests/support/temp_dir.h"

namespace everstep {
namespace {

using test::TempDir;

size_t FilesIn(const std::string& folder) {
  const std::filesystem::directory_iterator files(folder);
  return static_cast<size_t>(std::distance(begin(files), end(files)));
}

void ExpectNames(const Status& status, const std::string& path) {
  EXPECT_NE(status.message().find(path), std::string::npos) << status.ToString() << " does not name " << path;
}

TEST(File, WhatWasWrittenIsRead) {
  TempDir dir;
  const std::string path = dir / "record";
  for (const std::string& contents :
       {std::string("first"), std::string(300000, 'x') + std::string("\0end", 4), std::string()}) {
    ASSERT_TRUE(WriteFileDurably(path, contents).ok());
    EXPECT_EQ(*ReadFile(path), contents);
  }
  EXPECT_EQ(FilesIn(dir.path()), 1u);  // no temporary names stay
  EXPECT_TRUE(FileExists(path));
}

TEST(File, WhatIsWrittenBelongsToItsUserAlone) {
  TempDir dir;
  ASSERT_TRUE(CreateFolders(dir / "a/b").ok());
  ASSERT_TRUE(WriteFileDurably(dir / "a/b/secret", "key").ok());
  struct stat info {};
  ASSERT_EQ(stat((dir / "a/b/secret").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  ASSERT_EQ(stat((dir / "a/b").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0700u);
}

TEST(File, ErrorsNameThePath) {
  TempDir dir;
  const Status missing = ReadFile(dir / "missing").status();
  EXPECT_EQ(missing.code(), Code::kNotFound);
  ExpectNames(missing, dir / "missing");
  const Status nowhere = WriteFileDurably(dir / "no/such/folder", "x");
  EXPECT_EQ(nowhere.code(), Code::kNotFound);
  ExpectNames(nowhere, dir / "no/such/folder");
  ASSERT_TRUE(WriteFileDurably(dir / "file", "x").ok());
  ExpectNames(CreateFolders(dir / "file/below"), dir / "file/below");
  ExpectNames(FileLock::Acquire(dir / "no/lock", false).status(), dir / "no/lock");
}

TEST(File, AWriteThatCannotReplaceLeavesNothingBehind) {
  TempDir dir;
  ASSERT_TRUE(CreateFolders(dir / "target").ok());  // a folder cannot be replaced by a file
  const Status failed = WriteFileDurably(dir / "target", "x");
  EXPECT_FALSE(failed.ok());
  ExpectNames(failed, dir / "target");
  EXPECT_EQ(FilesIn(dir.path()), 1u);
}

// Runs in a process of its own: the limit stands for a disk that fills up half-way through the write.
[[noreturn]] void WriteBeyondTheLimit(const std::string& folder) {
  signal(SIGXFSZ, SIG_IGN);
  const rlimit limit{1000, 1000};
  setrlimit(RLIMIT_FSIZE, &limit);
  const Status failed = WriteFileDurably(folder + "/record", std::string(100000, 'n'));
  std::fprintf(stderr, "%s\n", failed.ToString().c_str());
  _exit(failed.ok() ? 1 : 0);
}

TEST(FileDeathTest, Case29_AWriteThatFailsHalfWayKeepsTheOldContents) {
  const char* given = getenv("EVERSTEP_FILE_TEST_DIR");  // the child of a "threadsafe" death test runs this body again
  TempDir dir;
  const std::string folder = given != nullptr ? given : dir.path();
  if (given == nullptr) {
    ASSERT_TRUE(WriteFileDurably(folder + "/record", "old").ok());
    setenv("EVERSTEP_FILE_TEST_DIR", folder.c_str(), 1);
  }
  EXPECT_EXIT(WriteBeyondTheLimit(folder), testing::ExitedWithCode(0), "cannot write .*/record");
  unsetenv("EVERSTEP_FILE_TEST_DIR");
  EXPECT_EQ(*ReadFile(folder + "/record"), "old");
  EXPECT_EQ(FilesIn(folder), 1u);
}

// A child process that takes the lock, says so, and keeps it until it is told to end.
class LockHolder {
 public:
  explicit LockHolder(const std::string& path) {
    EXPECT_EQ(pipe(say_), 0);
    EXPECT_EQ(pipe(end_), 0);
    child_ = fork();
    if (child_ == 0) {
      const Result<FileLock> lock = FileLock::Acquire(path, true);
      char word = lock.ok() ? 'y' : 'n';
      close(end_[1]);
      if (write(say_[1], &word, 1) != 1 || read(end_[0], &word, 1) != 0) _exit(1);
      _exit(0);
    }
    close(say_[1]);
    close(end_[0]);
    char word = 0;
    EXPECT_EQ(read(say_[0], &word, 1), 1);
    EXPECT_EQ(word, 'y');
  }
  ~LockHolder() {
    if (child_ > 0) End();
    close(say_[0]);
  }
  void End() {
    close(end_[1]);
    int status = 0;
    EXPECT_EQ(waitpid(child_, &status, 0), child_);
    EXPECT_EQ(status, 0);
    child_ = -1;
  }

 private:
  int say_[2] = {-1, -1};
  int end_[2] = {-1, -1};
  pid_t child_ = -1;
};

TEST(FileLock, KeepsOtherProcessesOutUntilItsProcessEnds) {
  TempDir dir;
  const std::string path = dir / "lock";
  LockHolder holder(path);
  const Result<FileLock> refused = FileLock::Acquire(path, false);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kUnavailable);
  ExpectNames(refused.status(), path);
  holder.End();  // without unlocking
  EXPECT_TRUE(FileLock::Acquire(path, false).ok());
}

TEST(FileLock, IsHeldForAsLongAsItsObjectLives) {
  TempDir dir;
  const std::string path = dir / "lock";
  {
    Result<FileLock> lock = FileLock::Acquire(path, false);
    ASSERT_TRUE(lock.ok());
    const FileLock moved = std::move(lock).value();
    EXPECT_FALSE(FileLock::Acquire(path, false).ok());
  }
  EXPECT_TRUE(FileLock::Acquire(path, true).ok());
}

}  // namespace
}  // namespace everstep
