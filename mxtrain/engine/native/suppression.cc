// Non-maximum suppression of many boxes: float32, and float64 to check it by.

#include "common.h"

namespace mxtrain {
namespace {

// The first boxes of each image that no kept one before them covers: as MXNet's box_nms with force_suppress, of boxes
// that are in the order of their scores already, and only as many as are wanted.
//
// Inputs: (B, candidates, 5): score, left, top, right, bottom; scores up to `least` are of no box.
// Outputs: (B, keep, 5), those behind the last with -1 everywhere.

constexpr int kColumns = 5;

void suppression_count(const Attributes&, int* inputs, int* outputs) { *inputs = *outputs = 1; }
int suppression_loose(const Attributes&) { return 0; }

void suppression_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  const unsigned batch = (*in)[0][0];
  (*in)[0] = {batch, static_cast<unsigned>(attributes.integer("candidates", 1)), kColumns};
  (*out)[0] = {batch, static_cast<unsigned>(attributes.integer("keep", 1)), kColumns};
}

// Boxes of an image, by column: vectors of the processor's compare one with many.
template <typename T>
struct Boxes {
  std::vector<T> left, top, right, bottom, area, is_gone;

  explicit Boxes(int64_t size) : left(size), top(size), right(size), bottom(size), area(size), is_gone(size) {}

  void read(const T* rows, T least) {
    for (size_t i = 0; i < left.size(); ++i) {
      const T* row = rows + kColumns * i;
      is_gone[i] = !(row[0] > least);
      left[i] = row[1];
      top[i] = row[2];
      right[i] = row[3];
      bottom[i] = row[4];
      area[i] = right[i] < left[i] || bottom[i] < top[i] ? T(0) : (right[i] - left[i]) * (bottom[i] - top[i]);
    }
  }

  // Takes away what lies behind box `i` and has a larger intersection over union with it.
  void suppress(int64_t i, T iou) {
    const T l = left[i], t = top[i], r = right[i], b = bottom[i], own = area[i];
    const T *lefts = left.data(), *tops = top.data(), *rights = right.data(), *bottoms = bottom.data();
    const T* areas = area.data();
    T* gone = is_gone.data();
    const int64_t size = left.size();
#pragma omp simd
    for (int64_t j = i + 1; j < size; ++j) {
      const T width = (rights[j] < r ? rights[j] : r) - (lefts[j] > l ? lefts[j] : l);
      const T height = (bottoms[j] < b ? bottoms[j] : b) - (tops[j] > t ? tops[j] : t);
      const T common = (width > 0 ? width : T(0)) * (height > 0 ? height : T(0));
      gone[j] = common / (own + areas[j] - common) > iou ? T(1) : gone[j];
    }
  }
};

template <typename T>
void suppression_forward_of(const Call& call) {
  const Array& out = call.outputs[0];
  const int64_t batch = out.shape[0], keep = out.shape[1], candidates = call.attributes.integer("candidates", 1);
  const T iou = call.attributes.number("iou", 0.5), least = call.attributes.number("least", 0);
  const T* rows = call.inputs[0].data<T>();
  std::vector<Boxes<T>> boxes(num_threads, Boxes<T>(candidates));
  std::fill(out.data<T>(), out.data<T>() + out.size(), T(-1));
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t image = 0; image < batch; ++image) {
    Boxes<T>& own = boxes[omp_get_thread_num()];
    const T* from = rows + image * candidates * kColumns;
    T* to = out.data<T>() + image * keep * kColumns;
    own.read(from, least);
    int64_t kept = 0;
    for (int64_t i = 0; i < candidates && kept < keep; ++i) {
      if (own.is_gone[i] != 0) continue;
      std::copy(from + kColumns * i, from + kColumns * (i + 1), to + kColumns * kept++);
      if (kept < keep) own.suppress(i, iou);
    }
  }
}

// Which boxes are kept has no slope.
template <typename T>
void suppression_backward_of(const Call& call) {
  call.outputs[0].fill_with_zeros();
}

}  // namespace

extern const Operator kSuppression;
const Operator kSuppression = {
    "_mxtrain_suppression", suppression_count, suppression_shapes, suppression_loose, {0, 0},
    by_type<suppression_forward_of<float>, suppression_forward_of<double>>,
    by_type<suppression_backward_of<float>, suppression_backward_of<double>>};

}  // namespace mxtrain
