// A store with faults that a test switches on: a decorator over a real one. Thread-safe like any store; faults are set
// before the calls that shall meet them.
#pragma once

#include <atomic>
#include <memory>

#include "checkpoint/store.h"

namespace everstep::test {

class FaultyStore : public Store {
 public:
  enum class Fault {
    kNone,
    kTornWrite,   // after `after_bytes` bytes of a file, what is appended is lost; everything is reported as fine
    kNoSpace,     // after `after_bytes` bytes in all, writing fails as on a full disk
    kLostRename,  // Commit says Ok, and the file is not there (a folder that was not synced, then a power cut)
    kFailCommit,  // Commit fails
    kLateWrite,   // the last appended slice of a file arrives as zeros
  };

  explicit FaultyStore(std::shared_ptr<Store> inner) : inner_(std::move(inner)) {}

  void Set(Fault fault, uint64_t after_bytes = 0) {
    fault_ = fault;
    left_ = after_bytes;
  }

  Result<std::unique_ptr<StoreWriter>> Create(const std::string& name) override {
    EVERSTEP_ASSIGN(std::unique_ptr<StoreWriter> writer, inner_->Create(name));
    return std::unique_ptr<StoreWriter>(std::make_unique<Writer>(*this, std::move(writer)));
  }
  Result<std::unique_ptr<StoreReader>> Open(const std::string& name) override { return inner_->Open(name); }
  Result<std::vector<std::string>> List() override { return inner_->List(); }
  Result<std::vector<std::string>> Unfinished() override { return inner_->Unfinished(); }
  Status Delete(const std::string& name) override { return inner_->Delete(name); }
  Result<size_t> RemoveLeftovers() override { return inner_->RemoveLeftovers(); }
  const std::string& place() const override { return inner_->place(); }

 private:
  class Writer : public StoreWriter {
   public:
    Writer(FaultyStore& store, std::unique_ptr<StoreWriter> inner) : store_(store), inner_(std::move(inner)) {}

    Status Append(std::span<const std::byte> bytes) override {
      const uint64_t left = store_.left_;
      const size_t within = static_cast<size_t>(std::min<uint64_t>(left, bytes.size()));
      switch (store_.fault_) {
        case Fault::kTornWrite: store_.left_ -= within; return inner_->Append(bytes.first(within));
        case Fault::kNoSpace:
          store_.left_ -= within;
          if (within == bytes.size()) return inner_->Append(bytes);
          (void)inner_->Append(bytes.first(within));
          return {Code::kResourceExhausted, "cannot write: No space left on device"};
        case Fault::kLateWrite: {
          EVERSTEP_RETURN_IF_ERROR(Flush());
          late_.assign(bytes.begin(), bytes.end());
          return Status::Ok();
        }
        default: return inner_->Append(bytes);
      }
    }
    Status Commit() override {
      if (!late_.empty()) late_.assign(late_.size(), std::byte{0});
      EVERSTEP_RETURN_IF_ERROR(Flush());
      if (store_.fault_ == Fault::kLostRename) return Status::Ok();
      if (store_.fault_ == Fault::kFailCommit) return {Code::kUnavailable, "cannot sync: Input/output error"};
      return inner_->Commit();
    }

   private:
    Status Flush() {
      const std::vector<std::byte> late = std::exchange(late_, {});
      return late.empty() ? Status::Ok() : inner_->Append(late);
    }

    FaultyStore& store_;
    std::unique_ptr<StoreWriter> inner_;
    std::vector<std::byte> late_;
  };

  std::shared_ptr<Store> inner_;
  std::atomic<Fault> fault_{Fault::kNone};
  std::atomic<uint64_t> left_{0};
};

}  // namespace everstep::test
