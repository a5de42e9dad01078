// [shapes] Odd models, datasets and numbers of servers: all train, and the loss falls.
#include "tests/proofs/proof.h"

namespace everstep::test {
namespace {

struct Shape {
  const char* name;
  size_t servers;
  size_t workers;
  Flags job;
  Flags worker;
  uint64_t dataset;  // 0: none
  uint64_t epochs;
};

Status Train(const Shape& shape, json* figures) {
  Cluster cluster;
  Flags job = shape.job;
  for (const char* flag : {"--learning-rate=0.1", "--momentum=0.5", "--no-progress", "--timeout-s=10"})
    job.push_back(flag);
  job.push_back("--workers=" + std::to_string(shape.workers) + ":8");
  EVERSTEP_RETURN_IF_ERROR(cluster.StartServers(shape.servers, std::move(job)));
  for (size_t i = 0; i < shape.workers; ++i) {
    EVERSTEP_RETURN_IF_ERROR(cluster.StartWorker("w" + std::to_string(i), shape.worker).status());
  }
  EVERSTEP_RETURN_IF_ERROR(cluster.WaitForCleanEnd());
  const std::vector<CommitLine> commits = cluster.commits();
  EVERSTEP_RETURN_IF_ERROR(CheckChain(commits));
  if (shape.dataset > 0) EVERSTEP_RETURN_IF_ERROR(CheckLedger(commits, shape.dataset, shape.epochs));
  if (commits.size() < 4) return Broken("too few steps to tell whether the loss falls");
  const double first = commits[1].metrics.at("loss");
  const double last = commits.back().metrics.at("loss");
  (*figures)[shape.name] = {{"steps", commits.size() - 1}, {"first_loss", first}, {"last_loss", last}};
  if (!(last < first)) return Broken("the loss did not fall");
  return Status::Ok();
}

}  // namespace

Status ProveShapes(const ProofContext&, json* figures) {
  const std::vector<Shape> shapes{
      {"one server, one worker", 1, 1, {"--epochs=2", "--batch=50"}, {"--elements=1000", "--dataset=1000"}, 1000, 2},
      {"seven servers, three chunks",
       7,
       2,
       {"--epochs=2", "--batch=50", "--chunk-bytes=1024"},
       {"--elements=700", "--dataset=1000"},
       1000,
       2},
      {"empty tensor, scalar and buffer",
       2,
       2,
       {"--epochs=2", "--batch=50", "--chunk-bytes=256"},
       {"--elements=100", "--odd-shapes", "--dataset=1000"},
       1000,
       2},
      {"one element", 1, 2, {"--epochs=2", "--batch=50"}, {"--elements=1", "--dataset=1000"}, 1000, 2},
      {"dataset smaller than the batch", 1, 2, {"--epochs=30", "--batch=64"}, {"--elements=100", "--dataset=5"}, 5, 30},
      {"dataset of one sample, three workers",
       1,
       3,
       {"--epochs=20", "--batch=64"},
       {"--elements=100", "--dataset=1"},
       1,
       20},
      {"no dataset", 2, 2, {"--epochs=0", "--max-steps=40"}, {"--elements=100", "--odd-shapes", "--steps-only"}, 0, 0},
  };
  for (const Shape& shape : shapes) {
    if (Status kept = Train(shape, figures); !kept.ok()) return kept.With(shape.name);
  }
  return Status::Ok();
}

}  // namespace everstep::test
