// Dropout, sum and layer normalisation in one pass: float32, and float64 to check it by.

#include "common.h"

namespace mxtrain {
namespace {

// norm(dropout(x) + residual) over the last axis, (..., U), each part optional but the norm.
// Source: Ba et al., "Layer Normalization", 2016, equation 4, with epsilon added to the variance.
//
// Inputs: x, [residual], gamma, beta (U,), [dropout's seed (64,), loose].
// Outputs: y like x; means and inverse deviations of rows, (R,) each.

bool has_residual(const Attributes& attributes) { return attributes.integer("residual", 0) != 0; }

void norm_count(const Attributes& attributes, int* inputs, int* outputs) {
  *inputs = 3 + has_residual(attributes) + has_dropout(attributes);
  *outputs = 3;
}
int norm_loose(const Attributes& attributes) { return has_dropout(attributes); }

void norm_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  const Dims x = (*in)[0];
  unsigned rows = 1;
  for (size_t i = 0; i + 1 < x.size(); ++i) rows *= x[i];
  const int gamma = 1 + has_residual(attributes);
  if (has_residual(attributes)) (*in)[1] = x;
  (*in)[gamma] = (*in)[gamma + 1] = {x.back()};
  if (has_dropout(attributes)) (*in)[gamma + 2] = {kSeedBits};
  (*out)[0] = x;
  (*out)[1] = (*out)[2] = {rows};
}

constexpr int kParts = 32;  // of rows, whatever the number of threads

// Numbered as inputs from `first` on.
struct Norm {
  int64_t rows, units;
  double epsilon;
  const Array *x, *residual, *gamma, *beta;
  Dropout dropout;

  Norm(const Call& call, int first) {
    const Attributes& attributes = call.attributes;
    x = &call.inputs[first++];
    residual = has_residual(attributes) ? &call.inputs[first++] : nullptr;
    gamma = &call.inputs[first++];
    beta = &call.inputs[first++];
    if (has_dropout(attributes)) dropout = dropout_of(attributes.number("p", 0), call.inputs[first]);
    epsilon = attributes.number("eps", 1e-12);
    const Array& like = call.outputs[0];  // y, or the gradient of x
    units = like.shape[like.dims - 1];
    rows = units ? like.size() / units : 0;
  }

  // A row of dropout(x) + residual; `factors` is filled if dropout is active.
  template <typename T>
  void sum(int64_t row, uint32_t* words, T* factors, T* out) const {
    const T* from = x->data<T>() + row * units;
    const int count = static_cast<int>(units);
    if (dropout.active) {
      dropout.factors(static_cast<uint32_t>(row), 0, count, words, factors);
#pragma omp simd
      for (int j = 0; j < count; ++j) out[j] = from[j] * factors[j];
    } else {
      std::copy(from, from + count, out);
    }
    if (residual) {
      const T* other = residual->data<T>() + row * units;
#pragma omp simd
      for (int j = 0; j < count; ++j) out[j] += other[j];
    }
  }
};

// What each thread needs for a row; made before the threads begin, where an exception may still be thrown.
template <typename T>
class Workspaces {
 public:
  struct Workspace {
    std::vector<T> sum, factors, normed_gradients;
    std::vector<uint32_t> words;
  };
  explicit Workspaces(int units) : workspaces_(num_threads) {
    for (Workspace& own : workspaces_) {
      own = {std::vector<T>(units), std::vector<T>(units, T(1)), std::vector<T>(units),
             std::vector<uint32_t>(units + 4)};
    }
  }
  Workspace& own() { return workspaces_[omp_get_thread_num()]; }

