#include "ctl/status_table.h"

#include <algorithm>
#include <vector>

#include "ctl/text.h"

namespace everstep::ctl {
namespace {

constexpr size_t kEventsShown = 10;

std::string Seconds(double ms) { return Format("%.1f s", ms / 1000); }

std::string Bytes(double bytes) {
  if (bytes < 1e3) return Format("%.0f B", bytes);
  if (bytes < 1e6) return Format("%.1f kB", bytes / 1e3);
  if (bytes < 1e9) return Format("%.1f MB", bytes / 1e6);
  return Format("%.2f GB", bytes / 1e9);
}

using Row = std::vector<std::string>;

// Columns as wide as their widest entry, numbers (all but the first column) flush right.
std::string Align(const std::vector<Row>& rows) {
  std::vector<size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    text += " ";
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      text += " " + (i == 0 ? row[i] + space : " " + space + row[i]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    text += "\n";
  }
  return text;
}

std::string Members(const json& status) {
  const json& members = At(status, "members");
  if (!members.is_array()) return "";
  std::string text = "workers " + std::to_string(members.size()) + " (at most " +
                     Format("%.0f", Number(status, "members_max")) + ")\n";
  if (members.empty()) return text;
  std::vector<Row> rows{{"name", "state", "samples", "contributions", "in job", "seen"}};
  for (const json& m : members) {
    const char* state = !Truth(m, "ready") ? "joining" : Truth(m, "working") ? "working" : "waiting";
    rows.push_back({Printable(Text(m, "name")), state, Format("%.0f", Number(m, "samples")),
                    Format("%.0f", Number(m, "contributions")), Seconds(Number(m, "in_job_s") * 1000),
                    Format("%.0f ms ago", Number(m, "seen_ms_ago"))});
  }
  return text + Align(rows);
}

std::string Servers(const json& status) {
  const json& servers = At(status, "servers");
  if (!servers.is_array()) return "";
  std::vector<Row> rows{{"name", "link", "chunks", "bytes", "address"}};
  for (const json& s : servers) {
    rows.push_back({Printable(Text(s, "name")), Truth(s, "connected") ? "up" : "DOWN",
                    Format("%.0f", Number(s, "chunks")), Bytes(Number(s, "bytes")), Printable(Text(s, "address"))});
  }
  return "servers " + std::to_string(servers.size()) + "\n" + (servers.empty() ? "" : Align(rows));
}

// All numbers of an object on one line: "joins 4  leaves 1".
std::string Numbers(const char* title, const json& object) {
  if (!object.is_object() || object.empty()) return "";
  std::string text = title;
  for (const auto& [key, value] : object.items()) {
    if (!value.is_number()) continue;
    std::string name = Printable(key);
    std::replace(name.begin(), name.end(), '_', ' ');
    text += "  " + name + " " + Format(value.is_number_float() ? "%.4g" : "%.0f", value.get<double>());
  }
  return text + "\n";
}

std::string Events(const json& status) {
  const json& events = At(status, "events");
  if (!events.is_array() || events.empty()) return "";
  std::string text = "last events\n";
  const double now = Number(status, "now_ms");
  for (size_t i = events.size() - std::min(events.size(), kEventsShown); i < events.size(); ++i) {
    const std::string ago = Seconds(now - Number(events[i], "at_ms")) + " ago";
    text += "  " + std::string(ago.size() < 14 ? 14 - ago.size() : 0, ' ') + ago + "  " + EventText(events[i]) + "\n";
  }
  return text;
}

}  // namespace

std::string EventText(const json& event) {
  const std::string detail = Printable(Text(event, "detail"));
  return Printable(Text(event, "kind")) + " " + Printable(Text(event, "target")) +
         (detail.empty() ? "" : ": " + detail);
}

std::string ProgressLine(const json& status) {
  std::string text = "step " + Format("%.0f", Number(status, "step"));
  if (Number(status, "steps_total") > 0) text += "/" + Format("%.0f", Number(status, "steps_total"));
  const json& metrics = At(status, "metrics");
  if (At(metrics, "loss").is_number()) text += "  loss " + Format("%.4f", Number(metrics, "loss"));
  text += "  " + Format("%.0f", Number(status, "samples_per_second")) + " samples/s";
  size_t ready = 0;
  const json& members = At(status, "members");
  if (members.is_array()) {
    ready = static_cast<size_t>(
        std::count_if(members.begin(), members.end(), [](const json& m) { return Truth(m, "ready"); }));
  }
  text += "  " + std::to_string(ready) + (ready == 1 ? " worker" : " workers");
  if (Text(status, "state") == "paused") text += "  PAUSED: fewer workers than the job's minimum";
  return text;
}

std::string StatusTable(const json& status) {
  const json& server = At(status, "server");
  const std::string own = Numbers("this server", server);
  if (!At(status, "job").is_string()) {
    return "a server that does not coordinate (" + Printable(Text(status, "state")) +
           "); ask the first server of the job for everything else\n" + own +
           Numbers("transport  ", At(status, "transport"));
  }
  std::string text = "job " + Printable(Text(status, "job")) + "  " + Printable(Text(status, "state")) + "  (" +
                     Printable(Text(status, "mode")) + ", uid " + Printable(Text(status, "uid")) + ", ballot " +
                     Format("%.0f", Number(status, "ballot")) + ")\n";
  text += ProgressLine(status) + "\n";
  if (!Text(status, "failure").empty()) text += "FAILED: " + Printable(Text(status, "failure")) + "\n";
  text += Numbers("step ms  ", At(status, "step_ms"));
  text += Numbers("metrics  ", At(status, "metrics"));
  text += Numbers("samples  ", At(status, "samples"));
  text += Members(status) + Servers(status);
  text += Numbers("counters ", At(status, "counters"));
  text += own + Numbers("transport", At(status, "transport"));
  text += Numbers("evaluation", At(status, "evaluation"));
  return text + Events(status);
}

}  // namespace everstep::ctl
