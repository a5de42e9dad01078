// Files of the built-in tasks: good ones give their numbers, bad ones a Status that says what is wrong.
#include <gmock/gmock.h>
#include <zlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "tests/support/seed.h"
#include "tests/support/temp_dir.h"
#include "worker/tasks/array_file.h"
#include "worker/tasks/data_file.h"
#include "worker/tasks/dataset.h"
#include "worker/tasks/text.h"

namespace everstep {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string BigEndian(uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16), static_cast<char>(value >> 8),
          static_cast<char>(value)};
}

std::string Idx(uint8_t type, const std::vector<uint32_t>& shape, const std::string& values) {
  std::string bytes = {0, 0, static_cast<char>(type), static_cast<char>(shape.size())};
  for (uint32_t size : shape) bytes += BigEndian(size);
  return bytes + values;
}

std::string Npy(const std::string& type, const std::string& shape, const std::string& values,
                const std::string& order = "False") {
  std::string header = "{'descr': '" + type + "', 'fortran_order': " + order + ", 'shape': " + shape + ", }";
  header.resize((10 + header.size() + 64) / 64 * 64 - 10, ' ');
  header.back() = '\n';
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(header.size() & 0xff);
  bytes += static_cast<char>(header.size() >> 8);
  return bytes + header + values;
}

