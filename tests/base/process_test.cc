#include "base/process.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "base/file.h"
#include "tests/support/temp_dir.h"

namespace everstep {
namespace {

using std::chrono::seconds;

Process Shell(const std::string& script, const Process::Options& options = {}) {
  return Process::Start({"sh", "-c", script}, options).value();
}

bool Alive(pid_t pid) { return kill(pid, 0) == 0; }

// Waits for a child that tells us something by making a file.
std::string WaitForText(const std::string& path) {
  for (const Time deadline = SteadyNow() + seconds(20); SteadyNow() < deadline; usleep(1000)) {
    if (Result<std::string> text = ReadFile(path); text.ok() && !text->empty() && text->back() == '\n') return *text;
  }
  ADD_FAILURE() << path << " never came";
  return "";
}

// One that is not our child leaves the process table when its adopter reaps it, some time after its death.
bool GoneSoon(pid_t pid) {
  for (const Time deadline = SteadyNow() + seconds(20); SteadyNow() < deadline; usleep(1000)) {
    const Result<std::string> stat = ReadFile("/proc/" + std::to_string(pid) + "/stat");
    if (!stat.ok() || stat->find(") Z ") != std::string::npos) return true;
  }
  return false;
}

TEST(ProcessTest, TellsTheExitCode) {
  Process child = Shell("exit 3");
  EXPECT_EQ(child.Wait(seconds(20)).value(), (Process::Exit{3, 0}));
  EXPECT_EQ(child.Poll()->ToString(), "exit 3");
  EXPECT_EQ(child.Signal(SIGTERM).code(), Code::kUnavailable);
}

TEST(ProcessTest, TellsTheSignalThatEndedIt) {
  Process child = Shell("sleep 100");
  EXPECT_FALSE(child.Poll().has_value());
  ASSERT_TRUE(child.Signal(SIGKILL).ok());
  EXPECT_EQ(child.Wait(seconds(20)).value(), (Process::Exit{0, SIGKILL}));
}

TEST(ProcessTest, WaitGivesUpAtItsDeadlineAndNamesWhoIsLate) {
  Process child = Shell("sleep 100");
  const Time before = SteadyNow();
  const Result<Process::Exit> exit = child.Wait(std::chrono::milliseconds(50));
  EXPECT_EQ(exit.status().code(), Code::kDeadlineExceeded);
  EXPECT_NE(exit.status().message().find(std::to_string(child.pid())), std::string::npos);
  EXPECT_GE(SteadyNow() - before, std::chrono::milliseconds(50));
}

TEST(ProcessTest, AStoppedChildCountsAsRunningAndCanBeKilled) {
  Process child = Shell("sleep 100");
  ASSERT_TRUE(child.Signal(SIGSTOP).ok());
  EXPECT_EQ(child.Wait(std::chrono::milliseconds(20)).status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(child.Kill(), (Process::Exit{0, SIGKILL}));
}

TEST(ProcessTest, AProgramThatDoesNotExistIsSaidSo) {
  EXPECT_EQ(Process::Start({"no-such-program-of-everstep"}, {}).status().code(), Code::kNotFound);
  EXPECT_EQ(Process::Start({"/no/such/program"}, {}).status().code(), Code::kNotFound);
  Process::Options options;
  options.folder = "/no/such/folder";
  EXPECT_EQ(Process::Start({"true"}, options).status().code(), Code::kNotFound);
  options = {};
  options.output_path = "/no/such/folder/log";
  EXPECT_EQ(Process::Start({"true"}, options).status().code(), Code::kInvalidArgument);
}

TEST(ProcessTest, AFileThatIsNoProgramIsSaidSo) {
  test::TempDir folder;
  ASSERT_TRUE(WriteFileDurably(folder / "data", "\x7f not a program").ok());
  std::filesystem::permissions(folder / "data", std::filesystem::perms::owner_all);
  EXPECT_EQ(Process::Start({folder / "data"}, {}).status().code(), Code::kInvalidArgument);
}

TEST(ProcessTest, StreamsGoToFiles) {
  test::TempDir folder;
  Process::Options options;
  options.output_path = folder / "out";
  options.error_path = folder / "err";
  EXPECT_TRUE(Shell("echo out; echo err >&2; cat", options).Wait(seconds(20))->ok());
  EXPECT_EQ(ReadFile(folder / "out").value(), "out\n");
  EXPECT_EQ(ReadFile(folder / "err").value(), "err\n");
  options.error_path = options.output_path;
  EXPECT_TRUE(Shell("echo out; echo err >&2; echo out", options).Wait(seconds(20))->ok());
  EXPECT_EQ(ReadFile(folder / "out").value(), "out\nerr\nout\n");
}

TEST(ProcessTest, EnvironmentIsAddedOrReplacedAndTheFolderIsTheChilds) {
  test::TempDir folder;
  setenv("EVERSTEP_PROCESS_TEST", "old", 1);
  Process::Options options;
  options.output_path = folder / "out";
  options.folder = folder.path();
  options.environment = {"EVERSTEP_PROCESS_TEST=new", "EVERSTEP_PROCESS_TEST_2=a b=c"};
  const char* script = "echo $EVERSTEP_PROCESS_TEST $EVERSTEP_PROCESS_TEST_2 ${HOME:+home}; pwd -P";
  EXPECT_TRUE(Shell(script, options).Wait(seconds(20))->ok());
  const std::string home = getenv("HOME") != nullptr ? " home" : "";
  EXPECT_EQ(ReadFile(folder / "out").value(),
            "new a b=c" + home + "\n" + std::filesystem::canonical(folder.path()).string() + "\n");
}

// A parent that reads its signals from a descriptor blocks them; its children must not start that way.
TEST(ProcessTest, BlockedAndIgnoredSignalsAreNotInherited) {
  sigset_t blocked, before;
  sigemptyset(&blocked);
  sigaddset(&blocked, SIGTERM);
  sigprocmask(SIG_BLOCK, &blocked, &before);
  const auto old = signal(SIGUSR1, SIG_IGN);
  Process blocked_child = Shell("kill -TERM $$; sleep 100");
  Process ignored_child = Shell("kill -USR1 $$; sleep 100");
  EXPECT_EQ(blocked_child.Wait(seconds(20)).value(), (Process::Exit{0, SIGTERM}));
  EXPECT_EQ(ignored_child.Wait(seconds(20)).value(), (Process::Exit{0, SIGUSR1}));
  signal(SIGUSR1, old);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

TEST(ProcessTest, TheDestructorLeavesNeitherChildNorGrandchild) {
  test::TempDir folder;
  pid_t child = 0;
  pid_t grandchild = 0;
  {
    Process process = Shell("sleep 100 & echo $! > " + folder / "pid" + "; wait");
    child = process.pid();
    grandchild = std::stoi(WaitForText(folder / "pid"));
    ASSERT_TRUE(Alive(grandchild));
    Process moved = std::move(process);
    EXPECT_TRUE(Alive(child));
  }
  EXPECT_FALSE(Alive(child));
  EXPECT_TRUE(GoneSoon(grandchild));
}

TEST(ProcessTest, TheChildDiesWithItsParent) {
  test::TempDir folder;
  // The parent is a process of this test that starts a child and is killed, so that no destructor runs.
  const pid_t parent = fork();
  if (parent == 0) {
    Process process = Shell("echo $$ > " + folder / "pid" + "; exec sleep 100");
    pause();
    _exit(0);
  }
  const pid_t child = std::stoi(WaitForText(folder / "pid"));
  EXPECT_TRUE(Alive(child));
  kill(parent, SIGKILL);
  waitpid(parent, nullptr, 0);
  EXPECT_TRUE(GoneSoon(child));
}

}  // namespace
}  // namespace everstep
