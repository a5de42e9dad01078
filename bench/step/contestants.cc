#include "bench/step/contestants.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/file.h"
#include "base/process.h"
#include "bench/step/control.h"
#include "bench/step/workload.h"
#include "ps/kernels/shard_math.h"

namespace everstep::bench {
namespace {

constexpr Duration kServerPatience = std::chrono::seconds(30);

// Names of children and of their sockets, unique within the bench.
std::string NextPrefix() {
  static unsigned count = 0;
  return "c" + std::to_string(++count) + "-";
}

std::string Number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.9g", value);
  return text;
}

std::vector<pid_t> PidsOf(const std::vector<Child>& children) {
  std::vector<pid_t> pids;
  for (const Child& child : children) pids.push_back(child.pid());
  return pids;
}

// One child for each worker of the cell.
Status StartWorkers(const std::vector<std::string>& argv, const Surroundings& around, const Cell& cell,
                    const std::string& prefix, std::vector<Child>* children) {
  for (unsigned i = 0; i < cell.workers; ++i) {
    std::vector<std::string> own = argv;
    own.insert(own.end(), {"--index", std::to_string(i), "--workers", std::to_string(cell.workers), "--bytes",
                           std::to_string(cell.bytes)});
    EVERSTEP_ASSIGN(Child child, Child::Start(std::move(own), around.folder, prefix + "w" + std::to_string(i)));
    children->push_back(std::move(child));
  }
  return Status::Ok();
}

class EverstepContestant : public Contestant {
 public:
  EverstepContestant(const Surroundings& around, const Cell& cell, const EverstepOptions& options)
      : around_(around),
        cell_(cell),
        options_(options),
        programs_(options.programs.empty() ? around.programs : options.programs),
        prefix_(NextPrefix()) {}
  ~EverstepContestant() override {
    for (Child& child : children_) child.Quit();
    for (Process& server : servers_) (void)server.Signal(SIGTERM);
    for (Process& server : servers_) (void)server.Wait(std::chrono::seconds(5));
  }

  std::string name() const override {
    std::string name = "everstep " + options_.scheme + ", " + std::to_string(options_.servers) + " srv";
    if (options_.chunk_bytes > 0) name += ", " + std::to_string(options_.chunk_bytes >> 10) + "K";
    return name + (options_.programs.empty() ? "" : ", other");
  }
  // Workers: model, gradient, what is pushed, what is pulled. Servers: a slot a worker, sum, state, three versions.
  uint64_t memory() const override { return cell_.bytes * (5 * cell_.workers + 6) + (uint64_t{256} << 20); }

  Status Start() override {
    for (unsigned i = 0; i < options_.servers; ++i) EVERSTEP_RETURN_IF_ERROR(StartServer(i));
    std::vector<std::string> argv{programs_ + "/everstep-bench-step", "--role", "worker", "--address", coordinator_};
    if (options_.programs.empty()) argv.insert(argv.end(), {"--sharing", Sharing()});
    return StartWorkers(argv, around_, cell_, prefix_, &children_);
  }
  Result<Duration> Run(uint64_t steps) override {
    Result<Duration> took = Child::RunAll(children_, steps);
    if (took.ok()) return took;
    std::string logs;
    for (unsigned i = 0; i < servers_.size(); ++i) logs += "ps" + std::to_string(i) + TailOf(PathOf(i) + ".log");
    return Status(took.status().code(), took.status().message() + "\n" + logs);
  }
  std::vector<pid_t> servers() const override {
    std::vector<pid_t> pids;
    for (const Process& server : servers_) pids.push_back(server.pid());
    return pids;
  }
  std::vector<pid_t> workers() const override { return PidsOf(children_); }

 private:
  std::string Sharing() const {
    return options_.scheme.starts_with("shm-") ? options_.scheme.substr(4) : std::string("none");
  }
  std::string PathOf(unsigned server) const { return around_.folder + "/" + prefix_ + "ps" + std::to_string(server); }

