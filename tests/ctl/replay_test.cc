// The replay on records made by hand: seals that are right, each thing changed alone, and the arithmetic of one update.
// tests/process/replay_test.cc holds it against real servers.
#include "ctl/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>

namespace everstep::ctl {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

std::string Hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(value));
  return text;
}

// An epoch of 8 samples, 4 a step, by two workers; two epochs.
JobSpec Job() {
  JobSpec job;
  job.batch = 4;
  job.epochs = 2;
  job.optimizer.learning_rate = 0.5;
  job.schedule.kind = ScheduleKind::kCosine;
  job.schedule.warmup_steps = 2;
  return job;
}

std::vector<Seal> Seals() {
  std::vector<Seal> seals;
  const double rates[] = {0, 0.25, 0.5 * (1 + std::cos(0.0)) / 2, 0.5 * (1 + std::cos(0.0)) / 2,
                          0.5 * (1 + std::cos(std::numbers::pi / 2)) / 2};
  Digest previous;
  for (uint64_t step = 0; step <= 4; ++step) {
    Seal seal;
    seal.id = {{1}, {step}};
    seal.previous = previous;
    if (step == 0) {
      seal.contributors = {{{1}, {0}, {}, {{1}, 0, {}}}};
      seal.weights = {1};
    } else {
      const uint64_t epoch = (step - 1) / 2, at = (step - 1) % 2 * 4;
      seal.contributors = {{{1}, {step}, previous, {{2 * step}, epoch, {{at, at + 1}}}},
                           {{2}, {step}, previous, {{2 * step + 1}, epoch, {{at + 1, at + 4}}}}};
      seal.weights = {0.25, 0.75};
      seal.learning_rate = rates[step];
      seal.ledger_after = at == 0 ? LedgerState{epoch, {{0, 4}}} : LedgerState{epoch + 1, {}};
    }
    seal.digest = previous = SealDigest(seal);
    seals.push_back(seal);
  }
  return seals;
}

// Of the step that was spoiled; those after it are right in themselves.
std::vector<std::string> Spoiled(size_t step, const std::function<void(RecordedStep&)>& spoil, bool digest_too = true) {
  SealReplay replay(Job(), 8);
  std::vector<std::string> wrong;
  const std::vector<Seal> seals = Seals();
  for (size_t i = 0; i < seals.size(); ++i) {
    RecordedStep recorded{seals[i], 1};
    if (i == step) spoil(recorded);
    if (i == step && digest_too) recorded.seal.digest = SealDigest(recorded.seal);
    const auto found = replay.Add(recorded);
    if (i == step) wrong = found;
    if (i < step) {
      EXPECT_THAT(found, IsEmpty()) << i;
    }
  }
  return wrong;
}

TEST(SealReplayTest, WhatIsRightIsRight) {
  for (size_t step = 0; step <= 4; ++step) EXPECT_THAT(Spoiled(step, [](RecordedStep&) {}), IsEmpty()) << step;
  // The size of the dataset is found out where the first epoch ends.
  SealReplay replay(Job(), {});
  for (const Seal& seal : Seals()) EXPECT_THAT(replay.Add({seal, 1}), IsEmpty());
  EXPECT_EQ(replay.dataset(), 8u);
}

TEST(SealReplayTest, EachChangeIsFound) {
  const auto keep = [](const std::function<void(Seal&)>& spoil) {
    return [spoil](RecordedStep& step) { spoil(step.seal); };
  };
  for (const auto& change : std::vector<std::function<void(Seal&)>>{
           [](Seal& s) { s.contributors[0].worker = {9}; },
           [](Seal& s) {
             s.weights = {0.5, 0.5};
           },
           [](Seal& s) { s.learning_rate += 1e-15; }, [](Seal& s) { s.id.ballot = {2}; },
           [](Seal& s) { s.contributors[1].lease.id = {99}; }, [](Seal& s) { s.clip_norm = 3; }}) {
    EXPECT_THAT(Spoiled(3, keep(change), false), Contains(HasSubstr("its digest is not that")));
  }
  // With a digest that was made to fit.
  EXPECT_THAT(Spoiled(3, keep([](Seal& s) { s.learning_rate = 0.49; })), Contains(HasSubstr("its learning rate is")));
  EXPECT_THAT(Spoiled(3, keep([](Seal& s) { std::swap(s.contributors[0], s.contributors[1]); })),
              Contains(HasSubstr("not in order")));
  EXPECT_THAT(Spoiled(3, keep([](Seal& s) { s.contributors[0].base_digest = {5}; })),
              Contains(HasSubstr("a version that this history does not have")));
  EXPECT_THAT(Spoiled(3, keep([](Seal& s) { s.contributors[0].base = {7}; })),
              Contains(HasSubstr("a version that this history does not have")));
  EXPECT_THAT(Spoiled(3, keep([](Seal& s) {
                        s.ledger_after = {1, {{0, 3}}};
                      })),
              Contains(HasSubstr("the ledger after it is not")));
  EXPECT_THAT(Spoiled(4, keep([](Seal& s) {
                        s.contributors[1].lease.ranges = {{3, 8}};
                      })),
              Contains(HasSubstr("2 of its samples were consumed before")));
  EXPECT_THAT(Spoiled(3, keep([](Seal& s) { s.contributors[0].lease.epoch = 0; })),
              Contains(HasSubstr("samples of epoch 0 in epoch 1")));
  EXPECT_THAT(Spoiled(3, [](RecordedStep& s) { s.scale = 0.5; }), Contains(HasSubstr("it was clipped")));
}