template <typename T>
std::string Raw(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

void Write(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
  ASSERT_EQ(std::filesystem::file_size(path), contents.size());
}

void WriteGzip(const std::string& path, const std::string& contents) {
  gzFile file = gzopen(path.c_str(), "wb");
  ASSERT_EQ(gzwrite(file, contents.data(), static_cast<unsigned>(contents.size())), static_cast<int>(contents.size()));
  ASSERT_EQ(gzclose(file), Z_OK);
}

std::string Contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

template <typename T>
const std::vector<T>& ValuesOf(const Array& array) {
  return std::get<std::vector<T>>(array.values);
}

// ---- data_file ----

TEST(DataFile, ReadsPlainAndPackedFilesAlike) {
  test::TempDir dir;
  const std::string contents = "some\0data" + std::string(3 << 20, 'x');
  Write(dir / "plain", contents);
  WriteGzip(dir / "packed", contents);
  EXPECT_EQ(ReadDataFile(dir / "plain").value(), contents);
  EXPECT_EQ(ReadDataFile(dir / "packed").value(), contents);
  Write(dir / "empty", "");
  EXPECT_EQ(ReadDataFile(dir / "empty").value(), "");
}

TEST(DataFile, AFileThatIsCutOffOrDamagedIsCorruptAndNamed) {
  test::TempDir dir;
  std::string noise;
  Random random(1);
  for (int i = 0; i < 100000; ++i) noise += static_cast<char>(random.Next());
  WriteGzip(dir / "whole", noise);
  const std::string packed = Contents(dir / "whole");
  for (size_t keep : {packed.size() - 1, packed.size() - 8, packed.size() / 2, size_t{11}}) {
    Write(dir / "cut", packed.substr(0, keep));
    const Result<std::string> read = ReadDataFile(dir / "cut");
    ASSERT_FALSE(read.ok()) << keep;
    EXPECT_EQ(read.status().code(), Code::kCorrupt);
    EXPECT_THAT(read.status().message(), HasSubstr(dir / "cut"));
  }
  std::string flipped = packed;
  flipped[flipped.size() / 2] ^= 1;
  Write(dir / "flipped", flipped);
  EXPECT_EQ(ReadDataFile(dir / "flipped").status().code(), Code::kCorrupt);
}

TEST(DataFile, WhatUnpacksToMoreThanAllowedIsRefused) {
  test::TempDir dir;
  WriteGzip(dir / "bomb", std::string(10 << 20, '\0'));
  ASSERT_LT(std::filesystem::file_size(dir / "bomb"), 20000u);
  EXPECT_EQ(ReadDataFile(dir / "bomb", 10 << 20).value().size(), 10u << 20);
  EXPECT_EQ(ReadDataFile(dir / "bomb", (10 << 20) - 1).status().code(), Code::kResourceExhausted);
}

TEST(DataFile, MissingFilesAndFoldersAreToldApart) {
  test::TempDir dir;
  EXPECT_EQ(ReadDataFile(dir / "missing").status().code(), Code::kNotFound);
  EXPECT_EQ(ReadDataFile(dir.path()).status().code(), Code::kInvalidArgument);
}

// ---- IDX ----

TEST(Idx, ReadsBytesIntegersAndFloats) {
  const Array bytes = ParseIdx(Idx(8, {2, 3}, "abcdef")).value();
  EXPECT_THAT(bytes.shape, ElementsAre(2, 3));
  EXPECT_THAT(ValuesOf<uint8_t>(bytes), ElementsAre('a', 'b', 'c', 'd', 'e', 'f'));
  const Array integers = ParseIdx(Idx(12, {2}, BigEndian(7) + BigEndian(0xffffffff))).value();
  EXPECT_THAT(ValuesOf<int64_t>(integers), ElementsAre(7, -1));
  const Array floats = ParseIdx(Idx(13, {1}, BigEndian(0x3f800000))).value();
  EXPECT_THAT(ValuesOf<float>(floats), ElementsAre(1.0f));
  EXPECT_EQ(ParseIdx(Idx(8, {0, 3}, "")).value().size(), 0u);
}

TEST(Idx, LengthsThatDoNotFitAreCorrupt) {
  const auto code = [](const std::string& bytes) { return ParseIdx(bytes).status().code(); };
  EXPECT_EQ(code(""), Code::kCorrupt);
  EXPECT_EQ(code("PK\x03\x04 something else"), Code::kCorrupt);
  EXPECT_EQ(code(Idx(8, {2, 3}, "abcde")), Code::kCorrupt);
  EXPECT_EQ(code(Idx(8, {2, 3}, "abcdefg")), Code::kCorrupt);
  EXPECT_EQ(code(Idx(8, {2, 3}, "abcdef").substr(0, 9)), Code::kCorrupt) << "cut in the header";
  EXPECT_EQ(code(Idx(8, {}, "")), Code::kCorrupt);
  EXPECT_EQ(code(Idx(8, std::vector<uint32_t>(255, 1), "a")), Code::kCorrupt);
  EXPECT_EQ(code(Idx(11, {1}, "ab")), Code::kCorrupt) << "16-bit integers";
  // Sizes whose product is 0 modulo 2^64.
  EXPECT_EQ(code(Idx(8, {0x80000000, 0x80000000, 4}, "")), Code::kCorrupt);
  EXPECT_EQ(code(Idx(8, std::vector<uint32_t>(8, 0xffffffff), "abc")), Code::kCorrupt);
}

// ---- .npy ----

TEST(Npy, ReadsTheTypesItNames) {
  const Array floats = ParseNpy(Npy("<f4", "(2, 2)", Raw<float>({1, 2, 3, 4}))).value();
  EXPECT_THAT(floats.shape, ElementsAre(2, 2));
  EXPECT_THAT(ValuesOf<float>(floats), ElementsAre(1, 2, 3, 4));
  EXPECT_THAT(ValuesOf<float>(ParseNpy(Npy("<f8", "(2,)", Raw<double>({1.5, -2}))).value()), ElementsAre(1.5f, -2.0f));
  EXPECT_THAT(ValuesOf<int64_t>(ParseNpy(Npy("<i8", "(1,)", Raw<int64_t>({-9}))).value()), ElementsAre(-9));
  EXPECT_THAT(ValuesOf<int64_t>(ParseNpy(Npy("<i4", "(1,)", Raw<int32_t>({-9}))).value()), ElementsAre(-9));
  EXPECT_THAT(ValuesOf<uint8_t>(ParseNpy(Npy("|u1", "(3,)", "abc")).value()), ElementsAre('a', 'b', 'c'));
  EXPECT_TRUE(ParseNpy(Npy("<f4", "()", Raw<float>({1}))).value().shape.empty());
}

TEST(Npy, ReadsVersionTwo) {
  std::string bytes = Npy("<f4", "(1,)", Raw<float>({1}));
  bytes[6] = 2;
  bytes.insert(10, 2, '\0');
  EXPECT_THAT(ValuesOf<float>(ParseNpy(bytes).value()), ElementsAre(1));
}

TEST(Npy, WhatDoesNotFitIsCorrupt) {
  const auto message = [](const std::string& bytes) {
    const Status status = ParseNpy(bytes).status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << bytes;
    return status.message();
  };
  const std::string good = Npy("<f4", "(2,)", Raw<float>({1, 2}));
  EXPECT_TRUE(ParseNpy(good).ok());
  message("");
  message("not numpy at all");
  message(good.substr(0, good.size() - 1));
  message(good + "x");
  message(good.substr(0, 60));
  EXPECT_THAT(message(Npy("<f4", "(2,)", Raw<float>({1, 2}), "True")), HasSubstr("C order"));
  EXPECT_THAT(message(Npy("<c8", "(1,)", Raw<double>({1}))), HasSubstr("astype"));
  EXPECT_THAT(message(Npy(">f4", "(1,)", Raw<float>({1}))), HasSubstr("astype"));
  EXPECT_THAT(message(Npy("<f4", "(-2,)", Raw<float>({1, 2}))), HasSubstr("shape"));
  EXPECT_THAT(message(Npy("<f4", "(2", Raw<float>({1, 2}))), HasSubstr("shape"));
  EXPECT_THAT(message(Npy("<f4", "2", Raw<float>({1, 2}))), HasSubstr("shape"));
  message(Npy("<f4", "(99999999999999999999,)", ""));
  message(Npy("<f4", "(4294967296, 4294967296)", ""));
  message(Npy("<f4", "(1,1,1,1,1,1,1,1,1)", Raw<float>({1})));
  std::string version = good;
  version[6] = 9;
  EXPECT_THAT(message(version), HasSubstr("version 9"));
}

// Whatever is done to a file's bytes, a parser answers.
TEST(Parsers, SurviveDamage) {
  const uint64_t seed = test::Seed();
  EVERSTEP_SEEDED(seed);
  Random random(seed);
  const std::string files[] = {Idx(8, {2, 3}, "abcdef"), Idx(13, {1, 1}, "abcd"),
                               Npy("<f4", "(2, 1)", Raw<float>({1, 2})), "a,b,c\n1,2,3\n4,5,6\n"};
  for (int round = 0; round < 4000; ++round) {
    std::string bytes = files[random.Below(std::size(files))];
    for (uint64_t i = random.Below(4); i < 4; ++i) bytes[random.Below(bytes.size())] = static_cast<char>(random.Next());
    if (random.Chance(0.3)) bytes.resize(random.Below(bytes.size() + 20));
    for (const auto& parse : {ParseIdx, ParseNpy}) {
      const Result<Array> array = parse(bytes);
      if (!array.ok()) continue;
      uint64_t elements = 1;
      for (int64_t size : array->shape) elements *= static_cast<uint64_t>(size);
      EXPECT_EQ(array->size(), elements);
    }
    const Result<Table> table = ParseCsv(bytes);
    if (!table.ok()) continue;
    EXPECT_EQ(table->features.size(), table->labels.size() * static_cast<uint64_t>(table->features.shape[1]));
  }
}

// ---- CSV ----

TEST(Csv, SplitsTheLastColumnOff) {
  const Table table = ParseCsv("x, y ,class\n1, 2.5 ,0\r\n\n-3,+4e1,1").value();
  EXPECT_THAT(table.features.shape, ElementsAre(2, 2));
  EXPECT_THAT(ValuesOf<float>(table.features), ElementsAre(1, 2.5, -3, 40));
  EXPECT_THAT(table.labels, ElementsAre(0, 1));
  EXPECT_EQ(ParseCsv("1,2\n").value().labels.size(), 1u) << "without a line of names";
}

TEST(Csv, BadLinesAreNamed) {
  const auto message = [](const char* text) {
    const Status status = ParseCsv(text).status();
    EXPECT_EQ(status.code(), Code::kCorrupt) << text;
    return status.message();
  };
  EXPECT_THAT(message("a,b\n1,2\n1,2,3\n"), HasSubstr("line 3: 3 columns"));
  EXPECT_THAT(message("1,2\n1,x\n"), HasSubstr("line 2: 'x'"));
  EXPECT_THAT(message("1,2\n1,\n"), HasSubstr("line 2: ''"));
  EXPECT_THAT(message("1,2\nnan,1\n"), HasSubstr("'nan'"));
  EXPECT_THAT(message("1,2\ninf,1\n"), HasSubstr("'inf'"));
  EXPECT_THAT(message("1,2\n1e999,1\n"), HasSubstr("'1e999'"));
  EXPECT_THAT(message("1\n2\n"), HasSubstr("line 1"));
  message("");
  message("only,names\n");
}

// ---- Datasets ----

Array Floats(std::vector<int64_t> shape, std::vector<float> values) { return {std::move(shape), std::move(values)}; }

TEST(Dataset, GivesSamplesByIndex) {
  const Dataset dataset = Dataset::Make(Floats({3, 2}, {1, 2, 3, 4, 5, 6}), {7, 8, 9}, 0).value();
  EXPECT_EQ(dataset.size(), 3u);
  std::vector<float> sample(2);
  dataset.CopyFeatures(2, sample);
  EXPECT_THAT(sample, ElementsAre(5, 6));
  EXPECT_EQ(dataset.label(2), 9);
}

TEST(Dataset, ImagesHaveAChannelAndScaledPixels) {
  const Dataset dataset = Dataset::Make({{1, 1, 3}, std::vector<uint8_t>{0, 51, 255}}, {4}, 0).value();
  EXPECT_THAT(dataset.sample_shape(), ElementsAre(1, 1, 3));
  std::vector<float> sample(3);
  dataset.CopyFeatures(0, sample);
  EXPECT_THAT(sample, ElementsAre(0.0f, 0.2f, 1.0f));
}

TEST(Dataset, LimitKeepsTheFirstSamples) {
  EXPECT_EQ(Dataset::Make(Floats({3, 1}, {1, 2, 3}), {1, 2, 3}, 2).value().size(), 2u);
  EXPECT_EQ(Dataset::Make(Floats({3, 1}, {1, 2, 3}), {1, 2, 3}, 5).value().size(), 3u);
}

TEST(Dataset, NumbersThatDoNotAgreeAreRefused) {
  const auto code = [](Array features, std::vector<double> labels) {
    return Dataset::Make(std::move(features), std::move(labels), 0).status().code();
  };
  EXPECT_EQ(code(Floats({2, 1}, {1, 2}), {1}), Code::kInvalidArgument);
  EXPECT_EQ(code(Floats({0, 1}, {}), {}), Code::kInvalidArgument);
  EXPECT_EQ(code(Floats({2, 0}, {}), {1, 2}), Code::kInvalidArgument);
  EXPECT_EQ(code(Floats({}, {1}), {1}), Code::kInvalidArgument);
  EXPECT_EQ(code(Floats({1, 1}, {NAN}), {1}), Code::kInvalidArgument);
}

TEST(Dataset, EveryTenthSampleIsHeldOut) {
  std::vector<float> values(25);
  std::vector<double> labels(25);
  for (int i = 0; i < 25; ++i) values[i] = static_cast<float>(labels[i] = i);
  Dataset train = Dataset::Make(Floats({25, 1}, values), labels, 0).value();
  const Dataset held_out = train.SplitOffHeldOut().value();
  ASSERT_EQ(train.size(), 23u);
  ASSERT_EQ(held_out.size(), 2u);
  EXPECT_EQ(held_out.label(0), 9);
  EXPECT_EQ(held_out.label(1), 19);
  EXPECT_EQ(train.label(9), 10);
  EXPECT_EQ(train.label(22), 24);
  std::vector<float> sample(1);
  train.CopyFeatures(22, sample);
  EXPECT_EQ(sample[0], 24);
  Dataset few = Dataset::Make(Floats({9, 1}, std::vector<float>(9)), std::vector<double>(9), 0).value();
  EXPECT_EQ(few.SplitOffHeldOut().status().code(), Code::kInvalidArgument);
}

TEST(LoadDataset, ReadsEachKindOfFile) {
  test::TempDir dir;
  std::string csv;
  std::vector<float> features;
  std::vector<int64_t> labels;
  for (int i = 0; i < 20; ++i) {
    csv += std::to_string(i) + "," + std::to_string(i % 3) + "\n";
    features.push_back(static_cast<float>(i));
    labels.push_back(i % 3);
  }
  Write(dir / "data.csv", csv);
  WriteGzip(dir / "data.csv.gz", csv);
  Write(dir / "x.npy", Npy("<f4", "(20, 1)", Raw(features)));
  Write(dir / "y.npy", Npy("<i8", "(20,)", Raw(labels)));
  for (const std::vector<std::string>& paths :
       {std::vector{dir / "data.csv"}, std::vector{dir / "data.csv.gz"}, std::vector{dir / "x.npy", dir / "y.npy"}}) {
    SCOPED_TRACE(paths[0]);
    Result<TrainAndHeldOut> data = LoadDataset(paths, 0);
    ASSERT_TRUE(data.ok()) << data.status().ToString();
    EXPECT_EQ(data->train.size(), 18u);
    EXPECT_EQ(data->held_out.size(), 2u);
    EXPECT_EQ(data->held_out.label(1), 19 % 3);
    EXPECT_THAT(data->train.sample_shape(), ElementsAre(1));
  }
  EXPECT_EQ(LoadDataset({dir / "data.csv"}, 10).value().train.size(), 9u);
}

TEST(LoadDataset, SaysWhatIsWrongWithWhichFile) {
  test::TempDir dir;
  const auto error = [](const std::vector<std::string>& paths) { return LoadDataset(paths, 0).status(); };
  EXPECT_EQ(error({}).code(), Code::kInvalidArgument);
  EXPECT_EQ(error({"a", "b", "c"}).code(), Code::kInvalidArgument);
  EXPECT_EQ(error({dir / "no.csv"}).code(), Code::kNotFound);
  EXPECT_THAT(error({dir / "no.csv"}).message(), HasSubstr(dir / "no.csv"));
  Write(dir / "bad.csv", "1,2\n1,x\n");
  EXPECT_THAT(error({dir / "bad.csv"}).message(), HasSubstr(dir / "bad.csv: line 2"));
  Write(dir / "x.npy", Npy("<f4", "(2, 1)", Raw<float>({1, 2})));
  Write(dir / "y.npy", Npy("<i8", "(2, 1)", Raw<int64_t>({1, 2})));
  EXPECT_THAT(error({dir / "x.npy", dir / "y.npy"}).message(), HasSubstr(dir / "y.npy: labels"));
}

TEST(LoadFashionMnist, NamesThePackageWhenItIsMissing) {
  test::TempDir dir;
  const Status status = LoadFashionMnist(dir.path(), 0).status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr("dataset-fashion-mnist"));
}

