// The scale of global-norm clipping: a fixed-order function of the chunks' norms, so that it is the same whoever
// computes it and however the chunks are placed. As torch.nn.utils.clip_grad_norm_:
// scale = min(1, clip / (norm + 1e-6)), norm = sqrt(sum of the squared norms in chunk order).
#pragma once

#include <cmath>
#include <map>

#include "schema/ids.h"

namespace everstep {

inline double ClipScale(double clip_norm, const std::map<ChunkId, double>& squared_norms) {
  if (clip_norm <= 0) return 1;
  double sum = 0;
  for (const auto& [chunk, squared] : squared_norms) sum += squared;
  const double scale = clip_norm / (std::sqrt(sum) + 1e-6);
  return scale < 1 ? scale : 1;
}

}  // namespace everstep
