// Operators that MXNet 1.9.1 does not have, or has slow, for CPUs.

#include "common.h"

namespace mxtrain {

extern const Operator kAttention, kCrossAttention, kNorm, kCrossEntropy, kAdamW, kSgd,
    kArrayNorm, kGradientNorm, kRoiAlign, kSuppression, kAttentionStep, kSourceAttentionStep,
    kGelu;

const Operator* const kOperators[] = {&kAttention,    &kCrossAttention, &kNorm,          &kCrossEntropy,
                                     &kAdamW,        &kSgd,            &kArrayNorm,  &kGradientNorm, &kRoiAlign,
                                     &kSuppression,  &kAttentionStep,  &kSourceAttentionStep, &kGelu};
const int kNumOperators = sizeof kOperators / sizeof kOperators[0];

std::string prepare() {
  num_threads = omp_get_max_threads();
  return "";
}

}  // namespace mxtrain
