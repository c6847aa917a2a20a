// Functions that MXNet 1.9.1 looks up in a library of operators (MXLoadLib). See mxnet_library.h.

#include "mxnet_library.h"

#include <algorithm>

namespace {

using mxtrain::Array;
using mxtrain::Attributes;
using mxtrain::Call;
using mxtrain::Dims;
using mxtrain::Operator;

thread_local std::string last_message;

// Runs `body`; 1, or 0 with a message where it throws: no exception crosses to MXNet.
template <typename Body>
int guarded(Body body) {
  last_message.clear();
  try {
    body();
    return 1;
  } catch (const std::exception& error) {
    last_message = error.what();
  } catch (...) {
    last_message = "unknown exception";
  }
  return 0;
}

unsigned* copied(const Dims& dims) {
  auto* copy = static_cast<unsigned*>(std::malloc(sizeof(unsigned) * (dims.empty() ? 1 : dims.size())));
  for (size_t i = 0; i < dims.size(); ++i) copy[i] = dims[i];
  return copy;
}

void hand_over(const std::vector<Dims>& all, unsigned*** shapes, int** lengths) {
  *lengths = static_cast<int*>(std::malloc(sizeof(int) * (all.size() + 1)));
  *shapes = static_cast<unsigned**>(std::malloc(sizeof(unsigned*) * (all.size() + 1)));
  for (size_t i = 0; i < all.size(); ++i) {
    (*lengths)[i] = static_cast<int>(all[i].size());
    (*shapes)[i] = copied(all[i]);
  }
}

std::vector<Array> arrays(int count, void** data, const int64_t** shapes, int* dims, int* types) {
  std::vector<Array> found;
  found.reserve(count);
  for (int i = 0; i < count; ++i) found.push_back({data[i], shapes[i], dims[i], types[i]});
  return found;
}

bool is_float(int type) { return type == mxtrain::kFloat32 || type == mxtrain::kFloat64; }

const char* kCpu = "cpu";
const char* kNone = nullptr;

}  // namespace

// MXNet hands pointers to these back without looking at what they point to.
struct Handle {
  const Operator* op;
  bool is_backward;
};

