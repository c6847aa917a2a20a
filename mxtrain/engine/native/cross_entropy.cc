// Softmax and cross entropy in one pass: float32, float64 to check it by, and scores of bfloat16, computed in float32.

#include <limits>

#include "common.h"

namespace mxtrain {
namespace {

// -log p of a class and the mean of -log p over all classes, for p = softmax(scores) over the last axis; both 0 where the
// label is negative. Neither p nor log p is stored: backward makes p again from the scores and their log-sum-exps.
//
// Attribute: `classes`, V. Inputs: scores (..., V); labels (...), loose. Outputs, never bfloat16: -log p and its mean,
// (...); log-sum-exps (R,).

int64_t classes_of(const Attributes& attributes) { return attributes.integer("classes", 0); }

void cross_entropy_count(const Attributes&, int* inputs, int* outputs) {
  *inputs = 2;
  *outputs = 3;
}
int cross_entropy_loose(const Attributes&) { return 1; }

void cross_entropy_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  const Dims& scores = (*in)[0];
  if (scores.size() < 2 || scores.back() != classes_of(attributes)) {
    throw std::invalid_argument("cross entropy takes (..., classes)");
  }
  const Dims places(scores.begin(), scores.end() - 1);
  unsigned rows = 1;
  for (const unsigned one : places) rows *= one;
  (*in)[1] = (*out)[0] = (*out)[1] = places;
  (*out)[2] = {rows};
}

// Columns that are computed at a time, in the nearest cache.
constexpr int64_t kBlock = 1024;

// The class of a row, -1 for none. One that does not exist becomes the last, as MXNet's `pick` has it.
inline int64_t class_at(const Array& labels, int64_t row, int64_t count) {
  const double label = labels.at(row);
  return label < 0 ? -1 : std::min(static_cast<int64_t>(label), count - 1);
}

template <typename S, typename T>
void cross_entropy_forward_of(const Call& call) {
  const int64_t rows = call.outputs[2].size(), count = classes_of(call.attributes);
  const S* scores = call.inputs[0].data<S>();
  T* losses = call.outputs[0].data<T>();
  T* means = call.outputs[1].data<T>();
  T* log_sum_exps = call.outputs[2].data<T>();
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t row = 0; row < rows; ++row) {
    const S* own = scores + row * count;
    T block[kBlock], largest = std::numeric_limits<T>::lowest(), exps = 0, sum = 0;
    for (int64_t first = 0; first < count; first += kBlock) {
      const int64_t size = std::min(kBlock, count - first);
      widen(own + first, size, T(1), block);
      T most = block[0], total = 0;
#pragma omp simd reduction(max : most) reduction(+ : total)
      for (int64_t j = 0; j < size; ++j) {
        most = block[j] > most ? block[j] : most;
        total += block[j];
      }
      sum += total;
      if (most > largest) {  // what was summed has the scale of the largest score until here
        exps *= exp_of(largest - most);
        largest = most;
      }
      T part = 0;
#pragma omp simd reduction(+ : part)
      for (int64_t j = 0; j < size; ++j) part += exp_of(block[j] - largest);
      exps += part;
    }
    const T log_sum_exp = largest + std::log(exps);
    const int64_t label = class_at(call.inputs[1], row, count);
    log_sum_exps[row] = log_sum_exp;
    losses[row] = label < 0 ? T(0) : log_sum_exp - static_cast<T>(own[label]);
    means[row] = label < 0 ? T(0) : log_sum_exp - sum / count;
  }
}

// Inputs of backward: gradients of the outputs, forward's inputs, the outputs.
template <typename S, typename T>
void cross_entropy_backward_of(const Call& call) {
  const int64_t count = classes_of(call.attributes), rows = call.outputs[0].size() / count;
  const T* of_losses = call.inputs[0].data<T>();
  const T* of_means = call.inputs[1].data<T>();
  const S* scores = call.inputs[3].data<S>();
  const Array& labels = call.inputs[4];
  const T* log_sum_exps = call.inputs[7].data<T>();
  S* result = call.outputs[0].data<S>();
  call.outputs[1].fill_with_zeros();
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t row = 0; row < rows; ++row) {
    const S* own = scores + row * count;
    S* to = result + row * count;
    const int64_t label = class_at(labels, row, count);
    if (label < 0) {
      std::fill(to, to + count, static_cast<S>(T(0)));
      continue;
    }
    const T both = of_losses[row] + of_means[row], each = of_means[row] / count, log_sum_exp = log_sum_exps[row];
    T block[kBlock];
    for (int64_t first = 0; first < count; first += kBlock) {
      const int64_t size = std::min(kBlock, count - first);
      widen(own + first, size, T(1), block);
#pragma omp simd
      for (int64_t j = 0; j < size; ++j) block[j] = both * exp_of(block[j] - log_sum_exp) - each;
      if (label >= first && label < first + size) block[label - first] -= of_losses[row];
      narrow(block, size, T(1), to + first);
    }
  }
}

}  // namespace

extern const Operator kCrossEntropy;
const Operator kCrossEntropy = {
    "_mxtrain_cross_entropy", cross_entropy_count, cross_entropy_shapes, cross_entropy_loose, {1, 0},
    // By how the scores are stored: no output is stored as they are.
    [](const Call& call) {
      by_type_of<cross_entropy_forward_of<float, float>, cross_entropy_forward_of<double, double>,
                 cross_entropy_forward_of<BFloat16, float>>(call.inputs[0].dtype, call);
    },
    by_type<cross_entropy_backward_of<float, float>, cross_entropy_backward_of<double, double>,
            cross_entropy_backward_of<BFloat16, float>>};

}  // namespace mxtrain
