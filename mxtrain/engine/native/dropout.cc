// Dropout and a sum in one pass: float32, float64 to check it by, and bfloat16, which is taken.

#include "common.h"

namespace mxtrain {
namespace {

// dropout(x) + residual, both (..., U). Which numbers are dropped is a function of the seed: backward draws them again.
//
// Inputs: x, which may be bfloat16; residual and dropout's seed (64,), loose. Output: like the residual, never bfloat16.

void dropout_sum_count(const Attributes&, int* inputs, int* outputs) {
  *inputs = 3;
  *outputs = 1;
}
int dropout_sum_loose(const Attributes&) { return 1; }

void dropout_sum_shapes(const Attributes&, std::vector<Dims>* in, std::vector<Dims>* out) {
  (*in)[1] = (*out)[0] = (*in)[0];
  (*in)[2] = {kSeedBits};
}

// What each thread needs for a row; made before the threads begin, where an exception may still be thrown.
template <typename T>
struct Row {
  std::vector<T> numbers, factors;
  std::vector<uint32_t> words;
  explicit Row(int64_t units) : numbers(units), factors(units, T(1)), words(units + 4) {}
};

template <typename S, typename T, bool kBackward>
void dropout_sum_of(const Call& call) {
  const Array& like = call.outputs[0];  // the sum, or the gradient of x
  const int units = static_cast<int>(like.shape[like.dims - 1]);
  const int64_t rows = units ? like.size() / units : 0;
  const Dropout dropout = dropout_of(call.attributes.number("p", 0), call.inputs[kBackward ? 3 : 2]);
  std::vector<Row<T>> workspaces(num_threads, Row<T>(units));
#pragma omp parallel num_threads(num_threads)
  {
    auto& [numbers, factors, words] = workspaces[omp_get_thread_num()];
#pragma omp for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t first = row * units;
      T* own = numbers.data();
      if (dropout.active) dropout.factors(static_cast<uint32_t>(row), 0, units, words.data(), factors.data());
      if (kBackward) {
        const T* gradient = call.inputs[0].data<T>() + first;
#pragma omp simd
        for (int j = 0; j < units; ++j) own[j] = gradient[j] * factors[j];
        narrow(own, units, T(1), like.data<S>() + first);
      } else {
        const T* residual = call.inputs[1].data<T>() + first;
        T* to = like.data<T>() + first;
        widen(call.inputs[0].data<S>() + first, units, T(1), own);
#pragma omp simd
        for (int j = 0; j < units; ++j) to[j] = own[j] * factors[j] + residual[j];
      }
    }
  }
  if (kBackward) {
    std::copy(call.inputs[0].data<T>(), call.inputs[0].data<T>() + rows * units, call.outputs[1].data<T>());
    call.outputs[2].fill_with_zeros();
  }
}

template <typename S, typename T>
constexpr auto forward_of = dropout_sum_of<S, T, false>;
template <typename S, typename T>
constexpr auto backward_of = dropout_sum_of<S, T, true>;

}  // namespace

extern const Operator kDropoutSum;
const Operator kDropoutSum = {
    "_mxtrain_dropout_sum", dropout_sum_count, dropout_sum_shapes, dropout_sum_loose, {1, 0},
    // By how x is stored: the sum is not stored as it is.
    [](const Call& call) {
      by_type_of<forward_of<float, float>, forward_of<double, double>, forward_of<BFloat16, float>>(
          call.inputs[0].dtype, call);
    },
    by_type<backward_of<float, float>, backward_of<double, double>, backward_of<BFloat16, float>>};

}  // namespace mxtrain
