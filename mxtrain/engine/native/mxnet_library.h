// The C interface between MXNet 1.9.1 and a library of operators (version 11 of it), as far as operators need it.
//
// MXNet's wheel has the header of its C++ wrapper of this interface, but not the source that goes with it. What is here
// is the interface itself: functions that MXNet looks up by name. An operator is a struct of function pointers.
//
// Two facts that MXNet does not tell an operator of a library, so that whoever builds a graph must see to them
// (mxtrain/model/networks/fused.py):
// - whether it trains or infers;
// - that a gradient is to be added to what is there (kAddTo). It overwrites.
//
// Two traps: where inputs lie in oneDNN's layouts, MXNet copies them and leaves the pointers to their shapes dangling, so
// shapes are read from outputs; and shape inference needs shapes that are known, of which MXNet passes unknown ones as
// having -1 dimensions.

#ifndef MXTRAIN_MXNET_LIBRARY_H_
#define MXTRAIN_MXNET_LIBRARY_H_

#include <locale.h>

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
constexpr int kBFloat16 = 12;

// As strtod, whatever the locale writes for a decimal point.
inline double parsed(const char* text, char** end) {
  static const locale_t plain = newlocale(LC_ALL_MASK, "C", nullptr);
  return strtod_l(text, end, plain);
}

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
    return value ? parsed(value, nullptr) : otherwise;
  }
  int integer(const char* key, int otherwise) const { return static_cast<int>(number(key, otherwise)); }
  // `size` of them: "[0.1, 0.2]" or "(0.1, 0.2)"; one alone is that of all.
  std::vector<double> numbers(const char* key, size_t size) const {
    std::vector<double> found;
    const char* at = find(key);
    if (!at) throw std::invalid_argument(std::string("no attribute ") + key);
    while (*at) {
      char* end = nullptr;
      double value = parsed(at, &end);
      if (end == at) {
        ++at;
      } else {
        found.push_back(value);
        at = end;
      }
    }
    if (found.size() == 1) found.resize(size, found[0]);
    if (found.size() != size) throw std::invalid_argument(std::string("one number for each array: ") + key);
    return found;
  }
};

using Dims = std::vector<unsigned>;

// The upper half of a float32.
struct BFloat16 {
  uint16_t bits;

  BFloat16() = default;
  explicit BFloat16(float value) {
    uint32_t all;
    std::memcpy(&all, &value, sizeof all);
    const uint32_t rounded = (all + 0x7FFFu + ((all >> 16) & 1u)) >> 16;  // to the nearest, ties to even
    bits = static_cast<uint16_t>(value == value ? rounded : 0x7FC0u);
  }
  explicit operator float() const {
    const uint32_t all = static_cast<uint32_t>(bits) << 16;
    float value;
    std::memcpy(&value, &all, sizeof value);
    return value;
  }
};

// A dense array in row-major order.
struct Array {
  void* pointer;
  const int64_t* shape;  // of an output; that of an input may dangle
  int dims;
  int dtype;

  template <typename T>
  T* data() const { return static_cast<T*>(pointer); }
  int64_t size() const {
    int64_t product = 1;
    for (int i = 0; i < dims; ++i) product *= shape[i];
    return product;
  }
  void fill_with_zeros() const {
    std::memset(pointer, 0, size() * (dtype == kFloat64 ? sizeof(double) : sizeof(float)));
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
  // How many of the first inputs may be bfloat16, and how many of the first outputs are it then; all others are float32
  // then. (Gradients have the types of what they are of.)
  struct {
    int inputs, outputs;
  } bfloat16;
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
