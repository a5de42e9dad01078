#include "tests/support/etcd.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace everstep::test {
namespace {

// A port that was free a moment ago: etcd cannot be told to take any.
int FreePort() {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  const bool bound = fd >= 0 && bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  if (fd >= 0) close(fd);
  EVERSTEP_CHECK(bound, "no free port on loopback");
  return ntohs(address.sin_port);
}

std::string FindProgram() {
  if (const char* given = getenv("EVERSTEP_ETCD"); given != nullptr) return given;
  const auto folder = ProgramFolder();
  if (folder.ok()) {
    // build/release/bin -> build/tools
    const auto tool = std::filesystem::path(*folder).parent_path().parent_path() / "tools/etcd";
    if (std::filesystem::exists(tool)) return tool;
  }
  return "etcd";
}

}  // namespace

Result<std::unique_ptr<Etcd>> Etcd::Start() {
  auto etcd = std::make_unique<Etcd>();
  etcd->program_ = FindProgram();
  for (int attempt = 0;; ++attempt) {
    etcd->url_ = "http://127.0.0.1:" + std::to_string(FreePort());
    etcd->peer_url_ = "http://127.0.0.1:" + std::to_string(FreePort());
    const Status launched = etcd->Launch();
    if (launched.ok()) return etcd;
    if (launched.code() == Code::kNotFound || attempt == 2) return launched;
  }
}

void Etcd::Freeze() {
  (void)process_->Signal(SIGSTOP);
  // A stop is seen by each thread at its own time; the process shows it when the last one has stopped.
  const std::string path = "/proc/" + std::to_string(process_->pid()) + "/stat";
  for (int i = 0; i < 1000; ++i) {
    std::ifstream file(path);
    std::string text;
    std::getline(file, text);
    const size_t name_end = text.rfind(')');
    if (name_end != std::string::npos && text.substr(name_end + 2, 1) == "T") return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Status Etcd::Restart() {
  process_.reset();
  return Launch();
}

Status Etcd::Launch() {
  Process::Options options;
  options.output_path = options.error_path = folder_ / "log";
  const std::vector<std::string> argv{program_,
                                      "--name=test",
                                      "--data-dir=" + folder_ / "data",
                                      "--listen-client-urls=" + url_,
                                      "--advertise-client-urls=" + url_,
                                      "--listen-peer-urls=" + peer_url_,
                                      "--initial-advertise-peer-urls=" + peer_url_,
                                      "--initial-cluster=test=" + peer_url_,
                                      "--unsafe-no-fsync"};
  EVERSTEP_ASSIGN(Process process, Process::Start(argv, options));
  process_.emplace(std::move(process));
  const auto client = Client();
  const Time deadline = SteadyNow() + std::chrono::seconds(30);
  while (true) {
    const Status answer = client->Get("/").status();
    if (answer.ok()) return answer;
    if (const auto exit = process_->Poll()) return {Code::kUnavailable, "etcd ended: " + exit->ToString()};
    if (SteadyNow() > deadline) return answer.With("etcd did not come up within 30 s");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

}  // namespace everstep::test
