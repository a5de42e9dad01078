#include "ps/config_record.h"

#include <filesystem>

#include "base/file.h"
#include "base/limits.h"
#include "schema/codec.h"

namespace everstep {
namespace {

class MemoryRecord : public ConfigRecord {
 public:
  Result<std::optional<Configuration>> Read() override {
    std::lock_guard lock(mutex_);
    return record_;
  }

  Status CompareAndSwap(Ballot expected, const Configuration& next) override {
    std::lock_guard lock(mutex_);
    if (auto answer = AnswerWithoutWriting(record_, expected, next)) return *answer;
    record_ = next;
    return Status::Ok();
  }

  Status Clear() override {
    std::lock_guard lock(mutex_);
    record_.reset();
    return Status::Ok();
  }

 private:
  std::mutex mutex_;
  std::optional<Configuration> record_;
};

Result<Envelope> TakeMessage(std::string_view* text) {
  uint64_t size = 0;
  if (text->size() < sizeof size) return Status(Code::kCorrupt, "it is cut off");
  std::memcpy(&size, text->data(), sizeof size);
  text->remove_prefix(sizeof size);
  if (size > text->size()) return Status(Code::kCorrupt, "it is cut off");
  const Buffer bytes = Buffer::Copy(text->substr(0, size));
  text->remove_prefix(size);
  return Decode(bytes);
}

class FileRecord : public ConfigRecord {
 public:
  explicit FileRecord(std::string folder)
      : path_(folder + "/configuration"), lock_path_(folder + "/configuration.lock") {}

  Result<std::optional<Configuration>> Read() override {
    EVERSTEP_ASSIGN(const FileLock lock, FileLock::Acquire(lock_path_, true));
    return ReadLocked();
  }

  Status CompareAndSwap(Ballot expected, const Configuration& next) override {
    EVERSTEP_ASSIGN(const FileLock lock, FileLock::Acquire(lock_path_, true));
    EVERSTEP_ASSIGN(const std::optional<Configuration> found, ReadLocked());
    if (auto answer = AnswerWithoutWriting(found, expected, next)) return *answer;
    return WriteFileDurably(path_, Serialize(next));
  }

  Status Clear() override {
    EVERSTEP_ASSIGN(const FileLock lock, FileLock::Acquire(lock_path_, true));
    std::error_code error;
    std::filesystem::remove(path_, error);
    if (error) return {Code::kUnavailable, "cannot remove " + path_ + ": " + error.message()};
    return Status::Ok();
  }

 private:
  Result<std::optional<Configuration>> ReadLocked() {
    const Result<std::string> text = ReadFile(path_);
    if (text.status().code() == Code::kNotFound) return std::optional<Configuration>();
    if (!text.ok()) return text.status();
    const Result<Configuration> parsed = ParseConfiguration(*text);
    if (!parsed.ok()) return parsed.status().With("the configuration record " + path_ + " cannot be read");
    return std::optional<Configuration>(*parsed);
  }

  const std::string path_;
  const std::string lock_path_;
};

}  // namespace

std::optional<Status> AnswerWithoutWriting(const std::optional<Configuration>& found, Ballot expected,
                                           const Configuration& next) {
  EVERSTEP_CHECK(next.ballot > expected, "ballots only grow");
  if (found && *found == next) return Status::Ok();  // our own write, asked for again
  const Ballot ballot = found ? found->ballot : Ballot{};
  if (ballot != expected) return Status(Code::kStale, "the record is at ballot " + ToString(ballot));
  return std::nullopt;
}

// Two messages of the wire format, length before each: a Promise with map and spec (the ballot is its
// envelope's), and a Hello with holder and dataset size. So the record is verified like anything else from outside.
std::string Serialize(const Configuration& c) {
  Hello holder;
  holder.role = PeerRole::kServer;
  holder.incarnation = c.holder;
  holder.address = c.holder_address;
  holder.dataset_size = c.dataset_size;
  std::string text;
  for (const Body& body : {Body(Promise{c.map, c.spec}), Body(holder)}) {
    const Buffer bytes = Encode({c.job, c.ballot, body});
    const auto size = static_cast<uint64_t>(bytes.size());
    text.append(reinterpret_cast<const char*>(&size), sizeof size);
    text.append(bytes.text());
  }
  return text;
}

Result<Configuration> ParseConfiguration(std::string_view text) {
  EVERSTEP_ASSIGN(const Envelope first, TakeMessage(&text));
  EVERSTEP_ASSIGN(const Envelope second, TakeMessage(&text));
  const auto* promise = std::get_if<Promise>(&first.body);
  const auto* holder = std::get_if<Hello>(&second.body);
  if (promise == nullptr || holder == nullptr || !text.empty())
    return Status(Code::kCorrupt, "it is not a configuration record");
  EVERSTEP_RETURN_IF_ERROR(Validate(promise->spec, promise->map.chunk_bytes));
  return Configuration{first.ballot, first.job,     holder->incarnation, holder->address,
                       promise->map, promise->spec, holder->dataset_size};
}

std::unique_ptr<ConfigRecord> MakeMemoryRecord() { return std::make_unique<MemoryRecord>(); }

Result<std::unique_ptr<ConfigRecord>> MakeFileRecord(const std::string& folder) {
  EVERSTEP_RETURN_IF_ERROR(CreateFolders(folder));
  return std::unique_ptr<ConfigRecord>(std::make_unique<FileRecord>(folder));
}

}  // namespace everstep