json Record() {
  return {{"step", 3u},
          {"ballot", 1u},
          {"digest", Hex(5)},
          {"previous", Hex(4)},
          {"learning_rate", 0.5},
          {"clip_norm", 0.0},
          {"scale", 1.0},
          {"ledger", {{"epoch", 0u}, {"consumed", {{0u, 4u}}}}},
          {"contributors",
           {{{"worker", Hex(1)},
             {"base", 3u},
             {"base_digest", Hex(4)},
             {"lease", Hex(8)},
             {"epoch", 0u},
             {"ranges", {{0u, 4u}}},
             {"weight", 1.0}}}}};
}

TEST(ParseStepTest, TakesAWholeRecordAndNamesWhatIsMissing) {
  const Result<RecordedStep> step = ParseStep(Record());
  ASSERT_TRUE(step.ok()) << step.status().ToString();
  EXPECT_EQ(step->seal.contributors[0].lease.id, LeaseId{8});
  EXPECT_EQ(step->seal.ledger_after, (LedgerState{0, {{0, 4}}}));
  for (const char* key : {"ballot", "digest", "previous", "learning_rate", "clip_norm", "scale", "contributors"}) {
    json record = Record();
    record.erase(key);
    EXPECT_THAT(ParseStep(record).status().message(), HasSubstr(std::string("no ") + key));
  }
  for (const char* key : {"worker", "base", "base_digest", "lease", "epoch", "ranges", "weight"}) {
    json record = Record();
    record["contributors"][0].erase(key);
    EXPECT_THAT(ParseStep(record).status().message(), HasSubstr(std::string("no ") + key));
    record["contributors"][0][key] = json::object();
    EXPECT_FALSE(ParseStep(record).ok()) << key;
  }
  json record = Record();
  record["ledger"]["consumed"] = {{4u, 4u}};
  EXPECT_FALSE(ParseStep(record).ok()) << "a range of nothing";
}

template <typename T>
Buffer Bytes(const std::vector<T>& values) {
  return Buffer::Copy(values.data(), values.size() * sizeof(T));
}

TEST(ParameterReplayTest, SumsInOrderUpdatesAndClips) {
  JobSpec job = Job();
  job.optimizer.momentum = 0.5;
  job.optimizer.nesterov = true;
  ParameterSpec spec{{{"w", {2}, DType::kFloat32, Role::kTrainable}, {"mean", {1}, DType::kFloat32, Role::kBuffer}}};
  ParameterReplay replay(job, spec);
  replay.Begin(Bytes<float>({1, 2, 7}));
  RecordedStep step{Seals()[1], 1};
  step.seal.learning_rate = 0.25;
  // 0.25 * 4 + 0.75 * 0 = 1 and 0.25 * 0 + 0.75 * 4 = 3; the buffer's mean is 0.25 * 8 + 0.75 * 16.
  EXPECT_EQ(replay.Add(step, {Bytes<float>({4, 0, 8}), Bytes<float>({0, 4, 16})}), "");
  // The first buffer is the gradient; Nesterov looks ahead by half of it.
  EXPECT_THAT(replay.arrays().at("momentum"), testing::ElementsAre(1, 3, 0));
  EXPECT_THAT(replay.arrays().at("parameters"), testing::ElementsAre(1 - 0.25f * 1.5f, 2 - 0.25f * 4.5f, 14));
  step.seal.clip_norm = 1;
  step.scale = 1 / (std::sqrt(10.0) + 1e-6);
  EXPECT_EQ(replay.Add(step, {Bytes<float>({4, 0, 8}), Bytes<float>({0, 4, 16})}), "");
  step.scale = 0.5;
  EXPECT_THAT(replay.Add(step, {Bytes<float>({4, 0, 8}), Bytes<float>({0, 4, 16})}), HasSubstr("its norm calls for"));
}

TEST(ParameterReplayTest, CountersTakeTheHighest) {
  ParameterReplay replay(Job(), {{{"seen", {2}, DType::kInt64, Role::kBuffer}}});
  replay.Begin(Bytes<int64_t>({1, 2}));
  EXPECT_EQ(replay.Add({Seals()[1], 1}, {Bytes<int64_t>({-5, 1ll << 40}), Bytes<int64_t>({-6, 3})}), "");
  int64_t seen[2];
  std::memcpy(seen, replay.arrays().at("parameters").data(), sizeof seen);
  EXPECT_EQ(seen[0], -5);
  EXPECT_EQ(seen[1], 1ll << 40);
}

}  // namespace
}  // namespace everstep::ctl
