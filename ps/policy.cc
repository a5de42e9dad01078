#include "ps/policy.h"

#include <algorithm>
#include <cmath>

#include "base/plant.h"

namespace everstep {
namespace {

SealDecision DecideSync(const JobSpec& job, const SealView& view) {
  SealDecision decision;
  size_t whole = 0;
  size_t departed = 0;  // whole, but their workers are gone: they count for the step, not as members
  bool all = true;
  Time first_whole = Time::Never();
  for (const Candidate& c : view.candidates) {
    if (c.whole) {
      ++whole;
      first_whole = std::min(first_whole, c.whole_at);
      if (!c.live) ++departed;
    } else if (c.live) {
      all = false;
    }
  }
  const bool minimum = view.ready_members + departed >= job.min_workers || EVERSTEP_PLANTED("ignore-minimum");
  decision.paused = !minimum;
  if (whole == 0 || !minimum) return decision;
  if (whole + view.refused < std::min<size_t>(view.granted, job.min_workers) && !EVERSTEP_PLANTED("ignore-minimum") &&
      !EVERSTEP_PLANTED("seal-early")) {
    return decision;
  }
  if (!all && !EVERSTEP_PLANTED("seal-early")) {
    const auto granted = static_cast<double>(std::max<size_t>(view.granted, 1));
    if (job.quorum >= 1 || whole + view.refused < static_cast<size_t>(std::ceil(job.quorum * granted - 1e-9)))
      return decision;
    const Time due = first_whole + job.grace;
    if (view.now < due) {
      decision.recheck = due;
      return decision;
    }
  }
  for (size_t i = 0; i < view.candidates.size(); ++i) {
    if (view.candidates[i].whole) decision.chosen.push_back(i);
  }
  return decision;
}

// Asynchronous modes take whole contributions one by one, first come first served.
SealDecision DecideOneByOne(const JobSpec& job, const SealView& view) {
  SealDecision decision;
  size_t departed = 0;
  for (const Candidate& c : view.candidates) departed += c.whole && !c.live;
  decision.paused = view.ready_members + departed < job.min_workers;
  if (decision.paused) return decision;
  std::optional<size_t> first;
  for (size_t i = 0; i < view.candidates.size(); ++i) {
    const Candidate& c = view.candidates[i];
    if (!c.whole || view.step.value - c.contribution.base.value > job.staleness) continue;
    if (!first || c.whole_at < view.candidates[*first].whole_at) first = i;
  }
  if (first) decision.chosen.push_back(*first);
  return decision;
}

}  // namespace

SealDecision DecideSeal(const JobSpec& job, const SealView& view) {
  if (view.step.value == 0) {
    // The initialisation: one contribution of initial values, whoever brought it.
    for (size_t i = 0; i < view.candidates.size(); ++i) {
      if (view.candidates[i].whole) return {{i}, false, Time::Never()};
    }
    return {};
  }
  return job.mode == Mode::kSync ? DecideSync(job, view) : DecideOneByOne(job, view);
}

std::vector<double> SealWeights(const JobSpec& job, Version step, const std::vector<Contribution>& contributors) {
  std::vector<double> weights;
  weights.reserve(contributors.size());
  if (step.value == 0) return {1.0};
  if (job.mode != Mode::kSync) {
    for (const Contribution& c : contributors) {
      const auto staleness = static_cast<double>(step.value - c.base.value);
      weights.push_back(job.mode == Mode::kAsync ? std::pow(1 + staleness, -job.staleness_power) : 1.0);
    }
    return weights;
  }
  double total = 0;
  if (EVERSTEP_PLANTED("equal-weights"))
    return std::vector<double>(contributors.size(), 1.0 / static_cast<double>(contributors.size()));
  for (const Contribution& c : contributors) total += static_cast<double>(c.lease.samples());
  for (const Contribution& c : contributors) {
    weights.push_back(total > 0 ? static_cast<double>(c.lease.samples()) / total
                                : 1.0 / static_cast<double>(contributors.size()));
  }
  return weights;
}

void SortContributors(std::vector<Contribution>* contributors) {
  std::sort(contributors->begin(), contributors->end(), [](const Contribution& a, const Contribution& b) {
    const auto position = [](const Contribution& c) {
      return c.lease.ranges.empty() ? 0 : c.lease.ranges.front().begin;
    };
    return std::tuple(position(a), a.worker, a.lease.id) < std::tuple(position(b), b.worker, b.lease.id);
  });
}

}  // namespace everstep
