// Every bound in one place. A buffer, queue, retry or message without a line here is a bug (promise P7).
#pragma once

#include <cstddef>
#include <cstdint>

namespace everstep::limits {

// Messages.
inline constexpr size_t kMaxHeaderBytes = 16u << 20;   // header frame: a parameter spec or a map is the largest
inline constexpr size_t kMaxPayloadBytes = 64u << 20;  // one chunk, with room to spare
inline constexpr size_t kMaxFramesPerMessage = 2;      // header + payload

// Chunks: the unit of transfer and placement.
inline constexpr size_t kChunkAlignment = 64;
inline constexpr size_t kMinChunkBytes = 64;
inline constexpr size_t kDefaultChunkBytes = 1u << 20;  // measured in docs/performance.md
inline constexpr size_t kMaxChunkBytes = 16u << 20;
inline constexpr size_t kMaxChunks = 1u << 19;  // a map of so many chunks still fits into one header
inline constexpr size_t kMaxReplication = 7;    // ... with so many holders each

// Byte credits: how much a sender may have under way on one connection before the receiver has consumed it.
inline constexpr size_t kCreditWindowBytes = 64u << 20;
// Frames that may wait for credit in one connection's queue.
inline constexpr size_t kMaxQueuedFrames = 1u << 16;
inline constexpr size_t kMaxQueuedBytes = size_t{4} << 30;

// Members and servers.
inline constexpr size_t kMaxMembers = 4096;
inline constexpr size_t kMaxServers = 1024;
inline constexpr size_t kMaxObservers = 64;
inline constexpr size_t kMaxPendingConnections = 1024;

// Shards.
inline constexpr size_t kMaxStateArrays = 8;          // optimizer state of one chunk
inline constexpr size_t kMoveBatchBytes = 16u << 20;  // copied to new holders between two steps
inline constexpr size_t kMaxTensors = 1u << 20;
inline constexpr size_t kMaxSlots = 2 * kMaxMembers;  // staged contributions that one server keeps
inline constexpr size_t kMaxWaitingPulls = 2 * kMaxMembers;
inline constexpr size_t kMaxStaleness = 1u << 16;  // commits that a contribution may be behind

// Ledger.
inline constexpr size_t kMaxLeaseRanges = 4096;       // ranges of one lease
inline constexpr size_t kMaxLedgerRanges = 1u << 20;  // holes of one epoch

// Data files of everstep-worker's built-in tasks, as unpacked.
inline constexpr size_t kMaxDataFileBytes = size_t{4} << 30;
inline constexpr size_t kMaxDataFiles = 1u << 16;
inline constexpr size_t kMaxDataDimensions = 8;

// Checkpoints.
inline constexpr size_t kMaxSafetensorsHeaderBytes = 100'000'000;  // the format's own bound
inline constexpr size_t kMaxManifestBytes = size_t{256} << 20;
inline constexpr size_t kMaxCheckpointFiles = 1u << 20;    // in one folder
inline constexpr size_t kCheckpointSliceBytes = 4u << 20;  // what the background writer hands over at once

// Text from outside (names, messages), in bytes.
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxTextBytes = 1u << 20;

}  // namespace everstep::limits
