// Adam and AdamW in one pass: float32, and float64 to check it by.

#include "table_rows.h"

namespace mxtrain {
namespace {

// One step of AdamW for several parameters; with coupled=1 of Adam, whose decay is a part of the gradient.
// Source: Loshchilov and Hutter, https://arxiv.org/abs/1711.05101, algorithm 2; `lrs` are corrections of the moments'
// bias, `etas` rates.
//
// Inputs: weight, gradient, mean, variance of each; with scaled=1 what gradients are multiplied by first, (1,). Outputs:
// weight, mean, variance of each, to be given as `out`.
//
// With rows=exact or rows=lazy of one table whose gradient is of some rows only: see table_rows.h.

void adamw_count(const Attributes& attributes, int* inputs, int* outputs) {
  const int size = attributes.integer("size", 1);
  *inputs = 4 * size + is_scaled(attributes) + is_of_rows(attributes);
  *outputs = 3 * size;
}
int adamw_loose(const Attributes& attributes) { return is_of_rows(attributes); }

void adamw_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  const bool of_rows = is_of_rows(attributes);
  for (size_t i = 0; i < out->size(); ++i) {
    const Dims& own = (*in)[4 * (i / 3)];
    (*out)[i] = own;
    for (int j = 0; j < 4; ++j) {
      if (j != 1 || !of_rows) (*in)[4 * (i / 3) + j] = own;
    }
  }
  if (is_scaled(attributes)) (*in)[in->size() - 1 - of_rows] = {1};
}

// One step for elements that follow each other.
template <typename T>
struct Update {
  T beta1, beta2, rest1, rest2, epsilon, rescale, clip, scale;
  T step = 0, keep = 1, decay = 0;

  explicit Update(const Call& call) {
    const Attributes& given = call.attributes;
    beta1 = given.number("beta1", 0.9), beta2 = given.number("beta2", 0.999);
    rest1 = 1 - given.number("beta1", 0.9), rest2 = 1 - given.number("beta2", 0.999);
    epsilon = given.number("epsilon", 1e-6), rescale = given.number("rescale_grad", 1);
    clip = given.number("clip_gradient", -1);
    scale = is_scaled(given) ? call.inputs[call.inputs.size() - 1 - is_of_rows(given)].template data<T>()[0] : T(1);
  }

  void element(T gradient, const T* old, const T* old_mean, const T* old_variance, T* weight, T* mean,
               T* variance) const {
    T g = gradient * scale * rescale + decay * *old;
    if (clip >= 0) g = g > clip ? clip : (g < -clip ? -clip : g);
    const T m = beta1 * *old_mean + rest1 * g;
    const T v = beta2 * *old_variance + rest2 * g * g;
    *mean = m;
    *variance = v;
    *weight = keep * *old - step * m / (std::sqrt(v) + epsilon);
  }
};

// A table, in place.
template <typename T>
void update_rows(const Call& call, const Update<T>& update) {
  T* weight = in_place<T>(call.inputs[0], call.outputs[0]);
  T* mean = in_place<T>(call.inputs[2], call.outputs[1]);
  T* variance = in_place<T>(call.inputs[3], call.outputs[2]);
  const T* gradient = call.inputs[1].data<T>();
  for_each_row(call, [&](int64_t begin, int64_t end, int64_t first) {
    const T* given = first < 0 ? nullptr : gradient + first;
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) {
      update.element(given ? given[j - begin] : T(0), weight + j, mean + j, variance + j, weight + j, mean + j,
                     variance + j);
    }
  });
}

template <typename T>
void adamw_forward_of(const Call& call) {
  const Attributes& given = call.attributes;
  const size_t size = call.outputs.size() / 3;
  const std::vector<double> lrs = given.numbers("lrs", size), etas = given.numbers("etas", size);
  const std::vector<double> wds = given.numbers("wds", size);
  const bool coupled = given.integer("coupled", 0) != 0;
  Update<T> update(call);
  for (size_t i = 0; i < size; ++i) {
    update.step = etas[i] * lrs[i], update.keep = coupled ? 1 : 1 - etas[i] * wds[i];
    update.decay = coupled ? wds[i] : 0;
    if (is_of_rows(given)) {
      update_rows<T>(call, update);
      continue;
    }
    const T* old = call.inputs[4 * i].data<T>();
    const T* gradient = call.inputs[4 * i + 1].data<T>();
    const T* old_mean = call.inputs[4 * i + 2].data<T>();
    const T* old_variance = call.inputs[4 * i + 3].data<T>();
    T* weight = call.outputs[3 * i].data<T>();
    T* mean = call.outputs[3 * i + 1].data<T>();
    T* variance = call.outputs[3 * i + 2].data<T>();
    const int64_t count = call.outputs[3 * i].size();
#pragma omp parallel for simd schedule(static) num_threads(num_threads) if (count > 16384)
    for (int64_t j = 0; j < count; ++j) {
      update.element(gradient[j], old + j, old_mean + j, old_variance + j, weight + j, mean + j, variance + j);
    }
  }
}

}  // namespace

extern const Operator kAdamW;
const Operator kAdamW = {
    "_mxtrain_adamw", adamw_count, adamw_shapes, adamw_loose, {0, 0},
    by_type<adamw_forward_of<float>, adamw_forward_of<double>>, nullptr};

}  // namespace mxtrain
