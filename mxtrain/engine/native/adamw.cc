// Adam and AdamW in one pass: float32, and float64 to check it by.

#include "common.h"

namespace mxtrain {
namespace {

// One step of AdamW for several parameters; with coupled=1 of Adam, whose decay is a part of the gradient.
// Source: Loshchilov and Hutter, https://arxiv.org/abs/1711.05101, algorithm 2; `lrs` are corrections of the moments'
// bias, `etas` rates.
//
// Inputs: weight, gradient, mean, variance of each; with scaled=1 what gradients are multiplied by first, (1,). Outputs:
// weight, mean, variance of each, to be given as `out`.

bool is_scaled(const Attributes& attributes) { return attributes.integer("scaled", 0) != 0; }

void adamw_count(const Attributes& attributes, int* inputs, int* outputs) {
  const int size = attributes.integer("size", 1);
  *inputs = 4 * size + is_scaled(attributes);
  *outputs = 3 * size;
}
int adamw_loose(const Attributes&) { return 0; }

void adamw_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  for (size_t i = 0; i < out->size(); ++i) {
    const Dims& own = (*in)[4 * (i / 3)];
    (*out)[i] = own;
    for (int j = 0; j < 4; ++j) (*in)[4 * (i / 3) + j] = own;
  }
  if (is_scaled(attributes)) in->back() = {1};
}

template <typename T>
void adamw_forward_of(const Call& call) {
  const Attributes& given = call.attributes;
  const size_t size = call.outputs.size() / 3;
  const std::vector<double> lrs = given.numbers("lrs", size), etas = given.numbers("etas", size);
  const std::vector<double> wds = given.numbers("wds", size);
  const T beta1 = given.number("beta1", 0.9), beta2 = given.number("beta2", 0.999);
  const T rest1 = 1 - given.number("beta1", 0.9), rest2 = 1 - given.number("beta2", 0.999);
  const T epsilon = given.number("epsilon", 1e-6), rescale = given.number("rescale_grad", 1);
  const T clip = given.number("clip_gradient", -1);
  const bool coupled = given.integer("coupled", 0) != 0;
  const T scale = is_scaled(given) ? call.inputs.back().data<T>()[0] : T(1);
  for (size_t i = 0; i < size; ++i) {
    const T* old = call.inputs[4 * i].data<T>();
    const T* gradient = call.inputs[4 * i + 1].data<T>();
    const T* old_mean = call.inputs[4 * i + 2].data<T>();
    const T* old_variance = call.inputs[4 * i + 3].data<T>();
    T* weight = call.outputs[3 * i].data<T>();
    T* mean = call.outputs[3 * i + 1].data<T>();
    T* variance = call.outputs[3 * i + 2].data<T>();
    const T step = etas[i] * lrs[i], keep = coupled ? 1 : 1 - etas[i] * wds[i], decay = coupled ? wds[i] : 0;
    const int64_t count = call.outputs[3 * i].size();
#pragma omp parallel for simd schedule(static) num_threads(num_threads) if (count > 16384)
    for (int64_t j = 0; j < count; ++j) {
      T g = gradient[j] * scale * rescale + decay * old[j];
      if (clip >= 0) g = g > clip ? clip : (g < -clip ? -clip : g);
      const T m = beta1 * old_mean[j] + rest1 * g;
      const T v = beta2 * old_variance[j] + rest2 * g * g;
      mean[j] = m;
      variance[j] = v;
      weight[j] = keep * old[j] - step * m / (std::sqrt(v) + epsilon);
    }
  }
}

}  // namespace

extern const Operator kAdamW;
const Operator kAdamW = {
    "_mxtrain_adamw", adamw_count, adamw_shapes, adamw_loose, {0, 0},
    by_type<adamw_forward_of<float>, adamw_forward_of<double>>, nullptr};

}  // namespace mxtrain
