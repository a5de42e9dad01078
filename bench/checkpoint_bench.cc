// everstep-bench-checkpoint: what a checkpoint costs the step, and how fast it is written. One process, the server's
// own parts: the update of a whole model (ps/kernels) with and without a checkpoint of each version under way, beside
// one memory copy of the model; then the background writer beside plain write + fsync of as many bytes.
//
// The stall of a step is what its update takes longer because the state is shared with the writer: sharing it, and
// copying what the writer still holds. Rounds alternate, so that both meet the same machine.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/shard_writer.h"
#include "ps/kernels/shard_math.h"

namespace everstep::bench {
namespace {

struct Options {
  uint64_t megabytes = 400;
  int rounds = 20;
  double mb_per_s = 200;
  std::string folder;
};

double Median(std::vector<double> v) {
  std::nth_element(v.begin(), v.begin() + static_cast<long>(v.size() / 2), v.end());
  return v[v.size() / 2];
}

class Model {
 public:
  explicit Model(uint64_t bytes)
      : layout_(ChunkLayout::Make({{{"w", {static_cast<int64_t>(bytes / 4)}, DType::kFloat32, Role::kTrainable}}},
                                  1 << 20)) {
    OptimizerOptions o;
    o.momentum = 0.9;
    math_ = std::make_unique<kernels::ShardMath>(o, layout_);
    for (const Chunk& chunk : layout_->chunks()) {
      for (std::vector<Buffer>* list : {&parameters_, &sums_}) {
        MutableBuffer b(chunk.bytes);
        for (size_t i = 0; i < chunk.bytes / 4; ++i) b.as<float>()[i] = static_cast<float>(i % 97) * 1e-3f;
        list->push_back(std::move(b).Freeze());
      }
    }
  }

  size_t chunks() const { return layout_->size(); }
  double Update() {
    const Time began = SteadyNow();
    std::vector<Buffer> next(chunks());
    const kernels::ApplyOptions options{0.01, 1, ++updates_};
    kernels::ForEachChunk(chunks(), [&](size_t i) {
      next[i] = math_->Apply({static_cast<uint32_t>(i)}, parameters_[i], sums_[i], options);
    });
    parameters_ = std::move(next);
    return Milliseconds(SteadyNow() - began);
  }
  ShardSnapshot Share() {
    ShardSnapshot s{
        ShardFileName(CheckpointLabel({updates_ + 1}, {1}, {1}), {0}), {1}, {updates_ + 1}, {1}, {}, {}, {}};
    for (uint32_t i = 0; i < chunks(); ++i) {
      s.chunks.push_back({i});
      s.parameters.push_back(parameters_[i]);
      s.state.push_back(math_->ShareState({i}));
    }
    return s;
  }
  // One copy of the model, on one thread, to memory that was touched before.
  double Copy() {
    if (copies_.empty()) {
      for (const Buffer& b : parameters_) std::memset(copies_.emplace_back(b.size()).data(), 0, b.size());
    }
    const Time began = SteadyNow();
    for (size_t i = 0; i < chunks(); ++i) std::memcpy(copies_[i].data(), parameters_[i].data(), parameters_[i].size());
    return Milliseconds(SteadyNow() - began);
  }
  const std::vector<Buffer>& parameters() const { return parameters_; }

