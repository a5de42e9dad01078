// The `everstep` program as a user runs it: against a real server, and at the ends of the demo that nobody wants.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/file.h"
#include "base/process.h"
#include "ctl/json.h"
#include "ctl/status_client.h"
#include "tests/support/temp_dir.h"

namespace everstep::ctl {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

constexpr Duration kPatience = seconds(60);

std::string Program(const std::string& name) { return ProgramFolder().value() + "/" + name; }

struct Ran {
  int code = -1;
  std::string output;
  std::string errors;
};

class CommandTest : public testing::Test {
 protected:
  Ran Everstep(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), Program("everstep"));
    Process::Options options;
    options.output_path = folder_ / "out";
    options.error_path = folder_ / "err";
    Process process = Process::Start(arguments, options).value();
    const Result<Process::Exit> exit = process.Wait(kPatience);
    EXPECT_TRUE(exit.ok()) << exit.status().ToString();
    return {exit.ok() && exit->signal == 0 ? exit->code : -1, ReadFile(folder_ / "out").value(),
            ReadFile(folder_ / "err").value()};
  }

  // A server alone, which waits for its first worker.
  Process Server(std::string* address) {
    Process::Options options;
    options.output_path = options.error_path = folder_ / "ps.log";
    Process server = Process::Start({Program("everstep-ps"), "--name", "lonely", "--max-steps", "10", "--listen",
                                     "tcp://127.0.0.1:0", "--address-file", folder_ / "address"},
                                    options)
                         .value();
    *address = AwaitLine(folder_ / "address");
    return server;
  }

  static std::string AwaitLine(const std::string& path) {
    for (const Time deadline = SteadyNow() + kPatience; SteadyNow() < deadline; usleep(2000)) {
      const Result<std::string> text = ReadFile(path);
      if (text.ok() && text->find('\n') != std::string::npos) return text->substr(0, text->find('\n'));
    }
    ADD_FAILURE() << path << " never came";
    return "";
  }

  test::TempDir folder_;
};

TEST_F(CommandTest, StatusOfARealServer) {
  std::string address;
  Process server = Server(&address);
  Ran status = Everstep({"status", "--servers", address});
  EXPECT_EQ(status.code, 0) << status.errors;
  EXPECT_THAT(status.output, HasSubstr("job lonely  gathering"));
  EXPECT_THAT(status.output, HasSubstr(address));
  status = Everstep({"status", "--servers", address, "--json"});
  EXPECT_EQ(Text(ParseJson(status.output), "job"), "lonely");
}

TEST_F(CommandTest, AnObserverIsNoMember) {
  std::string address;
  Process server = Server(&address);
  StatusClient client({address});
  for (int i = 0; i < 20; ++i) {
    const Result<std::string> answer = client.Ask(seconds(20));
    ASSERT_TRUE(answer.ok()) << answer.status().ToString();
    EXPECT_TRUE(At(ParseJson(*answer), "members").empty());
    EXPECT_EQ(Number(At(ParseJson(*answer), "transport"), "accepted"), 1) << "one connection serves all questions";
  }
}

TEST_F(CommandTest, AServerThatIsNotThereIsSaidInOneLineWithExitCode4) {
  std::string address;
  Server(&address).Kill();
  const Ran status = Everstep({"status", "--servers", address});
  EXPECT_EQ(status.code, 4);
  EXPECT_TRUE(status.output.empty());
  EXPECT_THAT(status.errors, HasSubstr(address));
  EXPECT_EQ(std::count(status.errors.begin(), status.errors.end(), '\n'), 1) << status.errors;
}

TEST_F(CommandTest, TheNextServerIsAskedWhenOneIsGoneAndWhenItComesBackTheClientFindsIt) {
  std::string gone, address;
  Server(&gone).Kill();
  std::filesystem::remove(folder_ / "address");
  Process server = Server(&address);
  StatusClient client({gone, address});
  EXPECT_TRUE(client.Ask(seconds(20)).ok());
  server.Kill();
  EXPECT_FALSE(client.Ask(seconds(20)).ok());
  Process again = Process::Start({Program("everstep-ps"), "--max-steps", "10", "--listen", address}, {}).value();
  Result<std::string> answer = client.Ask(seconds(20));
  for (const Time deadline = SteadyNow() + kPatience; !answer.ok() && SteadyNow() < deadline;
       answer = client.Ask(seconds(20))) {
  }
  EXPECT_TRUE(answer.ok());
}

