#include "bench/step/report.h"

#include <sys/sysinfo.h>
#include <sys/utsname.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

namespace everstep::bench {
namespace {

// Those that others are compared with, and the heads of their columns.
struct Reference {
  const char* name;
  const char* head;
};
constexpr Reference kReferences[] = {{"fused sum + sgd", "/fused"},   {"memcpy, 1 thread", "/copy1"},
                                     {"memcpy, 2 threads", "/copy2"}, {"plain tcp sockets", "/tcp"},
                                     {"plain unix sockets", "/unix"}, {"gloo all-reduce + sgd", "/gloo"}};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

std::optional<double> Ratio(const Measured& of, const Measured& to) {
  if (of.ms.empty() || of.ms.size() != to.ms.size()) return std::nullopt;
  std::vector<double> ratios;
  for (size_t i = 0; i < of.ms.size(); ++i) ratios.push_back(of.ms[i] / to.ms[i]);
  return Median(std::move(ratios));
}

const Measured* Find(const CellResult& result, const char* name) {
  for (const Measured& m : result.measured) {
    if (m.name == name) return &m;
  }
  return nullptr;
}

std::string Printed(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

std::string Megabytes(uint64_t bytes) { return Printed("%.3g", static_cast<double>(bytes) / 1e6); }

}  // namespace

double LoadAverage() {
  double load = 0;
  std::ifstream("/proc/loadavg") >> load;
  return load;
}

Machine DescribeMachine() {
  Machine machine;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line) && machine.processor.empty();) {
    if (line.starts_with("model name")) machine.processor = line.substr(line.find(':') + 2);
  }
  utsname name{};
  if (uname(&name) == 0) machine.kernel = name.release;
  struct sysinfo info {};
  if (sysinfo(&info) == 0) machine.memory_gib = static_cast<double>(info.totalram) * info.mem_unit / (1 << 30);
  machine.cores = std::thread::hardware_concurrency();
  machine.load_before = LoadAverage();
  return machine;
}

std::string CellTable(const CellResult& result) {
  const std::string size = Megabytes(result.cell.bytes);
  size_t rounds = 0;
  for (const Measured& m : result.measured) rounds = std::max(rounds, m.ms.size());
  std::string text = Printed("\n%s MB, %u worker%s, %zu rounds\n", size.c_str(), result.cell.workers,
                             result.cell.workers == 1 ? "" : "s", rounds);
  text += Printed("  %-26s %9s %17s", "", "ms/step", "min .. max");
  for (const Reference& reference : kReferences) text += Printed(" %7s", reference.head);
  text += Printed(" %8s %9s %6s %15s\n", "cpu ms", "of it sys", "waits", "faults srv/wrk");
  for (const Measured& m : result.measured) {
    if (m.ms.empty()) {
      // Logs that explain it follow on lines of their own.
      text += Printed("  %-26s %9s  ", m.name.c_str(), "n/a") + m.missing + "\n";
      continue;
    }
    const auto [low, high] = std::minmax_element(m.ms.begin(), m.ms.end());
    text += Printed("  %-26s %9.3g %17s", m.name.c_str(), Median(m.ms), Printed("%.3g .. %.3g", *low, *high).c_str());
    for (const Reference& reference : kReferences) {
      const Measured* other = Find(result, reference.name);
      const auto ratio = other == nullptr ? std::nullopt : Ratio(m, *other);
      text += ratio ? Printed(" %7.2f", *ratio) : Printed(" %7s", "-");
    }
    text += Printed(" %8.3g %9.3g %6.0f %15s\n", m.user_ms + m.system_ms, m.system_ms, m.waits,
                    Printed("%.0f/%.0f", m.server_faults, m.worker_faults).c_str());
  }
  return text;
}

std::string ToJson(const Machine& machine, const std::string& command, const std::vector<CellResult>& results) {
  nlohmann::json json;
  json["bench"] = "step";
  json["command"] = command;
  json["machine"] = {
      {"processor", machine.processor},   {"kernel", machine.kernel},           {"cores", machine.cores},
      {"memory_gib", machine.memory_gib}, {"load_before", machine.load_before}, {"load_after", machine.load_after}};
  json["cells"] = nlohmann::json::array();
  for (const CellResult& result : results) {
    nlohmann::json cell{{"model_bytes", result.cell.bytes}, {"workers", result.cell.workers}};
    cell["results"] = nlohmann::json::array();
    for (const Measured& m : result.measured) {
      nlohmann::json entry{{"name", m.name}};
      if (m.ms.empty()) {
        entry["missing"] = m.missing;
      } else {
        const auto [low, high] = std::minmax_element(m.ms.begin(), m.ms.end());
        entry["ms"] = {{"median", Median(m.ms)}, {"min", *low}, {"max", *high}, {"rounds", m.ms}};
        entry["steps_per_round"] = m.steps;
        entry["cpu_user_ms"] = m.user_ms;
        entry["cpu_system_ms"] = m.system_ms;
        entry["waits"] = m.waits;
        entry["faults_servers"] = m.server_faults;
        entry["faults_workers"] = m.worker_faults;
        for (const Reference& reference : kReferences) {
          const Measured* other = Find(result, reference.name);
          if (const auto ratio = other == nullptr ? std::nullopt : Ratio(m, *other))
            entry["ratio_to"][reference.name] = *ratio;
        }
      }
      cell["results"].push_back(std::move(entry));
    }
    json["cells"].push_back(std::move(cell));
  }
  return json.dump();
}

}  // namespace everstep::bench