  Status StartServer(unsigned i) {
    const std::string path = PathOf(i);
    std::vector<std::string> argv{programs_ + "/everstep-ps",
                                  "--server-name",
                                  "ps" + std::to_string(i),
                                  "--listen",
                                  options_.scheme == "ipc" ? "ipc://" + path : "tcp://127.0.0.1:0",
                                  "--address-file",
                                  path + ".address",
                                  "--no-progress"};
    if (Sharing() == "none") argv.push_back("--no-shared-memory");
    if (options_.server_threads > 0) argv.insert(argv.end(), {"--threads", std::to_string(options_.server_threads)});
    if (i > 0) {
      argv.insert(argv.end(), {"--join", coordinator_});
    } else {
      const std::string workers = std::to_string(cell_.workers);
      argv.insert(argv.end(), {"--name",          "bench",
                               "--epochs",        "0",
                               "--max-steps",     "1000000000",
                               "--optimizer",     "sgd",
                               "--momentum",      Number(kMomentum),
                               "--learning-rate", Number(kLearningRate),
                               "--workers",       workers + ":" + workers,
                               "--batch",         workers,
                               "--servers",       std::to_string(options_.servers),
                               "--timeout-s",     "60"});
      if (options_.chunk_bytes > 0) argv.insert(argv.end(), {"--chunk-bytes", std::to_string(options_.chunk_bytes)});
    }
    Process::Options process;
    process.output_path = process.error_path = path + ".log";
    EVERSTEP_ASSIGN(Process server, Process::Start(argv, process));
    servers_.push_back(std::move(server));
    const Time deadline = SteadyNow() + kServerPatience;
    while (!FileExists(path + ".address")) {
      if (servers_.back().Poll() || SteadyNow() > deadline) {
        return {Code::kUnavailable, "everstep-ps did not come up" + TailOf(path + ".log")};
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    if (i > 0) return Status::Ok();
    EVERSTEP_ASSIGN(coordinator_, ReadFile(path + ".address"));
    coordinator_.erase(coordinator_.find_last_not_of('\n') + 1);
    return Status::Ok();
  }

  const Surroundings& around_;
  const Cell cell_;
  const EverstepOptions options_;
  const std::string programs_;
  const std::string prefix_;
  std::string coordinator_;
  std::vector<Process> servers_;
  std::vector<Child> children_;
};

class MemcpyContestant : public Contestant {
 public:
  MemcpyContestant(const Cell& cell, unsigned threads) : cell_(cell), threads_(threads) {}

  std::string name() const override {
    return "memcpy, " + std::to_string(threads_) + (threads_ == 1 ? " thread" : " threads");
  }
  uint64_t memory() const override { return cell_.bytes * (3 * cell_.workers + 1); }
  Status Start() override {
    const auto array = [&] { return std::vector<std::byte>(cell_.bytes, std::byte{1}); };
    published_ = array();
    for (unsigned i = 0; i < cell_.workers; ++i) {
      gradients_.push_back(array());
      slots_.push_back(array());
      models_.push_back(array());
    }
    return Status::Ok();
  }
  Result<Duration> Run(uint64_t steps) override {
    const Time begin = SteadyNow();
    std::vector<std::thread> others;
    for (unsigned t = 1; t < threads_; ++t) others.emplace_back([this, t, steps] { Copy(t, steps); });
    Copy(0, steps);
    for (std::thread& other : others) other.join();
    return SteadyNow() - begin;
  }
  std::vector<pid_t> workers() const override { return {getpid()}; }

 private:
  // This thread's share of each array.
  void Copy(unsigned thread, uint64_t steps) {
    const size_t from = cell_.bytes * thread / threads_;
    const size_t size = cell_.bytes * (thread + 1) / threads_ - from;
    for (uint64_t step = 0; step < steps; ++step) {
      for (unsigned i = 0; i < cell_.workers; ++i)
        std::memcpy(slots_[i].data() + from, gradients_[i].data() + from, size);
      for (unsigned i = 0; i < cell_.workers; ++i)
        std::memcpy(models_[i].data() + from, published_.data() + from, size);
    }
  }

  const Cell cell_;
  const unsigned threads_;
  std::vector<std::byte> published_;
  std::vector<std::vector<std::byte>> gradients_, slots_, models_;
};

class FusedPassContestant : public Contestant {
 public:
  explicit FusedPassContestant(const Cell& cell) : cell_(cell) {}

  std::string name() const override { return "fused sum + sgd"; }
  uint64_t memory() const override { return cell_.bytes * (cell_.workers + 6); }
  Status Start() override {
    OptimizerOptions optimizer;
    optimizer.momentum = kMomentum;
    layout_ = ChunkLayout::Make({{{"p", {static_cast<int64_t>(cell_.bytes / 4)}, DType::kFloat32, Role::kTrainable}}},
                                limits::kDefaultChunkBytes);
    math_ = std::make_unique<kernels::ShardMath>(optimizer, layout_);
    for (unsigned i = 0; i < cell_.workers; ++i) {
      const size_t begin = (i % 8) * 5 * 64;  // as in worker_role.cc
      MutableBuffer gradient(begin + cell_.bytes);
      float* const values = reinterpret_cast<float*>(gradient.data() + begin);
      std::fill(values, values + cell_.bytes / 4, GradientOf(i));
      gradients_.push_back(std::move(gradient).Freeze().Slice(begin, cell_.bytes));
    }
    MutableBuffer zero(cell_.bytes);
    std::memset(zero.data(), 0, zero.size());
    const Buffer initial = std::move(zero).Freeze();
    for (size_t i = 0; i < layout_->size(); ++i) parameters_.push_back(PartOf(initial, i));
    return Status::Ok();
  }
  Result<Duration> Run(uint64_t steps) override {
    const std::vector<double> weights(cell_.workers, 1.0 / cell_.workers);
    const Time begin = SteadyNow();
    for (uint64_t step = 0; step < steps; ++step) {
      const kernels::ShardMath::Version next = math_->NewVersion(++update_);
      std::vector<Buffer> before = parameters_;  // a server keeps the version before for its readers
      kernels::ForEachChunk(layout_->size(), [&](size_t i) {
        std::vector<Buffer> parts;
        for (const Buffer& gradient : gradients_) parts.push_back(PartOf(gradient, i));
        const ChunkId id{static_cast<uint32_t>(i)};
        parameters_[i] =
            math_->SumAndApply(id, next, before[i], parts, weights, {kLearningRate, 1, update_}).parameters;
        math_->Adopt(id);
      });
      before_ = std::move(before);
    }
    const Duration took = SteadyNow() - begin;
    for (const Buffer& part : parameters_) {
      EVERSTEP_RETURN_IF_ERROR(
          CheckParameters(reinterpret_cast<const float*>(part.data()), part.size() / 4, cell_.workers, update_));
    }
    return took;
  }
  std::vector<pid_t> workers() const override { return {getpid()}; }

 private:
  Buffer PartOf(const Buffer& whole, size_t chunk) const {
    return whole.Slice(chunk * limits::kDefaultChunkBytes, layout_->chunk({static_cast<uint32_t>(chunk)}).bytes);
  }

  const Cell cell_;
  std::shared_ptr<const ChunkLayout> layout_;
  std::unique_ptr<kernels::ShardMath> math_;
  std::vector<Buffer> gradients_, parameters_, before_;
  uint64_t update_ = 0;
};

class SocketsContestant : public Contestant {
 public:
  SocketsContestant(const Surroundings& around, const Cell& cell, const std::string& kind)
      : around_(around), cell_(cell), kind_(kind), prefix_(NextPrefix()) {}
  ~SocketsContestant() override {
    for (Child& child : children_) child.Quit();
    for (Child& child : hub_) child.Quit();
  }

  std::string name() const override { return "plain " + kind_ + " sockets"; }
  uint64_t memory() const override { return cell_.bytes * (3 * cell_.workers + 1); }
  Status Start() override {
    const std::vector<std::string> argv{around_.programs + "/everstep-bench-step", "--address",
                                        kind_ + ":" + around_.folder + "/" + prefix_ + "hub.address", "--role"};
    std::vector<std::string> hub = argv;
    hub.insert(hub.end(), {"hub", "--workers", std::to_string(cell_.workers), "--bytes", std::to_string(cell_.bytes)});
    EVERSTEP_ASSIGN(Child child, Child::Start(std::move(hub), around_.folder, prefix_ + "hub"));
    hub_.push_back(std::move(child));
    std::vector<std::string> spoke = argv;
    spoke.push_back("spoke");
    return StartWorkers(spoke, around_, cell_, prefix_, &children_);
  }
  Result<Duration> Run(uint64_t steps) override { return Child::RunAll(children_, steps); }
  std::vector<pid_t> servers() const override { return PidsOf(hub_); }
  std::vector<pid_t> workers() const override { return PidsOf(children_); }

 private:
  const Surroundings& around_;
  const Cell cell_;
  const std::string kind_;
  const std::string prefix_;
  std::vector<Child> hub_;
  std::vector<Child> children_;
};

class GlooContestant : public Contestant {
 public:
  GlooContestant(const Surroundings& around, const Cell& cell) : around_(around), cell_(cell), prefix_(NextPrefix()) {}
  ~GlooContestant() override {
    for (Child& child : children_) child.Quit();
  }

  std::string name() const override { return "gloo all-reduce + sgd"; }
  uint64_t memory() const override { return cell_.bytes * 4 * cell_.workers + cell_.workers * (uint64_t{200} << 20); }
  Status Start() override {
    if (cell_.workers < 2) return {Code::kInvalidArgument, "one rank has nobody to reduce with"};
    const std::string program = around_.programs + "/everstep-gloo-baseline";
    if (!FileExists(program)) {
      return {Code::kNotFound, "everstep-gloo-baseline was not built; it needs Debian's libtorch-dev and libgloo-dev"};
    }
    return StartWorkers({program, "--store", around_.folder + "/" + prefix_ + "store"}, around_, cell_, prefix_,
                        &children_);
  }
  Result<Duration> Run(uint64_t steps) override { return Child::RunAll(children_, steps); }
  std::vector<pid_t> workers() const override { return PidsOf(children_); }

 private:
  const Surroundings& around_;
  const Cell cell_;
  const std::string prefix_;
  std::vector<Child> children_;
};

}  // namespace

std::unique_ptr<Contestant> MakeEverstep(const Surroundings& around, const Cell& cell, const EverstepOptions& options) {
  return std::make_unique<EverstepContestant>(around, cell, options);
}

std::unique_ptr<Contestant> MakeMemcpy(const Cell& cell, unsigned threads) {
  return std::make_unique<MemcpyContestant>(cell, threads);
}

std::unique_ptr<Contestant> MakeFusedPass(const Cell& cell) { return std::make_unique<FusedPassContestant>(cell); }

std::unique_ptr<Contestant> MakeSockets(const Surroundings& around, const Cell& cell, const std::string& kind) {
  return std::make_unique<SocketsContestant>(around, cell, kind);
}

std::unique_ptr<Contestant> MakeGloo(const Surroundings& around, const Cell& cell) {
  return std::make_unique<GlooContestant>(around, cell);
}

}  // namespace everstep::bench
