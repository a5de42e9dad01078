// Text to train a language model on: one file, or all files of a folder. Deterministic: the same files give the same
// bytes on every machine.
#pragma once

#include <string>

#include "base/status.h"

namespace everstep {

struct Text {
  std::string train;
  std::string held_out;  // the last tenth of each file
};

// `path` empty: the licence texts that each Debian has. Folders are read with what is below them, in the order of the
// files' names; links are left out, so that no text comes twice, and so are hidden files.
Result<Text> LoadText(const std::string& path);

}  // namespace everstep
