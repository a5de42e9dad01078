// The parameters that a job's commit records call for, computed again by one thread from nothing but the records: for
// each step the gradients of its contributors, their weighted sum in the recorded order, and the optimizer. Written
// apart from the servers' kernels; equal to them to the bit.
#pragma once

#include <cstdint>
#include <vector>

#include "tests/support/plain_models.h"
#include "tests/support/records.h"

namespace everstep::test {

struct ReplayJob {
  uint64_t seed = 1;  // of the order of the samples
  uint64_t dataset = 0;
  float momentum = 0;  // SGD, as everything here
};

// `model` holds the initial values at the beginning and the final ones, which are returned, at the end. sync jobs.
std::vector<float> Replay(const std::vector<CommitLine>& commits, const ReplayJob& job, PlainModel* model);

}  // namespace everstep::test
