// What the operators share: how many threads they use, exponentials, random numbers, dropout.
//
// Names of dimensions: T tokens, B batch, N heads, D units of a head, U = N * D units, R rows.
// Results do not depend on the number of threads: sums over rows are made in a fixed number of parts.

#ifndef MXTRAIN_COMMON_H_
#define MXTRAIN_COMMON_H_

#include <omp.h>

#include <algorithm>
#include <cmath>

#include "mxnet_library.h"

namespace mxtrain {

// Of each parallel region: what OpenMP's default was when the library was loaded. MXNet's operators name their number,
// too; in MXNet's engine threads the default is 1 where OMP_NUM_THREADS is not set.
inline int num_threads = 1;

// exp for float within 2 units in the last place. Source: Cephes, expf.c (Moshier), whose range reduction and
// polynomial these are. Written without branches, so that compilers make vectors of it. 0 below -87.
inline float exp_of(float x) {
  float bounded = x > -87.0f ? (x > 88.0f ? 88.0f : x) : -87.0f;  // also of what is not a number
  float n = std::nearbyint(bounded * 1.44269504088896341f);
  float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  uint32_t bits = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  float result = p * power;
  // Comparisons are false for what is not a number, which `x` then hands on.
  return x < -87.0f ? 0.0f : (x == x ? (x > 88.0f ? HUGE_VALF : result) : x);
}
inline double exp_of(double x) { return std::exp(x); }

// Numbers as they are stored to numbers to compute with, times a factor, and back. Loops over BFloat16 itself, whose
// conversions branch, do not become vectors.
template <typename S, typename T>
inline void widen(const S* from, int64_t count, T factor, T* to) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) to[j] = from[j] * factor;
}
inline void widen(const BFloat16* from, int64_t count, float factor, float* to) {
  const uint16_t* bits = &from->bits;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const uint32_t all = static_cast<uint32_t>(bits[j]) << 16;
    float value;
    std::memcpy(&value, &all, sizeof value);
    to[j] = value * factor;
  }
}
template <typename S, typename T>
inline void narrow(const T* from, int64_t count, T factor, S* to) {
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) to[j] = from[j] * factor;
}
inline void narrow(const float* from, int64_t count, float factor, BFloat16* to) {
  uint16_t* bits = &to->bits;
#pragma omp simd
  for (int64_t j = 0; j < count; ++j) {
    const float value = from[j] * factor;
    uint32_t all;
    std::memcpy(&all, &value, sizeof all);
    const uint32_t rounded = (all + 0x7FFFu + ((all >> 16) & 1u)) >> 16;  // to the nearest, ties to even
    bits[j] = static_cast<uint16_t>((all & 0x7FFFFFFFu) > 0x7F800000u ? 0x7FC0u : rounded);
  }
}

// Random numbers as a function of a key and a counter: Philox4x32-10. Source: Salmon et al., "Parallel random numbers:
// as easy as 1, 2, 3", 2011, section 3.
struct Key {
  uint32_t low, high;
};

// Fills `words` (4 * quarter of them) with what the counters (0 .. quarter - 1, row, matrix, 0) give.
inline void random_words(Key key, uint32_t row, uint32_t matrix, int quarter, uint32_t* words) {
#pragma omp simd
  for (int i = 0; i < quarter; ++i) {
    uint32_t a = static_cast<uint32_t>(i), b = row, c = matrix, d = 0;
    uint32_t low = key.low, high = key.high;
    for (int round = 0; round < 10; ++round) {
      uint64_t left = static_cast<uint64_t>(a) * 0xD2511F53u, right = static_cast<uint64_t>(c) * 0xCD9E8D57u;
      uint32_t next_a = static_cast<uint32_t>(right >> 32) ^ b ^ low;
      uint32_t next_c = static_cast<uint32_t>(left >> 32) ^ d ^ high;
      b = static_cast<uint32_t>(right);
      d = static_cast<uint32_t>(left);
      a = next_a;
      c = next_c;
      low += 0x9E3779B9u;
      high += 0xBB67AE85u;
    }
    words[i] = a;
    words[quarter + i] = b;
    words[2 * quarter + i] = c;
    words[3 * quarter + i] = d;
  }
}

// What dropout does in one call.
struct Dropout {
  bool active = false;
  Key key{0, 0};
  uint32_t threshold = 0;  // words below it are dropped
  double scale = 1;

  // A row's factors: 0 or `scale`. `words` has room for count + 3.
  template <typename T>
  void factors(uint32_t row, uint32_t matrix, int count, uint32_t* words, T* out) const {
    random_words(key, row, matrix, (count + 3) / 4, words);
    T kept = static_cast<T>(scale);
#pragma omp simd
    for (int i = 0; i < count; ++i) out[i] = words[i] < threshold ? T(0) : kept;
  }
};

// From 64 ones that went through MXNet's own Dropout of probability 0.5: ones where it infers, else zeros and twos, of
// which a key is made. So it draws from MXNet's own generator, and only while training.
// mxtrain/model/networks/fused.py writes the same number.
constexpr int kSeedBits = 64;
inline Dropout dropout_of(double probability, const Array& seed) {
  Dropout made;
  if (probability <= 0) return made;
  if (probability >= 1) throw std::invalid_argument("dropout of all there is");
  uint32_t bits[2] = {0, 0};
  for (int i = 0; i < kSeedBits; ++i) {
    double value = seed.at(i);
    if (value != 1) made.active = true;
    if (value > 1) bits[i / 32] |= 1u << (i % 32);
  }
  made.key = {bits[0], bits[1]};
  made.threshold = static_cast<uint32_t>(std::min(4294967295.0, probability * 4294967296.0));
  made.scale = 1 / (1 - probability);
  return made;
}

// Whether an input says what gradients are multiplied by first.
inline bool is_scaled(const Attributes& attributes) { return attributes.integer("scaled", 0) != 0; }

// How many heads so many units are divided among.
inline unsigned heads_of(const Attributes& attributes, unsigned units) {
  const int heads = attributes.integer("num_heads", 1);
  if (heads < 1 || units % heads) throw std::invalid_argument("attention: heads must divide the units");
  return static_cast<unsigned>(heads);
}

inline bool has_dropout(const Attributes& attributes) { return attributes.number("p", 0) > 0; }

// The version of an operator for a type.
template <void (*Single)(const Call&), void (*Double)(const Call&), void (*Half)(const Call&) = nullptr>
void by_type_of(int type, const Call& call) {
  if (type == kBFloat16 && Half) {
    Half(call);
  } else {
    (type == kFloat64 ? Double : Single)(call);
  }
}

// The version of an operator for how the first output is stored.
template <void (*Single)(const Call&), void (*Double)(const Call&), void (*Half)(const Call&) = nullptr>
void by_type(const Call& call) {
  by_type_of<Single, Double, Half>(call.outputs[0].dtype, call);
}

}  // namespace mxtrain

#endif  // MXTRAIN_COMMON_H_
