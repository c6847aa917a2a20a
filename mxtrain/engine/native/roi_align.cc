// What a feature pyramid shows of regions: float32, and float64 to check it by.

#include "common.h"

namespace mxtrain {
namespace {

// RoIAlign with two samples along each side of a cell, each region from one of several maps.
// Source: He et al., "Mask R-CNN", 2017, section 3, as MXNet's ROIAlign with sample_ratio=2.
//
// Inputs: maps (B, C, h, w) each; regions (B * count, 5): number of a map, left, top, right, bottom in pixels. Those of a
// image follow each other.
// Outputs: (B * count, C, side, side).
//
// Channels are taken kLanes at a time and laid side by side, so that each sample is a few vectors. Threads share out
// images and channels, never regions: no two add to the same gradient, and none adds in another order.

constexpr int kLanes = 16;
constexpr int kSamples = 2;  // along each side of a cell

int num_maps(const Attributes& attributes) { return attributes.integer("maps", 1); }

void roi_align_count(const Attributes& attributes, int* inputs, int* outputs) {
  *inputs = num_maps(attributes) + 1;
  *outputs = 1;
}
int roi_align_loose(const Attributes&) { return 0; }

void roi_align_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  const size_t maps = num_maps(attributes);
  const std::vector<double> heights = attributes.numbers("heights", maps), widths = attributes.numbers("widths", maps);
  const unsigned batch = (*in)[0][0], channels = (*in)[0][1], side = attributes.integer("side", 1);
  const unsigned rows = batch * attributes.integer("count", 1);
  for (size_t i = 0; i < maps; ++i) {
    (*in)[i] = {batch, channels, static_cast<unsigned>(heights[i]), static_cast<unsigned>(widths[i])};
  }
  (*in)[maps] = {rows, 5};
  (*out)[0] = {rows, channels, side, side};
}

// Where a map is read along one of its sides: between two places, of which each has a share; both are 0 outside.
template <typename T>
struct Sample {
  int low = 0, high = 0;
  T low_share = 0, high_share = 0;

  Sample() = default;
  Sample(T at, int size) {
    if (!(at >= -1 && at <= size)) return;  // nor what is not a number
    at = at > 0 ? at : T(0);
    low = std::min(static_cast<int>(at), size - 1);
    high = std::min(low + 1, size - 1);
    const T beyond = low == high ? T(0) : at - static_cast<T>(low);
    low_share = (1 - beyond) / kSamples;
    high_share = beyond / kSamples;
  }
};

struct Map {
  int height, width;
  double scale;
  int64_t places() const { return int64_t{height} * width; }
};

// All of a call but its arrays.
template <typename T>
struct Plan {
  int side, per_axis;
  int64_t count, most_places = 0;
  std::vector<Map> maps;
  std::vector<int> map_of;            // of each region
  std::vector<Sample<T>> samples;     // of each region, down and then across
  std::vector<std::vector<T>> lanes;  // of each thread, kLanes for each place of a map

  Plan(const Attributes& given, const T* rows, int64_t num_rows) {
    const size_t size = num_maps(given);
    const std::vector<double> heights = given.numbers("heights", size), widths = given.numbers("widths", size);
    const std::vector<double> scales = given.numbers("scales", size);
    for (size_t i = 0; i < size; ++i) {
      maps.push_back({static_cast<int>(heights[i]), static_cast<int>(widths[i]), scales[i]});
      most_places = std::max(most_places, maps.back().places());
    }
    side = given.integer("side", 1);
    count = given.integer("count", 1);
    per_axis = kSamples * side;
    map_of.resize(num_rows);
    samples.resize(num_rows * 2 * per_axis);
    for (int64_t row = 0; row < num_rows; ++row) {
      const T* region = rows + 5 * row;
      map_of[row] = std::min(std::max(static_cast<int>(region[0] >= 0 ? region[0] : T(0)), 0), static_cast<int>(size) - 1);
      const Map& map = maps[map_of[row]];
      const T scale = map.scale;
      sample(region[2] * scale, region[4] * scale, map.height, of(row));
      sample(region[1] * scale, region[3] * scale, map.width, of(row) + per_axis);
    }
    lanes.assign(num_threads, std::vector<T>(most_places * kLanes));
  }

  Sample<T>* of(int64_t row) { return samples.data() + row * 2 * per_axis; }

  void sample(T begin, T end, int size, Sample<T>* out) const {
    const T cell = std::max(end - begin, T(1)) / side;
    for (int i = 0; i < per_axis; ++i) {
      const T within = (i % kSamples + T(0.5)) * cell / kSamples;
      out[i] = Sample<T>(begin + (i / kSamples) * cell + within, size);
    }
  }

