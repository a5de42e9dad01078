// The manifest: round trip, and no changed byte goes unseen.
#include "checkpoint/manifest.h"

#include <gmock/gmock.h>

#include "base/checksum.h"
#include "tests/checkpoint/checkpoint_testing.h"
#include "tests/support/seed.h"

namespace everstep::test {
namespace {

using testing::HasSubstr;

Manifest Whole() {
  Manifest m = MakeManifest({42});
  for (const ShardSnapshot& shard : MakeShards(m, 3)) m.files.push_back({shard.file, 1000, 0xfeedface, shard.chunks});
  return m;
}

TEST(Manifest, IsReadBackAsItWasWritten) {
  const Manifest m = Whole();
  ASSERT_TRUE(Validate(m).ok()) << Validate(m).ToString();
  const std::string text = FormatManifest(m);
  const auto back = ParseManifest(text);
  ASSERT_TRUE(back.ok()) << back.status().ToString();
  EXPECT_TRUE(*back == m);
  EXPECT_EQ(FormatManifest(*back), text);
}

TEST(Manifest, AnyFlippedBitAndAnyCutAreFound) {
  const std::string text = FormatManifest(Whole());
  for (size_t at = 0; at < text.size(); ++at) {
    for (int bit = 0; bit < 8; bit += 5) {
      std::string bad = text;
      bad[at] = static_cast<char>(bad[at] ^ (1 << bit));
      ASSERT_EQ(ParseManifest(bad).status().code(), Code::kCorrupt) << "byte " << at << " bit " << bit;
    }
    ASSERT_EQ(ParseManifest(text.substr(0, at)).status().code(), Code::kCorrupt) << "cut at " << at;
  }
  EXPECT_EQ(ParseManifest(text + "x").status().code(), Code::kCorrupt);
}

TEST(Manifest, WhatMakesNoSenseIsRefused) {
  const auto refuses = [](const char* why, auto change) {
    Manifest m = Whole();
    change(m);
    const Status valid = Validate(m);
    EXPECT_EQ(valid.code(), Code::kCorrupt) << why;
    EXPECT_THAT(valid.message(), HasSubstr(why));
    EXPECT_EQ(ParseManifest(FormatManifest(m)).status().code(), Code::kCorrupt) << why;
  };
  refuses("another version", [](Manifest& m) { m.version = {41}; });
  refuses("digest", [](Manifest& m) { m.seal.learning_rate *= 2; });
  refuses("two files", [](Manifest& m) { m.files[1].chunks.front() = {0}; });
  refuses("none of its files", [](Manifest& m) { m.files.pop_back(); });
  refuses("not of label", [](Manifest& m) { m.files[0].name = "../x"; });
  refuses("not of label", [](Manifest& m) { m.files[0].name = ShardFileName(MakeManifest({43}).label, {0}); });
  refuses("no parameters", [](Manifest& m) { m.arrays = {"momentum"}; });
  refuses("impossible array", [](Manifest& m) { m.arrays.push_back("momentum"); });
}

TEST(Manifest, ANewerFormatIsNamed) {
  std::string inner = FormatManifest(Whole());
  inner = inner.substr(inner.find("\"manifest\":") + 11);
  inner = inner.substr(0, inner.size() - 2);
  const size_t at = inner.find("\"format\":1");
  ASSERT_NE(at, std::string::npos);
  inner.replace(at, 10, "\"format\":9");
  char sum[20];
  std::snprintf(sum, sizeof sum, "%016llx", static_cast<unsigned long long>(Checksum64(inner)));
  const auto read = ParseManifest("{\"checksum\":\"" + std::string(sum) + "\",\"manifest\":" + inner + "}\n");
  EXPECT_EQ(read.status().code(), Code::kWrongVersion);
  EXPECT_THAT(read.status().message(), HasSubstr("format 9"));
}

TEST(Manifest, NamesAreParsed) {
  std::string label;
  Version version;
  const std::string made = CheckpointLabel({7}, {0xdeadbeef12345678}, {5});
  EXPECT_EQ(made, "v000000000007-12345678-5");
  for (const std::string& name : {ManifestName(made), ShardFileName(made, {12})}) {
    EXPECT_TRUE(ParseCheckpointName(name, &label, &version)) << name;
    EXPECT_EQ(label, made);
    EXPECT_EQ(version.value, 7u);
  }
  for (const char* name : {"", "v", "v7-12345678-5.manifest.json", "v000000000007-12345678-5", "lock",
                           "v000000000007-12345678-.manifest.json", "v000000000007-1234567-5.manifest.json",
                           "v99999999999999999999-12345678-5.manifest.json", "v000000000007-12345678-5-psx"}) {
    EXPECT_FALSE(ParseCheckpointName(name, &label, &version)) << name;
  }
}

}  // namespace
}  // namespace everstep::test
