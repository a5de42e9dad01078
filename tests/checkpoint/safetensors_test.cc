// The safetensors format: written and read back, read by Python, and hostile files.
#include "checkpoint/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "base/file.h"
#include "base/process.h"
#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

std::string File(const std::string& header, const std::string& data) {
  std::string out(8, '\0');
  for (size_t i = 0; i < 8; ++i) out[i] = static_cast<char>(header.size() >> (8 * i));
  return out + header + data;
}

Result<SafetensorsReader> OpenText(const TempDir& dir, const std::string& contents) {
  EVERSTEP_RETURN_IF_ERROR(WriteFileDurably(dir / "x.safetensors", contents));
  return SafetensorsReader::OpenPath(dir / "x.safetensors");
}

std::string ReadAll(const SafetensorsReader& reader, const StoredTensor& tensor) {
  std::string out(tensor.bytes(), '\0');
  EXPECT_TRUE(reader.Read(tensor, 0, std::as_writable_bytes(std::span(out.data(), out.size()))).ok());
  return out;
}

TEST(Safetensors, WhatIsLaidOutIsReadBack) {
  TempDir dir;
  std::vector<StoredTensor> tensors = {{"w", "F32", {2, 3}, 0, 0},
                                       {"empty", "F32", {0, 7}, 0, 0},
                                       {"scalar", "I64", {}, 0, 0},
                                       {"\"odd\\\n", "U8", {3}, 0, 0}};
  const std::string head = LayOutSafetensors(&tensors, {{"format", "pt"}, {"k", "\"v\""}}).value();
  EXPECT_EQ(head.size() % 8, 0u);
  EXPECT_EQ(tensors[3].end, 24u + 8 + 3);
  const std::string data = "abcdefghijklmnopqrstuvwxABCDEFGH123";
  const auto reader = OpenText(dir, head + data);
  ASSERT_TRUE(reader.ok()) << reader.status().ToString();
  EXPECT_EQ(reader->header().metadata.at("k"), "\"v\"");
  EXPECT_EQ(reader->header().tensors.size(), 4u);
  for (const StoredTensor& t : tensors) {
    ASSERT_NE(reader->header().Find(t.name), nullptr);
    EXPECT_EQ(*reader->header().Find(t.name), t);
    EXPECT_EQ(ReadAll(*reader, t), data.substr(t.begin, t.bytes()));
  }
  EXPECT_EQ(reader->header().Find("none"), nullptr);
}

TEST(Safetensors, WhatCannotBeWrittenIsRefused) {
  std::vector<StoredTensor> twice = {{"a", "F32", {1}, 0, 0}, {"a", "F32", {1}, 0, 0}};
  EXPECT_EQ(LayOutSafetensors(&twice, {}).status().code(), Code::kInvalidArgument);
  std::vector<StoredTensor> unknown = {{"a", "F33", {1}, 0, 0}};
  EXPECT_EQ(LayOutSafetensors(&unknown, {}).status().code(), Code::kInvalidArgument);
  std::vector<StoredTensor> huge = {{"a", "F32", {1ull << 62, 1ull << 62}, 0, 0}};
  EXPECT_EQ(LayOutSafetensors(&huge, {}).status().code(), Code::kInvalidArgument);
}

struct Hostile {
  std::string header;
  std::string data;
  std::string why;
};