extern "C" {

int _opVersion() { return mxtrain::kLibraryVersion; }

int initialize(int version) {
  last_message.clear();
  if (version < 10900 || version >= 20000) {
    last_message = "written for MXNet 1.9";
  } else {
    last_message = mxtrain::prepare();
  }
  return last_message.empty() ? 1 : 0;
}

int _msgSize() { return last_message.empty() ? 0 : 1; }
void _msgGet(int, const char** message) { *message = last_message.c_str(); }

int _opRegSize() { return mxtrain::kNumOperators; }

void _opRegGet(int index, const char** name, int* is_subgraph, const char*** forward_contexts, void*** forward,
               int* num_forward, const char*** backward_contexts, void*** backward, int* num_backward,
               const char*** create_contexts, void*** create, int* num_create, void** parse, void** type,
               void** storage_type, void** shape, void** mutate) {
  constexpr int kMost = 16;
  static Handle handles[2 * kMost];
  static void* pointers[2 * kMost];
  const Operator* op = mxtrain::kOperators[index];
  for (int is_backward = 0; is_backward < 2; ++is_backward) {
    handles[2 * index + is_backward] = {op, is_backward == 1};
    pointers[2 * index + is_backward] = &handles[2 * index + is_backward];
  }
  *name = op->name;
  *is_subgraph = 0;
  *forward_contexts = &kCpu;
  *forward = &pointers[2 * index];
  *num_forward = 1;
  *backward_contexts = &kCpu;
  *backward = &pointers[2 * index + 1];
  *num_backward = op->backward ? 1 : 0;
  *create_contexts = &kNone;
  *create = nullptr;
  *num_create = 0;
  *parse = *type = *shape = pointers[2 * index];
  *storage_type = *mutate = nullptr;
}

void _opCallFree(void* pointer) { std::free(pointer); }

int _opCallParseAttrs(void* handle, const char* const* keys, const char* const* values, int count, int* num_inputs,
                      int* num_outputs) {
  return guarded([&] {
    static_cast<Handle*>(handle)->op->count({keys, values, count}, num_inputs, num_outputs);
  });
}

int _opCallInferShape(void* handle, const char* const* keys, const char* const* values, int count,
                      unsigned** in_shapes, int* in_dims, int num_inputs, unsigned*** changed_shapes,
                      int** changed_dims, unsigned*** out_shapes, int** out_dims, int num_outputs) {
  return guarded([&] {
    std::vector<Dims> inputs(num_inputs), outputs(num_outputs);
    for (int i = 0; i < num_inputs; ++i) {
      for (int j = 0; j < in_dims[i]; ++j) inputs[i].push_back(in_shapes[i][j]);
    }
    if (inputs[0].empty() || std::count(inputs[0].begin(), inputs[0].end(), ~0u)) {
      throw std::invalid_argument("the shape of the first input must be known");
    }
    static_cast<Handle*>(handle)->op->shapes({keys, values, count}, &inputs, &outputs);
    hand_over(inputs, changed_shapes, changed_dims);
    hand_over(outputs, out_shapes, out_dims);
  });
}

int _opCallInferType(void* handle, const char* const* keys, const char* const* values, int count, int* in_types,
                     int num_inputs, int* out_types, int num_outputs) {
  return guarded([&] {
    const Operator* op = static_cast<Handle*>(handle)->op;
    const int loose = op->num_loose({keys, values, count}), type = in_types[0];
    const bool is_bfloat16 = type == mxtrain::kBFloat16 && op->bfloat16.inputs;
    if (!is_bfloat16 && !is_float(type) && type != mxtrain::kUnknown) {
      throw std::invalid_argument(op->bfloat16.inputs ? "takes float32, float64 and bfloat16 only"
                                                      : "takes float32 and float64 only");
    }
    for (int i = 0; i < num_inputs; ++i) {
      const bool is_loose = i >= num_inputs - loose;
      if (!is_loose || in_types[i] == mxtrain::kUnknown) {
        in_types[i] = is_bfloat16 && i >= op->bfloat16.inputs ? mxtrain::kFloat32 : type;
      } else if (!is_float(in_types[i])) {
        throw std::invalid_argument("takes lengths, labels and seeds in float32 and float64 only");
      }
    }
    for (int i = 0; i < num_outputs; ++i) {
      out_types[i] = is_bfloat16 && i >= op->bfloat16.outputs ? mxtrain::kFloat32 : type;
    }
  });
}

int _opCallFCompute(void* handle, const char* const* keys, const char* const* values, int count,
                    const int64_t** in_shapes, int* in_dims, void** in_data, int* in_types, size_t*, const char**,
                    int*, int num_inputs, const int64_t** out_shapes, int* out_dims, void** out_data, int* out_types,
                    size_t*, const char**, int*, int num_outputs, ...) {
  return guarded([&] {
    auto* which = static_cast<Handle*>(handle);
    Call call{{keys, values, count},
              arrays(num_inputs, in_data, in_shapes, in_dims, in_types),
              arrays(num_outputs, out_data, out_shapes, out_dims, out_types)};
    (which->is_backward ? which->op->backward : which->op->forward)(call);
  });
}

// What MXNet asks of a library and this one does not have.
int _opCallInferSType() { return 0; }
int _opCallMutateInputs() { return 0; }
int _opCallCreateOpState() { return 0; }
void _opCallDestroyOpState() {}
int _opCallFStatefulCompute() { return 0; }
int _partRegSize() { return 0; }
int _partRegGetCount() { return 0; }
void _partRegGet() {}
int _partCallSupportedOps() { return 0; }
int _partCallCreateSelector() { return 0; }
void _partCallSelect() {}
void _partCallSelectInput() {}
void _partCallSelectOutput() {}
void _partCallFilter() {}
void _partCallReset() {}
int _partCallReviewSubgraph() { return 0; }
int _passRegSize() { return 0; }
void _passRegGet() {}
int _passCallGraphPass() { return 0; }

}  // extern "C"
