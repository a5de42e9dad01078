// The configuration record: who coordinates and which map is in force, changed by compare-and-swap alone (rule R1).
//
// One interface, several stores: MemoryRecord (one process; a job whose coordinator's death is its end), FileRecord (a
// locked, fsynced file in a state folder: any server of this machine can take office through it), EtcdRecord
// (ps/etcd_record.h: any server that reaches etcd). The conformance suite is
// tests/conformance/config_record_conformance.h. Calls may block for as long as a disk does; drivers keep them off
// their loop. Thread-safe.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"
#include "schema/messages.h"

namespace everstep {

struct Configuration {
  Ballot ballot;
  JobUid job;
  Incarnation holder;          // the coordinator's process
  std::string holder_address;  // where it is found
  ShardMap map;
  ParameterSpec spec;
  uint64_t dataset_size = 0;

  friend bool operator==(const Configuration&, const Configuration&) = default;
};

// The record as bytes for a store. ParseConfiguration() verifies them like anything else from outside: kCorrupt says
// what is wrong.
std::string Serialize(const Configuration& configuration);
Result<Configuration> ParseConfiguration(std::string_view bytes);

// The rule of compare-and-swap, for every store: the answer to a change that needs no writing any more (Ok: it is in
// force already; kStale: the record has moved on), or nothing when `next` is to be written in place of `found`.
std::optional<Status> AnswerWithoutWriting(const std::optional<Configuration>& found, Ballot expected,
                                           const Configuration& next);

class ConfigRecord {
 public:
  virtual ~ConfigRecord() = default;

  // The record in force; nullopt when none was ever written.
  virtual Result<std::optional<Configuration>> Read() = 0;

  // Replaces the record if its ballot still is `expected` (0: none was ever written). kStale with the newer ballot in
  // the message when somebody else was first; any other error means that it is unknown whether it was written.
  // REQUIRES: next.ballot > expected.
  virtual Status CompareAndSwap(Ballot expected, const Configuration& next) = 0;

  // Forgets the record, readable or not: an operator who wants a fresh start has said so.
  virtual Status Clear() = 0;
};

std::unique_ptr<ConfigRecord> MakeMemoryRecord();
// Keeps the record as `folder`/configuration; creates the folder.
Result<std::unique_ptr<ConfigRecord>> MakeFileRecord(const std::string& folder);

}  // namespace everstep
