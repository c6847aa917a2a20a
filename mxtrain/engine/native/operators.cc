// Operators that MXNet 1.9.1 does not have, or has slow, for CPUs.

#include "common.h"

namespace mxtrain {

extern const Operator kAttention, kCrossAttention, kNorm, kAdamW, kRoiAlign, kSuppression;
std::string find_blas();

const Operator* const kOperators[] = {&kAttention, &kCrossAttention, &kNorm, &kAdamW, &kRoiAlign, &kSuppression};
const int kNumOperators = 6;

std::string prepare() {
  num_threads = omp_get_max_threads();
  return find_blas();
}

}  // namespace mxtrain
