// A folder of a test's own, gone with the object; kept, and named, when the test has failed by then. Its path is short
// enough for the sockets of ipc:// addresses (107 bytes). One thread.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <iostream>
#include <string>

#include "base/check.h"

namespace everstep::test {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "everstep-test-XXXXXX").string();
    EVERSTEP_CHECK(mkdtemp(name.data()) != nullptr, "no temporary folder: " + name);
    path_ = name;
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  ~TempDir() {
    if (testing::Test::HasFailure()) {
      std::cerr << "kept for a look: " << path_ << "\n";
      return;
    }
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace everstep::test
