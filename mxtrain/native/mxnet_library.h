// The C interface between MXNet 1.9.1 and a library of operators (version 11 of it), as far as operators need it.
//
// MXNet's wheel has the header of its C++ wrapper of this interface, but not the source that goes with it. What is here
// is the interface itself: functions that MXNet looks up by name. An operator is a struct of function pointers.
//
// Two things that MXNet does not tell an operator of a library, so that whoever builds a graph must see to them
// (mxtrain/model/fused.py):
// - whether it trains or infers;
// - that a gradient is to be added to what is there (kAddTo). It overwrites.

#ifndef MXTRAIN_MXNET_LIBRARY_H_
#define MXTRAIN_MXNET_LIBRARY_H_

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

namespace mxtrain {

constexpr int kLibraryVersion = 11;
constexpr int kUnknown = -1;
constexpr int kFloat32 = 0;
constexpr int kFloat64 = 1;

// Attributes of an operator's call: what the graph says in strings.
struct Attributes {
  const char* const* keys;
  const char* const* values;
  int count;

  const char* find(const char* key) const {
    for (int i = 0; i < count; ++i) {
      if (std::strcmp(keys[i], key) == 0) return values[i];
    }
    return nullptr;
  }
  double number(const char* key, double otherwise) const {
    const char* value = find(key);
    return value ? std::strtod(value, nullptr) : otherwise;
  }
  int integer(const char* key, int otherwise) const { return static_cast<int>(number(key, otherwise)); }
  // "[0.1, 0.2]" or "(0.1, 0.2)".
  std::vector<double> numbers(const char* key) const {
    std::vector<double> found;
    const char* at = find(key);
    if (!at) throw std::invalid_argument(std::string("no attribute ") + key);
    while (*at) {
      char* end = nullptr;
      double value = std::strtod(at, &end);
      if (end == at) {
        ++at;
      } else {
        found.push_back(value);
        at = end;
      }
    }
    return found;
  }
};

using Dims = std::vector<unsigned>;

// A dense array in row-major order.
struct Array {
  void* pointer;
  const int64_t* shape;
  int dims;
  int dtype;

  template <typename T>
  T* data() const { return static_cast<T*>(pointer); }
  int64_t size() const {
    int64_t product = 1;
    for (int i = 0; i < dims; ++i) product *= shape[i];
    return product;
  }
  // Of a small array of either floating type.
  double at(int64_t index) const {
    return dtype == kFloat64 ? data<double>()[index] : static_cast<double>(data<float>()[index]);
  }
};

struct Call {
  Attributes attributes;
  std::vector<Array> inputs;
  std::vector<Array> outputs;
};

struct Operator {
  const char* name;
  void (*count)(const Attributes&, int* num_inputs, int* num_outputs);
  void (*shapes)(const Attributes&, std::vector<Dims>* inputs, std::vector<Dims>* outputs);
  // How many of the last inputs may have another floating type than the rest.
  int (*num_loose)(const Attributes&);
  void (*forward)(const Call&);
  // Inputs: gradients of outputs, inputs, outputs. nullptr: it has no gradient.
  void (*backward)(const Call&);
};

// What the library has.
extern const Operator* const kOperators[];
extern const int kNumOperators;
// Called once before anything else; "" or why the library cannot be used.
std::string prepare();

}  // namespace mxtrain

#endif  // MXTRAIN_MXNET_LIBRARY_H_
