#include "tests/support/saved_job.h"

namespace everstep::test {

const Flags kSavedJob = {"--timeout-s=10",       "--no-progress",     "--batch=40",        "--optimizer=adam",
                         "--learning-rate=0.01", "--schedule=cosine", "--chunk-bytes=256", "--workers=2:2"};

Flags With(Flags flags, const Flags& more) {
  for (const std::string& flag : more) {
    const std::string name = flag.substr(0, flag.find('=') + 1);
    std::erase_if(flags, [&](const std::string& f) { return !name.empty() && f.starts_with(name); });
    flags.push_back(flag);
  }
  return flags;
}

Status StartSaving(Cluster& cluster, size_t servers, const std::string& folder, const Flags& more) {
  const Flags both = {"--checkpoints=" + folder};
  Flags first = With(With(kSavedJob, both), more);
  first.push_back("--servers=" + std::to_string(servers));
  EVERSTEP_RETURN_IF_ERROR(cluster.StartServer(first).status());
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForAddress(0));
  for (size_t i = 1; i < servers; ++i)
    EVERSTEP_RETURN_IF_ERROR(cluster.StartServer(With(both, {"--join=" + cluster.address(0)})).status());
  for (size_t i = 1; i < servers; ++i) EVERSTEP_RETURN_IF_ERROR(cluster.WaitForAddress(i));
  return Status::Ok();
}

Status StartSavedWorkers(Cluster& cluster, const Flags& more) {
  for (const char* name : {"a", "b"}) {
    EVERSTEP_RETURN_IF_ERROR(cluster
                                 .StartWorker(name, With({"--model=mlp", "--dataset=2000", "--timeout-s=20",
                                                          "--dump=" + cluster.path(std::string(name) + ".bin")},
                                                         more))
                                 .status());
  }
  return Status::Ok();
}

void KillSaved(Cluster& cluster, size_t servers) {
  for (size_t i = 0; i < servers; ++i) cluster.server(i).Kill();
  for (const char* name : {"a", "b"}) cluster.worker(name).Kill();
}

Result<FoundCheckpoint> FindSaved(const std::string& folder) {
  EVERSTEP_ASSIGN(std::unique_ptr<Store> store, MakeDirectoryStore(folder, false));
  return FindNewestCheckpoint(std::move(store));
}

Result<std::map<std::string, std::string>> ArraysOf(Checkpoint& checkpoint) {
  std::map<std::string, std::string> arrays;
  const Manifest& m = checkpoint.manifest();
  for (const std::string& array : m.arrays) {
    std::string& bytes = arrays[array];
    bytes.resize(checkpoint.layout().size() * m.spec.chunk_bytes);
    EVERSTEP_RETURN_IF_ERROR(checkpoint.Read(array, 0, std::as_writable_bytes(std::span(bytes.data(), bytes.size()))));
  }
  return arrays;
}

}  // namespace everstep::test
