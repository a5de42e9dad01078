#include "worker/slicer.h"

#include <algorithm>

namespace everstep {

Slicer::Slicer(std::shared_ptr<const ChunkLayout> layout) : layout_(std::move(layout)) {
  for (const Chunk& chunk : layout_->chunks()) {
    uint32_t tensors = 0;
    for (const Segment& segment : chunk.segments) {
      if (segment.role == Role::kBuffer) {
        tensors = 0;
        break;
      }
      ++tensors;  // a tensor has at most one segment in a chunk
    }
    needed_.push_back(tensors);
  }
  Reset();
}

void Slicer::Reset() {
  missing_ = needed_;
  taken_.assign(needed_.size(), false);
  ready_.assign(layout_->spec().tensors.size(), false);
}

std::vector<ChunkId> Slicer::Ready(size_t tensor) {
  std::vector<ChunkId> complete;
  if (ready_[tensor]) return complete;
  ready_[tensor] = true;
  for (ChunkId chunk : layout_->chunks_of(tensor)) {
    if (needed_[chunk.value] == 0 || --missing_[chunk.value] > 0) continue;
    taken_[chunk.value] = true;
    complete.push_back(chunk);
  }
  return complete;
}

std::vector<ChunkId> Slicer::TakeRest() {
  std::vector<ChunkId> rest;
  for (uint32_t i = 0; i < taken_.size(); ++i) {
    if (!taken_[i]) rest.push_back({i});
    taken_[i] = true;
  }
  return rest;
}

}  // namespace everstep