TEST_F(CommandTest, UsageErrorsAreExitCode2AndHelpSaysWhatToTypeNext) {
  EXPECT_EQ(Everstep({}).code, 2);
  EXPECT_EQ(Everstep({"no-such-command"}).code, 2);
  EXPECT_EQ(Everstep({"status"}).code, 2);
  EXPECT_EQ(Everstep({"status", "--servers", "nowhere"}).code, 2);
  const Ran help = Everstep({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_THAT(help.output, HasSubstr("Next:"));
  EXPECT_THAT(Everstep({"version"}).output, HasSubstr("protocol"));
}

TEST_F(CommandTest, AuditTellsByItsExitCode) {
  const char* job = R"({"job":"j","uid":"aa","mode":"sync","epochs":1,"max_steps":0})";
  const char* first =
      R"({"step":0,"digest":"0000000000000001","previous":"0000000000000000","contributors":[{"worker":"w","base":0,"epoch":0,"ranges":[],"weight":1}]})";
  const char* second =
      R"({"step":1,"digest":"0000000000000002","previous":"0000000000000001","contributors":[{"worker":"w","base":1,"epoch":0,"ranges":[[0,4]],"weight":1}]})";
  std::ofstream(folder_ / "records") << job << '\n' << first << '\n' << second << '\n';
  EXPECT_EQ(Everstep({"audit", folder_ / "records"}).code, 0);
  const Ran missing = Everstep({"audit", folder_ / "records", "--dataset", "5", "--json"});
  EXPECT_EQ(missing.code, 1);
  EXPECT_EQ(Number(ParseJson(missing.output), "samples_missing"), 1);
  std::ofstream(folder_ / "report")
      << R"({"samples":{"dataset":6},"uid":"aa","steps_committed":1,"samples_committed":4,"digest":"0000000000000002"})";
  EXPECT_THAT(Everstep({"audit", folder_ / "records", "--report", folder_ / "report"}).output, HasSubstr("[4, 6)"));
  EXPECT_EQ(Everstep({"audit", folder_ / "none"}).code, 3);
}

#ifdef EVERSTEP_WITH_WORKER
// Processes that have `text` on their command line, except this one.
std::vector<pid_t> ProcessesNaming(const std::string& text) {
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos || name == std::to_string(getpid())) continue;
    const Result<std::string> line = ReadFile(entry.path().string() + "/cmdline");
    if (line.ok() && line->find(text) != std::string::npos) found.push_back(std::stoi(name));
  }
  return found;
}

class DemoProcessTest : public CommandTest {
 protected:
  // A demo that has come so far that its six children run; the first server's address.
  Process RunningDemo(std::string* address) {
    Process::Options options;
    options.output_path = folder_ / "demo.log";
    options.environment = {"TMPDIR=" + folder_.path()};
    Process demo = Process::Start({Program("everstep"), "demo"}, options).value();
    for (const Time deadline = SteadyNow() + kPatience; SteadyNow() < deadline; usleep(2000)) {
      for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
        if (const Result<std::string> text = ReadFile(entry.path().string() + "/ps0.address"); text.ok())
          *address = text->substr(0, text->find('\n'));
      }
      // Two more servers and three workers are told the address.
      if (!address->empty() && ProcessesNaming(*address).size() == 5) return demo;
    }
    ADD_FAILURE() << "the demo did not start: " << ReadFile(folder_ / "demo.log").value();
    return demo;
  }

  std::vector<std::string> FoldersLeft() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder_.path())) {
      if (entry.is_directory()) names.push_back(entry.path().string());
    }
    return names;
  }
};

// Case 34: Ctrl-C and SIGTERM.
TEST_F(DemoProcessTest, AnInterruptEndsEverythingAndLeavesNothing) {
  for (int signal : {SIGINT, SIGTERM}) {
    std::string address;
    Process demo = RunningDemo(&address);
    ASSERT_TRUE(demo.Signal(signal).ok());
    const Result<Process::Exit> exit = demo.Wait(kPatience);
    ASSERT_TRUE(exit.ok()) << exit.status().ToString();
    EXPECT_EQ(exit->code, 130) << ReadFile(folder_ / "demo.log").value();
    EXPECT_TRUE(ProcessesNaming(address).empty());
    EXPECT_TRUE(ProcessesNaming(folder_.path()).empty());
    EXPECT_THAT(FoldersLeft(), testing::IsEmpty());
  }
}

TEST_F(DemoProcessTest, WhenTheDemoItselfIsKilledItsChildrenEnd) {
  std::string address;
  Process demo = RunningDemo(&address);
  ASSERT_TRUE(demo.Signal(SIGKILL).ok());
  ASSERT_TRUE(demo.Wait(kPatience).ok());
  const auto left = [&] { return !ProcessesNaming(address).empty() || !ProcessesNaming(folder_.path()).empty(); };
  for (const Time deadline = SteadyNow() + kPatience; SteadyNow() < deadline && left(); usleep(2000)) {
  }
  EXPECT_TRUE(ProcessesNaming(address).empty());
  EXPECT_TRUE(ProcessesNaming(folder_.path()).empty());
}

TEST_F(DemoProcessTest, AServerThatDiesIsToldWithTheLogsAndTheFolderIsKept) {
  std::string address;
  Process demo = RunningDemo(&address);
  for (pid_t pid : ProcessesNaming("everstep-demo-")) {
    const Result<std::string> line = ReadFile("/proc/" + std::to_string(pid) + "/cmdline");
    if (line.ok() && line->find(folder_.path()) != std::string::npos && line->find("--job") != std::string::npos)
      kill(pid, SIGKILL);
  }
  const Result<Process::Exit> exit = demo.Wait(kPatience);
  ASSERT_TRUE(exit.ok()) << exit.status().ToString();
  EXPECT_EQ(exit->code, 1);
  const std::string log = ReadFile(folder_ / "demo.log").value();
  EXPECT_THAT(log, HasSubstr("FAILED: ps0 ended with signal 9"));
  EXPECT_THAT(log, HasSubstr("---- w1 ("));
  EXPECT_EQ(FoldersLeft().size(), 1u);
  EXPECT_TRUE(ProcessesNaming(address).empty());
}
#endif

}  // namespace
}  // namespace everstep::ctl
