// [kill-shm] kill -9 in the middle of what processes of one host read in each other's memory: of a worker whose
// gradient is being summed, of a server whose parameters are being read. The parameters are those that the records call
// for, and nothing is left that has a name.
#include <algorithm>
#include <filesystem>
#include <iterator>
#include <thread>

#include "base/file.h"
#include "base/random.h"
#include "tests/proofs/replayed_job.h"

namespace everstep::test {
namespace {

constexpr uint64_t kStepsAKill = 60;  // many more than pass from one kill to the next
// The whole model in one payload, too large for the socket.
const char* const kOneChunk = "4096";

long NamesInSharedMemory() { return std::distance(std::filesystem::directory_iterator("/dev/shm"), {}); }

// The workers read each other's memory, or this proof would show something else.
Status CheckShared(ReplayedJob& job, bool shared) {
  for (const std::string& name : job.workers()) {
    const std::string maps = "/proc/" + std::to_string(job.fleet.cluster().worker(name).pid()) + "/maps";
    EVERSTEP_ASSIGN(const std::string text, ReadFile(maps));
    const bool reads = text.find("r--s") != std::string::npos && text.find("memfd:everstep") != std::string::npos;
    if (reads != shared) return Broken(name + (shared ? " maps no server's memory" : " maps a server's memory"));
  }
  return Status::Ok();
}

Status KillWorkers(const ProofContext& context, size_t kills, json* figures) {
  Random random(context.seed);
  ReplayedJob job(kills * kStepsAKill);
  Flags more{std::string("--chunk-bytes=") + kOneChunk};
  if (context.Plants("sockets")) more.push_back("--no-shared-memory");
  EVERSTEP_RETURN_IF_ERROR(job.Start(1, 3, std::move(more)));
  EVERSTEP_RETURN_IF_ERROR(job.fleet.WaitSteps(2));
  EVERSTEP_RETURN_IF_ERROR(CheckShared(job, true));
  for (size_t i = 0; i < kills; ++i) {
    auto victim = job.workers().begin();
    std::advance(victim, static_cast<long>(random.Below(job.workers().size())));
    if (i % 2 == 0) EVERSTEP_RETURN_IF_ERROR(job.fleet.cluster().WaitForBegin(*victim).status());
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(i % 2 == 0 ? 25'000 : 100'000)));
    job.KillWorker(*victim);
    EVERSTEP_RETURN_IF_ERROR(job.AddWorker().status());
    EVERSTEP_RETURN_IF_ERROR(job.WaitWorkers());
    EVERSTEP_RETURN_IF_ERROR(job.fleet.WaitSteps(1));
  }
  (*figures)["worker_kills"] = kills;
  json replayed;
  const Status finished = job.Finish(context, &replayed);
  (*figures)["after_worker_kills"] = replayed;
  return finished;
}

Status KillServers(const ProofContext& context, size_t kills, json* figures) {
  Random random(context.seed + 1);
  ReplayedJob job(kills * kStepsAKill * 2);
  EVERSTEP_RETURN_IF_ERROR(job.Start(2, 2, {std::string("--chunk-bytes=") + kOneChunk}));
  EVERSTEP_RETURN_IF_ERROR(job.fleet.WaitWhole());
  for (size_t i = 0; i < kills; ++i) {
    std::this_thread::sleep_for(std::chrono::microseconds(random.Below(200'000)));
    job.fleet.Kill(job.fleet.alive()[random.Below(job.fleet.alive().size())]);
    EVERSTEP_RETURN_IF_ERROR(job.fleet.Add().status());
    EVERSTEP_RETURN_IF_ERROR(job.fleet.WaitWhole());
    EVERSTEP_RETURN_IF_ERROR(job.fleet.WaitSteps(1));
  }
  (*figures)["server_kills"] = kills;
  json replayed;
  const Status finished = job.Finish(context, &replayed);
  (*figures)["after_server_kills"] = replayed;
  return finished;
}

}  // namespace

Status ProveKillShm(const ProofContext& context, json* figures) {
  const long before = NamesInSharedMemory();
  EVERSTEP_RETURN_IF_ERROR(KillWorkers(context, context.quick ? 10 : 200, figures));
  EVERSTEP_RETURN_IF_ERROR(KillServers(context, context.quick ? 3 : 20, figures));
  const long left = NamesInSharedMemory() - before;
  (*figures)["left_in_dev_shm"] = left;
  return left == 0 ? Status::Ok() : Broken(std::to_string(left) + " files are left in /dev/shm");
}

}  // namespace everstep::test