 private:
  std::vector<Workspace> workspaces_;
};

template <typename T>
void norm_forward_of(const Call& call) {
  const Norm norm(call, 0);
  const int U = static_cast<int>(norm.units);
  const T* gamma = norm.gamma->data<T>();
  const T* beta = norm.beta->data<T>();
  T* result = call.outputs[0].data<T>();
  T* means = call.outputs[1].data<T>();
  T* inverses = call.outputs[2].data<T>();
  Workspaces<T> workspaces(U);
#pragma omp parallel num_threads(num_threads)
  {
    auto& [sum, factors, normed_gradients, words] = workspaces.own();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < norm.rows; ++row) {
      norm.sum(row, words.data(), factors.data(), sum.data());
      const T* h = sum.data();
      T* y = result + row * U;
      T mean = 0, variance = 0;
#pragma omp simd reduction(+ : mean)
      for (int j = 0; j < U; ++j) mean += h[j];
      mean /= U;
#pragma omp simd reduction(+ : variance)
      for (int j = 0; j < U; ++j) variance += (h[j] - mean) * (h[j] - mean);
      const T inverse = 1 / std::sqrt(variance / U + static_cast<T>(norm.epsilon));
#pragma omp simd
      for (int j = 0; j < U; ++j) y[j] = (h[j] - mean) * inverse * gamma[j] + beta[j];
      means[row] = mean;
      inverses[row] = inverse;
    }
  }
}

template <typename T>
void norm_backward_of(const Call& call) {
  // Gradients of the three outputs, the inputs, the three outputs.
  const Norm norm(call, 3);
  const int U = static_cast<int>(norm.units), num_inputs = static_cast<int>(call.outputs.size());
  const T* gradient = call.inputs[0].data<T>();
  const T* gamma = norm.gamma->data<T>();
  const T* means = call.inputs[3 + num_inputs + 1].data<T>();
  const T* inverses = call.inputs[3 + num_inputs + 2].data<T>();
  T* of_x = call.outputs[0].data<T>();
  T* of_residual = norm.residual ? call.outputs[1].data<T>() : nullptr;
  const int at_gamma = norm.residual ? 2 : 1;
  if (has_dropout(call.attributes)) call.outputs[at_gamma + 2].fill_with_zeros();
  std::vector<T> sums(int64_t{2} * kParts * U, T(0));
  Workspaces<T> workspaces(U);
#pragma omp parallel num_threads(num_threads)
  {
    auto& [sum, factors, normed_gradients, words] = workspaces.own();
#pragma omp for schedule(static)
    for (int part = 0; part < kParts; ++part) {
      T* of_gamma = sums.data() + int64_t{2} * part * U;
      T* of_beta = of_gamma + U;
      for (int64_t row = norm.rows * part / kParts; row < norm.rows * (part + 1) / kParts; ++row) {
        norm.sum(row, words.data(), factors.data(), sum.data());
        T* h = sum.data();
        T* normed_gradient = normed_gradients.data();
        const T* from = gradient + row * U;
        const T mean = means[row], inverse = inverses[row];
        T first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
        for (int j = 0; j < U; ++j) {
          h[j] = (h[j] - mean) * inverse;
          of_gamma[j] += from[j] * h[j];
          of_beta[j] += from[j];
          normed_gradient[j] = from[j] * gamma[j];
          first += normed_gradient[j];
          second += normed_gradient[j] * h[j];
        }
        first /= U;
        second /= U;
        T* to = of_x + row * U;
        if (of_residual) {
          T* other = of_residual + row * U;
#pragma omp simd
          for (int j = 0; j < U; ++j) {
            const T all = inverse * (normed_gradient[j] - first - h[j] * second);
            other[j] = all;
            to[j] = all * factors[j];
          }
        } else {
#pragma omp simd
          for (int j = 0; j < U; ++j) to[j] = inverse * (normed_gradient[j] - first - h[j] * second) * factors[j];
        }
      }
    }
  }
  T* of_gamma = call.outputs[at_gamma].data<T>();
  T* of_beta = call.outputs[at_gamma + 1].data<T>();
  for (int j = 0; j < U; ++j) {
    T gamma_sum = 0, beta_sum = 0;
    for (int part = 0; part < kParts; ++part) {
      gamma_sum += sums[int64_t{2} * part * U + j];
      beta_sum += sums[(int64_t{2} * part + 1) * U + j];
    }
    of_gamma[j] = gamma_sum;
    of_beta[j] = beta_sum;
  }
}

}  // namespace

extern const Operator kNorm;
const Operator kNorm = {
    "_mxtrain_norm", norm_count, norm_shapes, norm_loose, {0, 0},
    by_type<norm_forward_of<float>, norm_forward_of<double>>,
    by_type<norm_backward_of<float>, norm_backward_of<double>>};

}  // namespace mxtrain
