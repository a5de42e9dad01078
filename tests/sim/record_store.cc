#include "tests/sim/record_store.h"

namespace everstep::sim {

Time RecordStore::AnswerAt() {
  const Time soon = world_.now() + Duration(world_.random().Between(0, scenario_.record_latency.count()));
  return calm_ ? soon : std::max(soon, outage_until_);
}

void RecordStore::Read(std::function<void(std::optional<Configuration>)> answer) {
  world_.At(AnswerAt(), [this, answer = std::move(answer)] { answer(record_); });
}

Status RecordStore::Change(Ballot expected, const Configuration& next) {
  if (record_ && *record_ == next) return Status::Ok();  // its own change, asked for again
  const Ballot found = record_ ? record_->ballot : Ballot{};
  if (found != expected) return {Code::kStale, "the record is at ballot " + ToString(found)};
  record_ = next;
  if (changed_) changed_(next);
  return Status::Ok();
}

void RecordStore::CompareAndSwap(Ballot expected, Configuration next, std::function<void(Status)> answer) {
  const Time at = AnswerAt();
  const bool unknown = !calm_ && world_.random().Chance(scenario_.record_unknown);
  const bool lost = unknown && world_.random().Chance(0.5);  // the request, or only the answer
  world_.At(at, [this, expected, next = std::move(next), unknown, lost, answer = std::move(answer)] {
    Status outcome(Code::kUnavailable, "no answer");
    if (!lost) {
      const Status changed = Change(expected, next);
      if (!unknown) outcome = changed;
    }
    const Duration back = Duration(world_.random().Between(0, scenario_.record_latency.count()));
    world_.Trace(nullptr, [&] { return "the record: ballot " + ToString(next.ballot) + ": " + outcome.ToString(); });
    world_.After(back, [answer, outcome] { answer(outcome); });
  });
}

}  // namespace everstep::sim
