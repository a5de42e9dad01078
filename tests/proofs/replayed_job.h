// A job of the perceptron whose end is compared, bit by bit, with what its commit records call for
// (tests/support/replay.h). Its workers take their time while a proof disturbs the job; then they leave in order, and a
// fast one finishes it.
#pragma once

#include <set>
#include <string>

#include "tests/proofs/proof.h"
#include "tests/support/fleet.h"

namespace everstep::test {

class ReplayedJob {
 public:
  // `steps`: of the job, which must not end before the proof is done with it.
  ReplayedJob(uint64_t steps, std::string record = {}) : fleet(std::move(record)), steps_(steps) {}

  Status Start(size_t servers, size_t workers, Flags more = {});
  Result<std::string> AddWorker();  // its name
  Status WaitWorkers();             // all of them are members and have the parameters
  void KillWorker(const std::string& name);
  const std::set<std::string>& workers() const { return workers_; }

  // The job is finished, and every process that was not killed ends well; the union of the records is one chain from
  // the first step to the last; every sample was used once; the last parameters are those of the replay.
  // `context`: its control may have the records spoiled before they are looked at.
  Status Finish(const ProofContext& context, json* figures);

  Fleet fleet;

 private:
  const uint64_t steps_;
  std::set<std::string> workers_;
  size_t next_ = 0;
};

}  // namespace everstep::test