 private:
  std::shared_ptr<const ChunkLayout> layout_;
  std::unique_ptr<kernels::ShardMath> math_;
  std::vector<Buffer> parameters_, sums_;
  std::vector<MutableBuffer> copies_;
  uint64_t updates_ = 0;
};

// Plain write and fsync of the same buffers twice (parameters and state are of one size).
double PlainWrite(const std::string& path, const std::vector<Buffer>& buffers) {
  const Time began = SteadyNow();
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  for (int twice = 0; twice < 2; ++twice) {
    for (const Buffer& b : buffers) {
      if (write(fd, b.data(), b.size()) != static_cast<ssize_t>(b.size())) std::perror("write");
    }
  }
  if (fsync(fd) != 0) std::perror("fsync");
  close(fd);
  const double ms = Milliseconds(SteadyNow() - began);
  unlink(path.c_str());
  return ms;
}

int Run(const Options& o) {
  const std::string folder =
      o.folder.empty() ? (std::filesystem::temp_directory_path() / "everstep-bench-checkpoint").string() : o.folder;
  std::filesystem::create_directories(folder);
  const std::shared_ptr<Store> store = MakeDirectoryStore(folder, true).value();
  Model model(o.megabytes * 1000 * 1000);
  for (int i = 0; i < 3; ++i) (void)model.Update();
  {
    const ShardSnapshot warm = model.Share();
    (void)model.Update();
  }  // the copies' pages are touched once

  std::vector<double> plain, held, writing, share, copy;
  for (int i = 0; i < o.rounds; ++i) {
    plain.push_back(model.Update());
    copy.push_back(model.Copy());
    {
      // All of the state is still held: the worst case.
      const Time began = SteadyNow();
      const ShardSnapshot all = model.Share();
      share.push_back(Milliseconds(SteadyNow() - began));
      held.push_back(model.Update());
    }
    // The writer is at work while the update runs.
    std::atomic<bool> cancelled{false};
    std::thread writer([&, snapshot = model.Share()]() mutable {
      (void)WriteShard(*store, std::move(snapshot), {static_cast<uint64_t>(o.mb_per_s * 1e6), &cancelled});
    });
    writing.push_back(model.Update());
    cancelled = true;
    writer.join();
  }
  std::vector<double> ours, pwrite;
  for (int i = 0; i < 3; ++i) {
    pwrite.push_back(PlainWrite(folder + "/plain", model.parameters()));
    const Time began = SteadyNow();
    const auto written = WriteShard(*store, model.Share(), {});
    ours.push_back(Milliseconds(SteadyNow() - began));
    if (!written.ok()) {
      std::fprintf(stderr, "%s\n", written.status().ToString().c_str());
      return 1;
    }
    (void)store->Delete(written->name);
  }
  const double mb = 2.0 * static_cast<double>(o.megabytes);
  const double stall = Median(held) + Median(share) - Median(plain);
  const double rate = mb / Median(ours) * 1000, plain_rate = mb / Median(pwrite) * 1000;
  std::printf("model %llu MB, SGD with momentum; medians of %d rounds, ms\n",
              static_cast<unsigned long long>(o.megabytes), o.rounds);
  std::printf("  update                              %8.1f\n", Median(plain));
  std::printf("  sharing the state                   %8.2f\n", Median(share));
  std::printf("  update, all of the state held       %8.1f   stall %.1f\n", Median(held), stall);
  std::printf("  update beside the writer (%.0f MB/s)  %8.1f\n", o.mb_per_s, Median(writing));
  std::printf("  one memory copy of the model        %8.1f\n", Median(copy));
  std::printf("  background writer, no bound         %8.0f MB/s (checksum, rename, folder sync included)\n", rate);
  std::printf("  plain write + fsync                 %8.0f MB/s   ratio %.2f\n", plain_rate, rate / plain_rate);
  std::printf("%s\n", nlohmann::json{{"bench", "checkpoint"},
                                     {"model_mb", o.megabytes},
                                     {"update_ms", Median(plain)},
                                     {"share_ms", Median(share)},
                                     {"update_held_ms", Median(held)},
                                     {"update_beside_writer_ms", Median(writing)},
                                     {"stall_ms", stall},
                                     {"copy_ms", Median(copy)},
                                     {"writer_mb_s", rate},
                                     {"plain_mb_s", plain_rate}}
                          .dump()
                          .c_str());
  std::filesystem::remove_all(folder);
  return 0;
}

}  // namespace
}  // namespace everstep::bench

int main(int argc, char** argv) {
  CLI::App app{"everstep-bench-checkpoint: what a checkpoint costs the step, and how fast it is written"};
  everstep::bench::Options options;
  app.add_option("--megabytes", options.megabytes, "Size of the model")->capture_default_str();
  app.add_option("--rounds", options.rounds)->capture_default_str();
  app.add_option("--rate", options.mb_per_s, "MB/s of the writer beside the update")->capture_default_str();
  app.add_option("--folder", options.folder, "Where to write (emptied at the end); default: a temporary folder");
  CLI11_PARSE(app, argc, argv);
  return everstep::bench::Run(options);
}
