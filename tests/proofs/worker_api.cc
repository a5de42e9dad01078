// [worker-api] The README's program, built outside the tree with find_package(everstep), joins a running job, is
// killed, is started again, and finishes it.
#include <csignal>

#include "tests/proofs/proof.h"

namespace everstep::test {
namespace {

constexpr Duration kBuildPatience = std::chrono::minutes(8);

Status RunToEnd(Cluster& cluster, const std::string& name, const std::string& program, Flags flags) {
  EVERSTEP_ASSIGN(Program * started, cluster.Start(name, program, std::move(flags)));
  EVERSTEP_ASSIGN(const int code, started->Wait(kBuildPatience));
  if (code != 0) return Broken(name + " failed: " + started->output() + started->log());
  return Status::Ok();
}

}  // namespace

Status ProveWorkerApi(const ProofContext& context, json* figures) {
  Cluster cluster;
  const std::string installed = cluster.path("installed");
  const std::string built = cluster.path("built");
  EVERSTEP_RETURN_IF_ERROR(
      RunToEnd(cluster, "install", "/usr/bin/cmake", {"--install", context.build, "--prefix", installed}));
  EVERSTEP_RETURN_IF_ERROR(RunToEnd(cluster, "configure", "/usr/bin/cmake",
                                    {"-G", "Ninja", "-S", context.source + "/examples/readme", "-B", built,
                                     "-DCMAKE_PREFIX_PATH=" + installed, "-DCMAKE_BUILD_TYPE=Release"}));
  EVERSTEP_RETURN_IF_ERROR(RunToEnd(cluster, "build", "/usr/bin/cmake", {"--build", built}));
  const std::string program = built + "/readme_worker";

  EVERSTEP_RETURN_IF_ERROR(cluster.StartServers(
      1, {"--epochs=40", "--batch=64", "--optimizer=adam", "--learning-rate=0.01", "--no-progress"}));
  EVERSTEP_ASSIGN(Program * first, cluster.Start("first", program, {cluster.address()}));
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForStep(100, std::chrono::seconds(60)));
  first->Kill();
  (void)first->Wait();
  EVERSTEP_ASSIGN(const json after_kill, cluster.AskStatus());
  EVERSTEP_ASSIGN(Program * second, cluster.Start("second", program, {cluster.address()}));
  EVERSTEP_ASSIGN(const int code, second->Wait(std::chrono::seconds(120)));
  if (code != 0) return Broken("the second life ended with exit code " + std::to_string(code) + ": " + second->log());
  EVERSTEP_ASSIGN(const int server, cluster.server(0).Wait());
  if (server != 0) return Broken("the server ended with exit code " + std::to_string(server));
  EVERSTEP_RETURN_IF_ERROR(CheckChain(cluster.commits()));
  EVERSTEP_RETURN_IF_ERROR(CheckLedger(cluster.commits(), 8192, 40));
  (*figures)["killed_at_step"] = after_kill.at("step");
  (*figures)["steps"] = cluster.commits().size() - 1;
  (*figures)["accuracy"] = second->result().at("accuracy");
  if (second->result().at("accuracy") < 0.9) return Broken("the finished model is not trained");
  return Status::Ok();
}

}  // namespace everstep::test
