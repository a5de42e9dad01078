// Messages with random, valid contents, for round trips and as the seeds of hostile ones. The same Random gives the
// same messages. Any thread.
#pragma once

#include "base/random.h"
#include "schema/messages.h"

namespace everstep::test {

constexpr size_t kMessageKinds = std::variant_size_v<Body>;

std::string RandomText(Random& random, size_t most);
ParameterSpec RandomSpec(Random& random, size_t most_tensors);
std::vector<SampleRange> RandomRanges(Random& random, size_t most);
Lease RandomLease(Random& random);
Contribution RandomContribution(Random& random);
Seal RandomSeal(Random& random);  // with the digest of its contents
ShardMap RandomMap(Random& random);
JobSpec RandomJob(Random& random);

// Of the kind at this index of Body.
Envelope RandomEnvelope(Random& random, size_t kind);

}  // namespace everstep::test
