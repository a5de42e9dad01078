#include "ps/config_record.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/conformance/config_record_conformance.h"

namespace everstep::test {
namespace {

INSTANTIATE_TEST_SUITE_P(
    Stores, ConfigRecordConformance,
    testing::Values(ConfigRecordStore{"Memory", [](const std::string&) { return MakeMemoryRecord(); }, false},
                    ConfigRecordStore{"File",
                                      [](const std::string& place) { return MakeFileRecord(place + "/state").value(); },
                                      true}),
    [](const auto& store) { return store.param.name; });

class FileRecordTest : public testing::Test {
 protected:
  TempDir dir_;
  const std::string path_ = dir_ / "configuration";
};

TEST_F(FileRecordTest, SurvivesItsProcess) {
  ASSERT_TRUE(MakeFileRecord(dir_.path()).value()->CompareAndSwap({0}, ConfigurationAt(1)).ok());
  EXPECT_EQ(**MakeFileRecord(dir_.path()).value()->Read(), ConfigurationAt(1));
}

// Case 31: a record that cannot be read is an error that names the file, never "no record".
TEST_F(FileRecordTest, Case31_ADamagedRecordIsAnErrorThatNamesIt) {
  const auto record = MakeFileRecord(dir_.path()).value();
  ASSERT_TRUE(record->CompareAndSwap({0}, ConfigurationAt(1)).ok());
  const std::string good = *ReadFile(path_);
  const auto expect_refused = [&](const std::string& contents) {
    ASSERT_TRUE(WriteFileDurably(path_, contents).ok());
    const Status status = record->Read().status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << status.ToString();
    EXPECT_NE(status.message().find(path_), std::string::npos) << status.message();
    EXPECT_EQ(record->CompareAndSwap({0}, ConfigurationAt(2)).code(), Code::kCorrupt);  // nor is it overwritten
    EXPECT_EQ(*ReadFile(path_), contents);
  };
  expect_refused("");
  expect_refused("not a record");
  expect_refused(good + "x");
  expect_refused(good + good);
  for (size_t length = 1; length < good.size(); length += 31) expect_refused(good.substr(0, length));
  std::string huge = good;
  huge[7] = '\x7f';  // the length of the first message
  expect_refused(huge);
}

TEST_F(FileRecordTest, AFolderThatCannotBeIsAnErrorThatNamesIt) {
  ASSERT_TRUE(WriteFileDurably(dir_ / "file", "").ok());
  const Status status = MakeFileRecord(dir_ / "file/state").status();
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find(dir_ / "file/state"), std::string::npos) << status.message();
}

}  // namespace
}  // namespace everstep::test
