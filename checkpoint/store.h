// Where checkpoints lie: named files that appear whole or not at all. A folder (directory_store.cc) is the first; an
// object store would be another. What every store must do is tests/conformance/store_conformance.h.
//
// A file is written through a StoreWriter under a name that nobody lists, and is there, whole and durable, once Commit
// has returned Ok. A writer that goes without Commit, or whose process dies, leaves nothing that List names.
// Names are 1 to 200 of [A-Za-z0-9._-] and do not begin with a dot.
//
// Calls block for as long as a disk does: never on a loop. A Store is thread-safe; a writer or reader belongs to one
// thread at a time. Errors name the file and say what the system said; a full disk is kResourceExhausted.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace everstep {

class StoreWriter {
 public:
  virtual ~StoreWriter() = default;
  virtual Status Append(std::span<const std::byte> bytes) = 0;
  // Makes the file durable and visible, replacing one of the same name. After an error nothing is certain about the
  // file except that List and Open never show a part of it. Call it once, last.
  virtual Status Commit() = 0;
};

class StoreReader {
 public:
  virtual ~StoreReader() = default;
  virtual uint64_t size() const = 0;
  // Fills `out` from `offset`; kCorrupt when the file ends before that.
  virtual Status Read(uint64_t offset, std::span<std::byte> out) = 0;
};

class Store {
 public:
  virtual ~Store() = default;

  virtual Result<std::unique_ptr<StoreWriter>> Create(const std::string& name) = 0;
  // kNotFound when there is no such file.
  virtual Result<std::unique_ptr<StoreReader>> Open(const std::string& name) = 0;
  // Committed files, sorted.
  virtual Result<std::vector<std::string>> List() = 0;
  // Names of files that somebody began and did not commit (yet): by a writer at work, or by one that died.
  virtual Result<std::vector<std::string>> Unfinished() = 0;
  // Kept deletions survive a crash. Ok when there is no such file.
  virtual Status Delete(const std::string& name) = 0;
  // Removes what dead writers left; what is being written stays. How many.
  virtual Result<size_t> RemoveLeftovers() = 0;
  // For messages: the place, e.g. the folder.
  virtual const std::string& place() const = 0;
};

bool IsStoreName(const std::string& name);

// `create`: make the folder when it is missing; otherwise that is kNotFound.
Result<std::unique_ptr<Store>> MakeDirectoryStore(const std::string& folder, bool create);

// Whole small files.
Result<std::string> ReadFromStore(Store& store, const std::string& name, size_t most_bytes);
Status WriteToStore(Store& store, const std::string& name, std::string_view contents);

}  // namespace everstep
