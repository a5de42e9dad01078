#include "checkpoint/manifest_fields.h"

#include <cinttypes>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "base/limits.h"

namespace everstep::manifest_fields {
namespace {

using nlohmann::json;

std::string_view Name(DType dtype) { return dtype == DType::kFloat32 ? "float32" : "int64"; }
std::string_view Name(Role role) { return role == Role::kTrainable ? "trainable" : "buffer"; }

template <typename Enum>
constexpr int kCount = 0;
template <>
constexpr int kCount<Mode> = 3;
template <>
constexpr int kCount<OptimizerKind> = 3;
template <>
constexpr int kCount<ScheduleKind> = 4;
template <>
constexpr int kCount<DType> = 2;
template <>
constexpr int kCount<Role> = 2;

// ---- One list of fields a structure. `v` is a Writer or a Reader. ----

template <typename V>
void Fields(V& v, OptimizerOptions& o) {
  v.Optional("kind", o.kind);
  v.Optional("learning_rate", o.learning_rate);
  v.Optional("momentum", o.momentum);
  v.Optional("dampening", o.dampening);
  v.Optional("nesterov", o.nesterov);
  v.Optional("beta1", o.beta1);
  v.Optional("beta2", o.beta2);
  v.Optional("epsilon", o.epsilon);
  v.Optional("weight_decay", o.weight_decay);
}

template <typename V>
void Fields(V& v, ScheduleOptions& s) {
  v.Optional("kind", s.kind);
  v.Optional("warmup_steps", s.warmup_steps);
  v.Optional("total_steps", s.total_steps);
  v.Optional("step_size", s.step_size);
  v.Optional("gamma", s.gamma);
  v.Optional("final_scale", s.final_scale);
  v.Optional("decay_steps", s.decay_steps);
}

template <typename V>
void Fields(V& v, JobSpec& j) {
  v.Required("name", j.name);
  v.Required("mode", j.mode);
  v.Required("optimizer", j.optimizer);
  v.Required("schedule", j.schedule);
  v.Required("seed", j.seed);
  v.Required("chunk_bytes", j.chunk_bytes);
  v.Optional("clip_norm", j.clip_norm);
  v.Optional("batch", j.batch);
  v.Optional("epochs", j.epochs);
  v.Optional("max_steps", j.max_steps);
  v.Optional("servers", j.servers);
  v.Optional("replication", j.replication);
  v.Optional("verify_replicas", j.verify_replicas);
  v.Optional("min_workers", j.min_workers);
  v.Optional("max_workers", j.max_workers);
  v.Optional("quorum", j.quorum);
  v.Optional("grace_ns", j.grace);
  v.Optional("staleness", j.staleness);
  v.Optional("staleness_power", j.staleness_power);
  v.Optional("timeout_ns", j.timeout);
  v.Optional("task", j.task);
}

template <typename V>
void Fields(V& v, SampleRange& r) {
  v.Required("begin", r.begin);
  v.Required("end", r.end);
}

template <typename V>
void Fields(V& v, Lease& l) {
  v.RequiredHex("id", l.id.value);
  v.Required("epoch", l.epoch);
  v.Required("ranges", l.ranges);
}

template <typename V>
void Fields(V& v, LedgerState& l) {
  v.Required("epoch", l.epoch);
  v.Required("consumed", l.consumed);
}

template <typename V>
void Fields(V& v, Contribution& c) {
  v.RequiredHex("worker", c.worker.value);
  v.Required("base", c.base.value);
  v.RequiredHex("base_digest", c.base_digest.value);
  v.Required("lease", c.lease);
}

template <typename V>
void Fields(V& v, Seal& s) {
  v.Required("ballot", s.id.ballot.value);
  v.Required("step", s.id.step.value);
  v.Required("contributors", s.contributors);
  v.Required("weights", s.weights);
  v.Required("learning_rate", s.learning_rate);
  v.Required("clip_norm", s.clip_norm);
  v.Required("ledger", s.ledger_after);
  v.RequiredHex("previous", s.previous.value);
  v.RequiredHex("digest", s.digest.value);
}

template <typename V>
void Fields(V& v, TensorSpec& t) {
  v.Required("name", t.name);
  v.Required("shape", t.shape);
  v.Required("dtype", t.dtype);
  v.Required("role", t.role);
}

// A run of chunks [begin, end).
struct Run {
  uint64_t begin = 0;
  uint64_t end = 0;
};

template <typename V>
void Fields(V& v, Run& r) {
  v.Required("begin", r.begin);
  v.Required("end", r.end);
}

template <typename V>
void Fields(V& v, ManifestFile& f) {
  v.Required("name", f.name);
  v.Required("bytes", f.bytes);
  v.RequiredHex("checksum", f.checksum);
  std::vector<Run> runs;
  for (ChunkId chunk : f.chunks) {
    if (runs.empty() || runs.back().end != chunk.value) runs.push_back({chunk.value, chunk.value});
    ++runs.back().end;
  }
  v.Required("chunks", runs);
  f.chunks.clear();
  for (const Run& run : runs) {
    for (uint64_t chunk = run.begin; chunk < run.end && f.chunks.size() < limits::kMaxChunks; ++chunk)
      f.chunks.push_back({static_cast<uint32_t>(std::min<uint64_t>(chunk, UINT32_MAX))});
  }
}

template <typename V>
void Fields(V& v, Manifest& m) {
  v.Required("label", m.label);
  v.RequiredHex("job_uid", m.job.value);
  v.Required("job", m.spec);
  v.Required("ballot", m.ballot.value);
  v.Required("version", m.version.value);
  v.Required("seal", m.seal);
  v.Required("scale", m.scale);
  v.Required("parameters", m.parameters.tensors);
  v.Required("dataset_size", m.dataset_size);
  v.Required("saved_at_s", m.saved_at_s);
  v.Required("arrays", m.arrays);
  v.Required("files", m.files);
}

// ---- Writing ----

class Writer {
 public:
  template <typename T>
  void Required(const char* name, T& value) {
    out_[name] = Value(value);
  }
  template <typename T>
  void Optional(const char* name, T& value) {
    out_[name] = Value(value);
  }
  void RequiredHex(const char* name, uint64_t& value) { out_[name] = Hex(value); }