TEST(Safetensors, HostileFilesAreRefusedWithAReason) {
  TempDir dir;
  const auto one = [](const std::string& fields) { return "{\"a\":{" + fields + "}}"; };
  const std::vector<Hostile> files = {
      {"", "", "no JSON"},
      {"[]", "", "list"},
      {"{", "", "no JSON"},
      {"{}", "xxxx", "belong to no tensor"},
      {"{}{}", "", "no JSON"},
      {"{\"a\":3}", "", "number"},
      {one("\"dtype\":\"F32\",\"shape\":[1]"), "xxxx", "lacks"},
      {one("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"more\":1"), "xxxx", "unknown field"},
      {one("\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"), "xxxx", "twice"},
      {one("\"dtype\":\"F99\",\"shape\":[1],\"data_offsets\":[0,4]"), "xxxx", "unknown dtype"},
      {one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]"), "xxxx", "do not fit"},
      {one("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]"), "xxxx", "number"},
      {one("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]"), "xxxx", "two data_offsets"},
      {one("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"), "xxxxxxxx", "gap"},
      {one("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]"), "xxxx", "gap"},
      {one("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]"), "xxxx", "cut off"},
      {one("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"), "xxxxx", "belong to no tensor"},
      {one("\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]"), "xxxx", "negative"},
      {one("\"dtype\":\"F32\",\"shape\":[1.5],\"data_offsets\":[0,4]"), "xxxx", "fraction"},
      {one("\"dtype\":\"F32\",\"shape\":[9223372036854775807,9223372036854775807],\"data_offsets\":[0,4]"), "xxxx",
       "impossible shape"},
      {one("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,18446744073709551615]"), "xxxx", "do not fit"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
       "\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[2,6]}}",
       "xxxxxx", "overlaps"},
      {"{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]},"
       "\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[2,4]}}",
       "xxxx", "twice"},
      {"{\"__metadata__\":{\"a\":1}}", "", "number"},
      {"{\"__metadata__\":{\"a\":{}}}", "", "object"},
      {std::string(100000, '['), "", "list"},
      {std::string(100000, '{'), "", "no JSON"},
  };
  for (const Hostile& h : files) {
    const auto reader = OpenText(dir, File(h.header, h.data));
    ASSERT_FALSE(reader.ok()) << h.header;
    EXPECT_EQ(reader.status().code(), Code::kCorrupt) << h.header;
    EXPECT_THAT(reader.status().message(), HasSubstr(h.why)) << h.header.substr(0, 200);
  }
  // Lengths that lie: beyond the file, beyond the format's bound, more than 64 bits can add.
  for (const uint64_t length : {uint64_t{100}, uint64_t{1} << 40, UINT64_MAX, UINT64_MAX - 7}) {
    std::string text = File("{}", "");
    std::memcpy(text.data(), &length, 8);
    EXPECT_THAT(OpenText(dir, text).status().message(), HasSubstr("cannot be")) << length;
  }
  EXPECT_THAT(OpenText(dir, "1234567").status().message(), HasSubstr("too short"));
  EXPECT_EQ(SafetensorsReader::OpenPath(dir / "none").status().code(), Code::kNotFound);
}

// Whatever the bytes: an answer, and no more than the file holds is ever read.
TEST(Safetensors, RandomChangesNeverCrash) {
  TempDir dir;
  const uint64_t seed = Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  std::vector<StoredTensor> tensors = {{"w", "F32", {2, 3}, 0, 0}, {"b", "I64", {2}, 0, 0}};
  const std::string good = LayOutSafetensors(&tensors, {{"k", "v"}}).value() + std::string(40, 'x');
  for (int i = 0; i < 3000; ++i) {
    std::string bad = good;
    for (uint64_t n = 1 + random.Below(3); n > 0; --n)
      bad[random.Below(bad.size())] = static_cast<char>(random.Below(256));
    if (random.Chance(0.3)) bad.resize(random.Below(bad.size()));
    uint64_t length = 0;
    if (bad.size() < 8) continue;
    std::memcpy(&length, bad.data(), 8);
    if (length > bad.size() - 8) continue;  // shown above
    const auto header = ParseSafetensorsHeader(std::string_view(bad).substr(8, length), bad.size() - 8 - length);
    if (!header.ok()) {
      EXPECT_EQ(header.status().code(), Code::kCorrupt);
      continue;
    }
    for (const StoredTensor& t : header->tensors) EXPECT_LE(header->data_begin + t.end, bad.size());
  }
}

// A reader of the format that shares no code with ours.
TEST(Safetensors, PythonReadsWhatIsWritten) {
  TempDir dir;
  std::vector<StoredTensor> tensors = {{"w", "F32", {2, 2}, 0, 0}, {"n", "I64", {}, 0, 0}};
  std::string text = LayOutSafetensors(&tensors, {{"format", "pt"}}).value();
  const float w[] = {1.5f, -2.0f, 0.25f, 1e-3f};
  const int64_t n = -7;
  text.append(reinterpret_cast<const char*>(w), sizeof w).append(reinterpret_cast<const char*>(&n), sizeof n);
  ASSERT_TRUE(WriteFileDurably(dir / "m.safetensors", text).ok());
  Process::Options options;
  options.output_path = dir / "out";
  auto python = Process::Start({"python3", EVERSTEP_READ_SAFETENSORS, dir / "m.safetensors"}, options);
  if (python.status().code() == Code::kNotFound) GTEST_SKIP() << "there is no python3 here";
  ASSERT_TRUE(python.ok()) << python.status().ToString();
  EXPECT_TRUE(python->Wait(std::chrono::seconds(60)).value().ok());
  const std::string out = ReadFile(dir / "out").value();
  EXPECT_THAT(out, HasSubstr("n I64 [] [-7]"));
  EXPECT_THAT(out, HasSubstr("w F32 [2, 2] [1.5, -2.0, 0.25, 0.001"));
}

}  // namespace
}  // namespace everstep::test
