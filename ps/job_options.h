// The job file: every key of JobSpec as a TOML key and as a flag of the same name (docs/job-file.md). A flag wins over
// the file.
#pragma once

#include <memory>
#include <string>

#include "base/status.h"
#include "schema/job.h"

namespace CLI {
class App;
}

namespace everstep {

// Texts that become parts of a JobSpec once the command line and the file are read.
struct JobTexts {
  std::string mode = "sync";
  std::string optimizer = "sgd";
  std::string schedule = "constant";
  std::string workers = "1:64";
  double timeout_s = 30;
  double grace_ms = 100;
};

// Adds --job FILE and all keys to `app`; `job` and `texts` are filled when it parses.
void AddJobOptions(CLI::App& app, JobSpec* job, JobTexts* texts);

// After parsing: turns the texts into values and validates the whole.
Status FinishJob(const JobTexts& texts, JobSpec* job);

}  // namespace everstep
