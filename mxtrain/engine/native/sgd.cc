// Stochastic gradient descent in one pass: float32, and float64 to check it by.

#include "common.h"

namespace mxtrain {
namespace {

// One step for several parameters, as MXNet's multi_sgd_update and multi_sgd_mom_update, after the gradient was
// multiplied by a number that is known on the device alone.
//
// Inputs: weight, gradient, with has_momentum=1 momentum of each; with scaled=1 what gradients are multiplied by first,
// (1,). Outputs: weight, and momentum, of each, to be given as `out`.

bool is_scaled(const Attributes& attributes) { return attributes.integer("scaled", 0) != 0; }
int width_of(const Attributes& attributes) { return attributes.integer("has_momentum", 0) ? 3 : 2; }

void sgd_count(const Attributes& attributes, int* inputs, int* outputs) {
  const int size = attributes.integer("size", 1), width = width_of(attributes);
  *inputs = width * size + is_scaled(attributes);
  *outputs = (width - 1) * size;
}
int sgd_loose(const Attributes&) { return 0; }

void sgd_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  const size_t width = width_of(attributes);
  for (size_t i = 0; i < out->size(); ++i) {
    const size_t first = width * (i / (width - 1));
    const Dims own = (*in)[first];
    (*out)[i] = own;
    for (size_t j = 0; j < width; ++j) (*in)[first + j] = own;
  }
  if (is_scaled(attributes)) in->back() = {1};
}

template <typename T, bool kMomentum>
void step(const Attributes& given, const Call& call, size_t i, T scale, T lr, T wd) {
  const size_t width = kMomentum ? 3 : 2;
  const T rescale = given.number("rescale_grad", 1), clip = given.number("clip_gradient", -1);
  const T kept = given.number("momentum", 0), decay = lr * wd;
  const T rate = clip >= 0 ? lr : lr * rescale;  // MXNet's own order, for the same bits
  const T* old = call.inputs[width * i].data<T>();
  const T* gradient = call.inputs[width * i + 1].data<T>();
  const T* old_momentum = kMomentum ? call.inputs[width * i + 2].data<T>() : nullptr;
  T* weight = call.outputs[(width - 1) * i].data<T>();
  T* momentum = kMomentum ? call.outputs[(width - 1) * i + 1].data<T>() : nullptr;
  const int64_t count = call.outputs[(width - 1) * i].size();
#pragma omp parallel for simd schedule(static) num_threads(num_threads) if (count > 16384)
  for (int64_t j = 0; j < count; ++j) {
    T g = gradient[j] * scale;
    if (clip >= 0) {
      g *= rescale;
      g = g > clip ? clip : (g < -clip ? -clip : g);
    }
    if (kMomentum) {
      const T m = kept * old_momentum[j] - decay * old[j] - rate * g;
      momentum[j] = m;
      weight[j] = old[j] + m;
    } else {
      weight[j] = old[j] + (-decay * old[j] - rate * g);
    }
  }
}

template <typename T>
void sgd_forward_of(const Call& call) {
  const Attributes& given = call.attributes;
  const size_t size = call.outputs.size() / (width_of(given) - 1);
  const std::vector<double> lrs = given.numbers("lrs", size), wds = given.numbers("wds", size);
  const T scale = is_scaled(given) ? call.inputs.back().data<T>()[0] : T(1);
  for (size_t i = 0; i < size; ++i) {
    if (width_of(given) == 3) {
      step<T, true>(given, call, i, scale, lrs[i], wds[i]);
    } else {
      step<T, false>(given, call, i, scale, lrs[i], wds[i]);
    }
  }
}

}  // namespace

extern const Operator kSgd;
const Operator kSgd = {
    "_mxtrain_sgd", sgd_count, sgd_shapes, sgd_loose, {0, 0}, by_type<sgd_forward_of<float>, sgd_forward_of<double>>,
    nullptr};

}  // namespace mxtrain
