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
//
// With rows=exact or rows=lazy of one table (R, U) whose gradient (K, U) is of some rows only; the last input is their
// numbers (K,), ascending, as float64. exact: the other rows have a gradient of 0; lazy: they and their moments stay.

bool is_scaled(const Attributes& attributes) { return attributes.integer("scaled", 0) != 0; }
bool is_of_rows(const Attributes& attributes) { return attributes.find("rows") != nullptr; }

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
void update_rows(const Call& call, const Update<T>& update, bool lazy) {
  const Array& table = call.outputs[0];
  const int64_t rows = table.shape[0], units = table.size() / std::max<int64_t>(rows, 1);
  T* arrays[3];
  for (int i = 0; i < 3; ++i) {
    arrays[i] = call.outputs[i].data<T>();
    const T* given = call.inputs[i == 0 ? 0 : i + 1].data<T>();
    if (given != arrays[i]) std::memcpy(arrays[i], given, table.size() * sizeof(T));
  }
  T *weight = arrays[0], *mean = arrays[1], *variance = arrays[2];
  const T* gradient = call.inputs[1].data<T>();
  const Array& numbers = call.inputs.back();
  const int64_t count = call.attributes.integer("count", 0);
  // The operator's caller has checked them; written elsewhere, they would end the process.
  if (count < 1 || numbers.at(0) < 0 || numbers.at(count - 1) >= rows) throw std::invalid_argument("no such row");
  auto pass = [&](int64_t begin, int64_t end, const T* given) {
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) {
      update.element(given ? given[j - begin] : T(0), weight + j, mean + j, variance + j, weight + j, mean + j,
                     variance + j);
    }
  };
  if (lazy) {
#pragma omp parallel for schedule(static) num_threads(num_threads) if (count * units > 16384)
    for (int64_t k = 0; k < count; ++k) {
      const int64_t row = static_cast<int64_t>(numbers.at(k));
      pass(row * units, (row + 1) * units, gradient + k * units);
    }
    return;
  }
  const int64_t parts = std::min<int64_t>(rows, num_threads * 8);
#pragma omp parallel for schedule(static) num_threads(num_threads) if (rows * units > 16384)
  for (int64_t part = 0; part < parts; ++part) {
    int64_t begin = rows * part / parts;
    const int64_t end = rows * (part + 1) / parts;
    int64_t k = 0;
    for (int64_t low = 0, high = count; low < high;) {  // the first of the part
      const int64_t middle = (low + high) / 2;
      if (numbers.at(middle) < begin) low = middle + 1; else high = middle;
      k = low;
    }
    for (; k < count && numbers.at(k) < end; ++k) {
      const int64_t row = static_cast<int64_t>(numbers.at(k));
      pass(begin * units, row * units, nullptr);
      pass(row * units, (row + 1) * units, gradient + k * units);
      begin = row + 1;
    }
    pass(begin * units, end * units, nullptr);
  }
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
      update_rows<T>(call, update, std::strcmp(given.find("rows"), "lazy") == 0);
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