  // Calls visit(cell, place in the lanes, share) for all that is read of a region.
  template <typename Visit>
  void visit(int64_t row, int width, Visit visit) {
    const Sample<T>* down = of(row);
    const Sample<T>* across = down + per_axis;
    for (int y = 0; y < per_axis; ++y) {
      const Sample<T>& v = down[y];
      for (int x = 0; x < per_axis; ++x) {
        const Sample<T>& h = across[x];
        const int64_t cell = int64_t{y / kSamples} * side + x / kSamples;
        visit(cell, (int64_t{v.low} * width + h.low) * kLanes, v.low_share * h.low_share);
        visit(cell, (int64_t{v.low} * width + h.high) * kLanes, v.low_share * h.high_share);
        visit(cell, (int64_t{v.high} * width + h.low) * kLanes, v.high_share * h.low_share);
        visit(cell, (int64_t{v.high} * width + h.high) * kLanes, v.high_share * h.high_share);
      }
    }
  }
};

// Lays `channels` arrays of `places` side by side, and back.
template <typename T>
void interleave(const T* from, int channels, int64_t places, T* lanes) {
  for (int64_t at = 0; at < places; ++at) {
    for (int c = 0; c < channels; ++c) lanes[at * kLanes + c] = from[c * places + at];
  }
}
template <typename T>
void separate(const T* lanes, int channels, int64_t places, T* to) {
  for (int c = 0; c < channels; ++c) {
    for (int64_t at = 0; at < places; ++at) to[c * places + at] = lanes[at * kLanes + c];
  }
}

// Calls work(map, image, first channel, number of channels, regions of them, the thread's lanes and cells).
template <typename T, typename Work>
void for_all(Plan<T>* plan, int64_t batch, int64_t channels, Work work) {
  const int64_t blocks = (channels + kLanes - 1) / kLanes;
  std::vector<std::vector<T>> cells(num_threads, std::vector<T>(int64_t{plan->side} * plan->side * kLanes));
  std::vector<std::vector<std::vector<int64_t>>> rows(batch, std::vector<std::vector<int64_t>>(plan->maps.size()));
  for (int64_t row = 0; row < batch * plan->count; ++row) rows[row / plan->count][plan->map_of[row]].push_back(row);
#pragma omp parallel for schedule(static) num_threads(num_threads)
  for (int64_t task = 0; task < batch * blocks; ++task) {
    const int64_t image = task / blocks, first = task % blocks * kLanes;
    const int number = static_cast<int>(std::min<int64_t>(kLanes, channels - first)), thread = omp_get_thread_num();
    for (size_t map = 0; map < plan->maps.size(); ++map) {
      work(map, image * channels + first, first, number, rows[image][map], plan->lanes[thread].data(),
           cells[thread].data());
    }
  }
}

template <typename T>
void roi_align_forward_of(const Call& call) {
  const Array& out = call.outputs[0];
  const int64_t rows = out.shape[0], channels = out.shape[1];
  const T* regions = call.inputs[num_maps(call.attributes)].template data<T>();
  Plan<T> plan(call.attributes, regions, rows);
  const int64_t cells_of_region = int64_t{plan.side} * plan.side;
  for_all<T>(&plan, rows / plan.count, channels,
             [&](size_t map, int64_t channel, int64_t first, int number, const std::vector<int64_t>& own, T* lanes,
                 T* cells) {
    if (own.empty()) return;
    const int64_t places = plan.maps[map].places();
    interleave(call.inputs[map].template data<T>() + channel * places, number, places, lanes);
    for (int64_t row : own) {
      std::fill(cells, cells + cells_of_region * kLanes, T(0));
      plan.visit(row, plan.maps[map].width, [=](int64_t cell, int64_t place, T share) {
        T* to = cells + cell * kLanes;
        const T* from = lanes + place;
#pragma omp simd
        for (int c = 0; c < kLanes; ++c) to[c] += share * from[c];
      });
      separate(cells, number, cells_of_region, out.data<T>() + (row * channels + first) * cells_of_region);
    }
  });
}

template <typename T>
void roi_align_backward_of(const Call& call) {
  const int maps = num_maps(call.attributes);
  const int64_t batch = call.outputs[0].shape[0], channels = call.outputs[0].shape[1];
  const T* gradient = call.inputs[0].data<T>();
  const T* regions = call.inputs[1 + maps].data<T>();
  Plan<T> plan(call.attributes, regions, batch * call.attributes.integer("count", 1));
  const int64_t cells_of_region = int64_t{plan.side} * plan.side;
  for_all<T>(&plan, batch, channels,
             [&](size_t map, int64_t channel, int64_t first, int number, const std::vector<int64_t>& own, T* lanes,
                 T* cells) {
    const int64_t places = plan.maps[map].places();
    std::fill(lanes, lanes + places * kLanes, T(0));
    for (int64_t row : own) {
      interleave(gradient + (row * channels + first) * cells_of_region, number, cells_of_region, cells);
      plan.visit(row, plan.maps[map].width, [=](int64_t cell, int64_t place, T share) {
        const T* from = cells + cell * kLanes;
        T* to = lanes + place;
#pragma omp simd
        for (int c = 0; c < kLanes; ++c) to[c] += share * from[c];
      });
    }
    separate(lanes, number, places, call.outputs[map].template data<T>() + channel * places);
  });
  call.outputs[maps].fill_with_zeros();
}

}  // namespace

extern const Operator kRoiAlign;
const Operator kRoiAlign = {
    "_mxtrain_roi_align", roi_align_count, roi_align_shapes, roi_align_loose, {0, 0},
    by_type<roi_align_forward_of<float>, roi_align_forward_of<double>>,
    by_type<roi_align_backward_of<float>, roi_align_backward_of<double>>};

}  // namespace mxtrain