  json Take() { return std::move(out_); }

 private:
  template <typename T>
  static json Value(T& value) {
    if constexpr (std::is_enum_v<T>) {
      return Name(value);
    } else if constexpr (std::is_same_v<T, Duration>) {
      return value.count();
    } else if constexpr (std::is_arithmetic_v<T> || std::is_same_v<T, std::string>) {
      return value;
    } else {
      Writer inner;
      Fields(inner, value);
      return inner.Take();
    }
  }
  template <typename T>
  static json Value(std::vector<T>& list) {
    json out = json::array();
    for (T& item : list) out.push_back(Value(item));
    return out;
  }

  json out_ = json::object();
};

// ---- Reading ----

// The first thing that is wrong is remembered; what is read after it is thrown away by FromJson.
class Reader {
 public:
  Reader(const json& in, std::string* problem) : in_(in), problem_(*problem) {
    if (!in.is_object()) Bad("an object is expected");
  }

  template <typename T>
  void Required(const char* name, T& value) {
    if (const json* found = Find(name)) Value(name, *found, &value);
  }
  template <typename T>
  void Optional(const char* name, T& value) {
    if (in_.is_object() && in_.contains(name)) Value(name, in_[name], &value);
  }
  void RequiredHex(const char* name, uint64_t& value) {
    const json* found = Find(name);
    if (found == nullptr) return;
    const std::string text = found->is_string() ? found->get<std::string>() : "";
    if (text.size() != 16 || text.find_first_not_of("0123456789abcdef") != std::string::npos) return Bad(name);
    value = std::strtoull(text.c_str(), nullptr, 16);
  }

 private:
  const json* Find(const char* name) {
    if (!in_.is_object()) return nullptr;
    const auto it = in_.find(name);
    if (it == in_.end()) Bad(std::string(name) + " is missing");
    return it == in_.end() ? nullptr : &*it;
  }
  void Bad(const std::string& what) {
    if (problem_.empty()) problem_ = what;
  }

  template <typename T>
  void Value(const char* name, const json& in, T* out) {
    if constexpr (std::is_enum_v<T>) {
      for (int i = 0; i < kCount<T>; ++i) {
        if (in.is_string() && in.get_ref<const std::string&>() == Name(static_cast<T>(i))) {
          *out = static_cast<T>(i);
          return;
        }
      }
      Bad(std::string(name) + " is unknown");
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (!in.is_string() || in.get_ref<const std::string&>().size() > limits::kMaxTextBytes) return Bad(name);
      *out = in.get<std::string>();
    } else if constexpr (std::is_same_v<T, bool>) {
      if (!in.is_boolean()) return Bad(name);
      *out = in.get<bool>();
    } else if constexpr (std::is_same_v<T, double>) {
      if (!in.is_number()) return Bad(name);
      *out = in.get<double>();
    } else if constexpr (std::is_same_v<T, Duration>) {
      int64_t ns = 0;
      Value(name, in, &ns);
      *out = Duration(ns);
    } else if constexpr (std::is_same_v<T, int64_t>) {
      if (!in.is_number_integer() || (in.is_number_unsigned() && in.get<uint64_t>() > INT64_MAX)) return Bad(name);
      *out = in.get<int64_t>();
    } else if constexpr (std::is_unsigned_v<T>) {
      if (!in.is_number_unsigned() || in.get<uint64_t>() > std::numeric_limits<T>::max()) return Bad(name);
      *out = in.get<T>();
    } else {
      Reader inner(in, &problem_);
      Fields(inner, *out);
    }
  }
  template <typename T>
  void Value(const char* name, const json& in, std::vector<T>* out) {
    if (!in.is_array()) return Bad(name);
    for (const json& item : in) {
      if (!problem_.empty()) return;
      Value(name, item, &out->emplace_back());
    }
  }

  const json& in_;
  std::string& problem_;
};

}  // namespace

std::string Hex(uint64_t value) {
  char text[20];
  std::snprintf(text, sizeof text, "%016" PRIx64, value);
  return text;
}

std::string ToJson(const Manifest& manifest) {
  Writer writer;
  Manifest copy = manifest;  // the lists of fields serve both directions
  Fields(writer, copy);
  json out = writer.Take();
  out["format"] = kManifestFormat;
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<Manifest> FromJson(std::string_view text) {
  const json in = json::parse(text, nullptr, false);
  if (!in.is_object()) return Status(Code::kCorrupt, "the manifest is no JSON object");
  if (!in.contains("format") || !in["format"].is_number_unsigned())
    return Status(Code::kCorrupt, "the manifest does not say its format");
  if (in["format"].get<uint64_t>() > kManifestFormat) {
    return Status(Code::kWrongVersion, "the manifest has format " + in["format"].dump() + ", this build reads up to " +
                                           std::to_string(kManifestFormat) + "; install a newer Everstep");
  }
  Manifest manifest;
  std::string problem;
  Reader reader(in, &problem);
  Fields(reader, manifest);
  if (!problem.empty()) return Status(Code::kCorrupt, "the manifest's fields make no sense: " + problem);
  return manifest;
}

}  // namespace everstep::manifest_fields