TEST(LoadFashionMnist, RefusesOtherImages) {
  test::TempDir dir;
  for (const char* part : {"train", "t10k"}) {
    WriteGzip(dir / (std::string(part) + "-images-idx3-ubyte.gz"), Idx(8, {1, 2, 2}, "abcd"));
    WriteGzip(dir / (std::string(part) + "-labels-idx1-ubyte.gz"), Idx(8, {1}, std::string(1, '\0')));
  }
  EXPECT_EQ(LoadFashionMnist(dir.path(), 0).status().code(), Code::kCorrupt);
}

TEST(LoadFashionMnist, ReadsDebiansFiles) {
  const Result<TrainAndHeldOut> data = LoadFashionMnist("", 0);
  if (data.status().code() == Code::kNotFound) GTEST_SKIP() << data.status().message();
  ASSERT_TRUE(data.ok()) << data.status().ToString();
  EXPECT_EQ(data->train.size(), 60000u);
  EXPECT_EQ(data->held_out.size(), 10000u);
  EXPECT_EQ(data->train.label(0), 9);
  EXPECT_EQ(LoadFashionMnist("", 100).value().held_out.size(), 100u);
}

// ---- Text ----

TEST(LoadText, KeepsTheTailOfEachFileForEvaluation) {
  test::TempDir dir;
  Write(dir / "b.txt", "bbbbbbbbbbbbbbbbbbBB");
  Write(dir / "a.txt", "aaaaaaaaaA");
  std::filesystem::create_directory(dir / "sub");
  Write(dir / "sub/c.txt", "cccc");
  Write(dir / ".hidden", "hhhhhhhhhhhhhhhhhhhh");
  std::filesystem::create_directory(dir / ".git");
  Write(dir / ".git/config", "gggggggggggggggggggg");
  std::filesystem::create_symlink("a.txt", dir / "link.txt");
  const Text text = LoadText(dir.path()).value();
  EXPECT_EQ(text.train, "aaaaaaaaabbbbbbbbbbbbbbbbbbcccc");
  EXPECT_EQ(text.held_out, "ABB");
  EXPECT_EQ(LoadText(dir / "a.txt").value().held_out, "A");
}

TEST(LoadText, MissingPathsAreNamed) {
  test::TempDir dir;
  const Status status = LoadText(dir / "nowhere").status();
  EXPECT_EQ(status.code(), Code::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(dir / "nowhere"));
}

}  // namespace
}  // namespace everstep
