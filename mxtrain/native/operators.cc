// Operators that MXNet 1.9.1 does not have, or has slow, for CPUs: float32, and float64 to check it by. Attention takes
// and gives bfloat16, too, and computes in float32.
//
// Names of dimensions: T tokens, B batch, N heads, D units of a head, U = N * D units, R rows.
// Results do not depend on the number of threads: sums over rows are made in a fixed number of parts.

#include <dlfcn.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "mxnet_library.h"

namespace mxtrain {
namespace {

// Of each parallel region: as many as OpenMP had when the library was loaded (OMP_NUM_THREADS). In MXNet's engine threads
// OpenMP's own default is 1, and MXNet's operators name their number, too.
int num_threads = 1;

// ---------------------------------------------------------------------------------------------- arithmetic

// exp for float within 2 units in the last place. Source: Cephes, expf.c (Moshier), whose range reduction and
// polynomial these are. Written without branches, so that compilers make vectors of it. 0 below -87.
inline float exp_of(float x) {
  float bounded = x < -87.0f ? -87.0f : (x > 88.0f ? 88.0f : x);
  float n = std::nearbyint(bounded * 1.44269504088896341f);
  float r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  int32_t bits = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  float result = p * power;
  // Comparisons are false for what is not a number, which `x` then hands on.
  return x < -87.0f ? 0.0f : (x == x ? (x > 88.0f ? HUGE_VALF : result) : x);
}
inline double exp_of(double x) { return std::exp(x); }

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
constexpr int kDrawn = 64;
Dropout dropout_of(double probability, const Array& drawn) {
  Dropout made;
  if (probability <= 0) return made;
  uint32_t bits[2] = {0, 0};
  for (int i = 0; i < kDrawn; ++i) {
    double value = drawn.at(i);
    if (value != 1) made.active = true;
    if (value > 1) bits[i / 32] |= 1u << (i % 32);
  }
  made.key = {bits[0], bits[1]};
  made.threshold = static_cast<uint32_t>(std::min(4294967295.0, probability * 4294967296.0));
  made.scale = 1 / (1 - probability);
  return made;
}

// ------------------------------------------------------------------------------------------ matrix products

// OpenBLAS, which MXNet brings; each product runs on the thread that asks for it.
struct Blas {
  using Gemm32 = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  using Gemm64 = void (*)(int, int, int, int, int, int, double, const double*, int, const double*, int, double, double*,
                          int);
  Gemm32 gemm32 = nullptr;
  Gemm64 gemm64 = nullptr;
  void (*set_threads)(int) = nullptr;
  int (*threads)() = nullptr;

  std::string find() {
    void* library = dlopen("libopenblas.so.0", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return "MXNet's OpenBLAS is not there";
    gemm32 = reinterpret_cast<Gemm32>(dlsym(library, "cblas_sgemm"));
    gemm64 = reinterpret_cast<Gemm64>(dlsym(library, "cblas_dgemm"));
    set_threads = reinterpret_cast<void (*)(int)>(dlsym(library, "openblas_set_num_threads"));
    threads = reinterpret_cast<int (*)()>(dlsym(library, "openblas_get_num_threads"));
    return gemm32 && gemm64 && set_threads && threads ? "" : "MXNet's OpenBLAS lacks a function";
  }
} blas;

constexpr int kRowMajor = 101, kPlain = 111, kTransposed = 112;

// out (m, n) = a (m, k) times b (k, n) + beta * out; either may be stored transposed.
inline void product(bool a_transposed, bool b_transposed, int m, int n, int k, const float* a, int lda, const float* b,
                    int ldb, float beta, float* out, int ldo) {
  blas.gemm32(kRowMajor, a_transposed ? kTransposed : kPlain, b_transposed ? kTransposed : kPlain, m, n, k, 1.0f, a,
              lda, b, ldb, beta, out, ldo);
}
inline void product(bool a_transposed, bool b_transposed, int m, int n, int k, const double* a, int lda,
                    const double* b, int ldb, double beta, double* out, int ldo) {
  blas.gemm64(kRowMajor, a_transposed ? kTransposed : kPlain, b_transposed ? kTransposed : kPlain, m, n, k, 1.0, a, lda,
              b, ldb, beta, out, ldo);
}

// While one lives, OpenBLAS divides no product between threads of its own; not those of other engine threads either.
class OneThreadEach {
 public:
  OneThreadEach() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (alive_++ == 0) {
      before_ = blas.threads();
      blas.set_threads(1);
    }
  }
  ~OneThreadEach() {
    std::lock_guard<std::mutex> lock(mutex_);
    if (--alive_ == 0) blas.set_threads(before_);
  }

 private:
  static std::mutex mutex_;
  static int alive_, before_;
};
std::mutex OneThreadEach::mutex_;
int OneThreadEach::alive_ = 0;
int OneThreadEach::before_ = 1;

// ------------------------------------------------------------------------------------------------ attention

// softmax(Q K^T / sqrt(D)) V of every head, with dropout of the weights; keys beyond a text's length have weight 0.
// Scores are made block by block and never stored: backward makes them again.
// Source: Dao et al., "FlashAttention", 2022, algorithms 1 and 4 (blocks of rows only: caches here hold all columns).
//
// Inputs: queries, keys and values (T, B, 3 * U); then loose: lengths (B,), dropout's draw (64,) if there is dropout.
// Outputs: contexts (T, B, U); logarithms of the sums of exponentials (B, N, T).

constexpr int kBlockRows = 128;

bool has_dropout(const Attributes& attributes) { return attributes.number("p", 0) > 0; }

void attention_count(const Attributes& attributes, int* inputs, int* outputs) {
  *inputs = 2 + has_dropout(attributes);
  *outputs = 2;
}
int attention_loose(const Attributes& attributes) { return 1 + has_dropout(attributes); }

void attention_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  unsigned heads = attributes.integer("num_heads", 1);
  const Dims& qkv = (*in)[0];
  if (qkv.size() != 3) throw std::invalid_argument("attention takes (T, B, 3 * U)");
  if (qkv[2] % (3 * heads)) throw std::invalid_argument("attention: heads must divide the units");
  (*in)[1] = {qkv[1]};
  if (has_dropout(attributes)) (*in)[2] = {kDrawn};
  (*out)[0] = {qkv[0], qkv[1], qkv[2] / 3};
  (*out)[1] = {qkv[1], heads, qkv[0]};
}

struct Heads {
  int tokens, batch, heads, width;
  double scale;
  Dropout dropout;
  const Array* lengths;

  // `like`: an output whose last axis has `parts` times the units. `inputs` of forward.
  Heads(const Attributes& attributes, const Array& like, int parts, const Array* inputs)
      : tokens(static_cast<int>(like.shape[0])), batch(static_cast<int>(like.shape[1])),
        heads(attributes.integer("num_heads", 1)), width(static_cast<int>(like.shape[2]) / parts / heads),
        scale(1 / std::sqrt(static_cast<double>(width))), lengths(&inputs[1]) {
    if (has_dropout(attributes)) dropout = dropout_of(attributes.number("p", 0), inputs[2]);
  }

  int units() const { return heads * width; }
  // A text without a token has nothing to look at: all of its scores count alike, as they do in a masked softmax.
  int length(int text) const {
    int given = static_cast<int>(lengths->at(text));
    return given <= 0 || given > tokens ? tokens : given;
  }
};

// Rows of one head, `stride` numbers apart, to a matrix (count, width), and back. S: as stored, T: to compute with.
template <typename S, typename T>
void gather(const S* from, int64_t stride, int count, int width, T factor, T* to) {
  for (int t = 0; t < count; ++t) {
#pragma omp simd
    for (int j = 0; j < width; ++j) to[int64_t{1} * t * width + j] = static_cast<T>(from[t * stride + j]) * factor;
  }
}
template <typename S, typename T>
void scatter(const T* from, int count, int width, T factor, S* to, int64_t stride) {
  for (int t = 0; t < count; ++t) {
#pragma omp simd
    for (int j = 0; j < width; ++j) to[t * stride + j] = static_cast<S>(from[int64_t{1} * t * width + j] * factor);
  }
}

template <typename S, typename T>
void attention_forward_of(const Call& call) {
  const Heads h(call.attributes, call.outputs[0], 1, call.inputs.data());
  const S* qkv = call.inputs[0].data<S>();
  S* contexts = call.outputs[0].data<S>();
  T* log_sums = call.outputs[1].data<T>();
  const int U = h.units(), D = h.width, block = std::min(kBlockRows, h.tokens);
  const int64_t stride = int64_t{3} * h.batch * U, out_stride = int64_t{1} * h.batch * U, size = int64_t{1} * h.tokens * D;
  struct Own {
    std::vector<T> q, k, v, made, scores, factors;
    std::vector<uint32_t> words;
  };
  std::vector<Own> of_threads(num_threads);
  for (Own& own : of_threads) {
    own = {std::vector<T>(size), std::vector<T>(size), std::vector<T>(size), std::vector<T>(block * D),
           std::vector<T>(int64_t{1} * block * h.tokens), std::vector<T>(h.tokens),
           std::vector<uint32_t>(h.tokens + 4)};
  }
  OneThreadEach one;
#pragma omp parallel num_threads(num_threads)
  {
    auto& [q, k, v, made, scores, factors, words] = of_threads[omp_get_thread_num()];
#pragma omp for schedule(static)
    for (int pair = 0; pair < h.batch * h.heads; ++pair) {
      const int text = pair / h.heads, head = pair % h.heads, L = h.length(text);
      const S* own = qkv + int64_t{3} * text * U + head * D;
      gather(own, stride, h.tokens, D, static_cast<T>(h.scale), q.data());
      gather(own + U, stride, L, D, T(1), k.data());
      gather(own + 2 * U, stride, L, D, T(1), v.data());
      for (int first = 0; first < h.tokens; first += block) {
        const int rows = std::min(block, h.tokens - first);
        product(false, true, rows, L, D, q.data() + int64_t{1} * first * D, D, k.data(), D, 0, scores.data(), L);
        for (int r = 0; r < rows; ++r) {
          T* row = scores.data() + int64_t{1} * r * L;
          T largest = row[0];
#pragma omp simd reduction(max : largest)
          for (int j = 0; j < L; ++j) largest = row[j] > largest ? row[j] : largest;
          T sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int j = 0; j < L; ++j) {
            row[j] = exp_of(row[j] - largest);
            sum += row[j];
          }
          log_sums[int64_t{1} * pair * h.tokens + first + r] = largest + std::log(sum);
          const T inverse = 1 / sum;
          if (h.dropout.active) {
            h.dropout.factors(first + r, pair, L, words.data(), factors.data());
#pragma omp simd
            for (int j = 0; j < L; ++j) row[j] *= inverse * factors[j];
          } else {
#pragma omp simd
            for (int j = 0; j < L; ++j) row[j] *= inverse;
          }
        }
        product(false, false, rows, D, L, scores.data(), L, v.data(), D, 0, made.data(), D);
        scatter(made.data(), rows, D, T(1), contexts + first * out_stride + int64_t{1} * text * U + head * D,
                out_stride);
      }
    }
  }
}

template <typename S, typename T>
void attention_backward_of(const Call& call) {
  // Inputs: gradients of the two outputs, forward's inputs, the two outputs.
  const Heads h(call.attributes, call.outputs[0], 3, call.inputs.data() + 2);
  const size_t num_inputs = call.outputs.size();
  for (size_t i = 1; i < num_inputs; ++i) call.outputs[i].fill_with_zeros();
  const S* gradient = call.inputs[0].data<S>();
  const S* qkv = call.inputs[2].data<S>();
  const S* contexts = call.inputs[2 + num_inputs].data<S>();
  const T* log_sums = call.inputs[3 + num_inputs].data<T>();
  S* result = call.outputs[0].data<S>();
  const int U = h.units(), D = h.width, block = std::min(kBlockRows, h.tokens);
  const int64_t stride = int64_t{3} * h.batch * U, out_stride = int64_t{1} * h.batch * U, size = int64_t{1} * h.tokens * D;
  struct Own {
    std::vector<T> q, k, v, go, o, gq, gk, gv, weights, gradients, dropped, factors;
    std::vector<uint32_t> words;
  };
  std::vector<Own> of_threads(num_threads);
  for (Own& own : of_threads) {
    for (auto* one : {&own.q, &own.k, &own.v, &own.go, &own.o, &own.gq, &own.gk, &own.gv}) one->resize(size);
    for (auto* one : {&own.weights, &own.gradients, &own.dropped}) one->resize(int64_t{1} * block * h.tokens);
    own.factors.resize(h.tokens);
    own.words.resize(h.tokens + 4);
  }
  OneThreadEach one;
#pragma omp parallel num_threads(num_threads)
  {
    auto& [q, k, v, go, o, gq, gk, gv, weights, gradients, dropped, factors, words] = of_threads[omp_get_thread_num()];
#pragma omp for schedule(static)
    for (int pair = 0; pair < h.batch * h.heads; ++pair) {
      const int text = pair / h.heads, head = pair % h.heads, L = h.length(text);
      const int64_t at = int64_t{3} * text * U + head * D, out_at = int64_t{1} * text * U + head * D;
      gather(qkv + at, stride, h.tokens, D, static_cast<T>(h.scale), q.data());
      gather(qkv + at + U, stride, L, D, T(1), k.data());
      gather(qkv + at + 2 * U, stride, L, D, T(1), v.data());
      gather(gradient + out_at, out_stride, h.tokens, D, T(1), go.data());
      gather(contexts + out_at, out_stride, h.tokens, D, T(1), o.data());
      for (int first = 0; first < h.tokens; first += block) {
        const int rows = std::min(block, h.tokens - first);
        const T beta = first ? 1 : 0;
        const T* q_rows = q.data() + int64_t{1} * first * D;
        const T* go_rows = go.data() + int64_t{1} * first * D;
        product(false, true, rows, L, D, q_rows, D, k.data(), D, 0, weights.data(), L);
        product(false, true, rows, L, D, go_rows, D, v.data(), D, 0, gradients.data(), L);
        for (int r = 0; r < rows; ++r) {
          T* weight = weights.data() + int64_t{1} * r * L;
          T* slope = gradients.data() + int64_t{1} * r * L;
          const T log_sum = log_sums[int64_t{1} * pair * h.tokens + first + r];
          const T* go_row = go_rows + int64_t{1} * r * D;
          const T* o_row = o.data() + int64_t{1} * (first + r) * D;
          T mean = 0;
#pragma omp simd reduction(+ : mean)
          for (int j = 0; j < D; ++j) mean += go_row[j] * o_row[j];
          if (h.dropout.active) {
            T* kept = dropped.data() + int64_t{1} * r * L;
            h.dropout.factors(first + r, pair, L, words.data(), factors.data());
#pragma omp simd
            for (int j = 0; j < L; ++j) {
              const T own = exp_of(weight[j] - log_sum);
              slope[j] = own * (slope[j] * factors[j] - mean);
              kept[j] = own * factors[j];
            }
          } else {
#pragma omp simd
            for (int j = 0; j < L; ++j) {
              weight[j] = exp_of(weight[j] - log_sum);
              slope[j] = weight[j] * (slope[j] - mean);
            }
          }
        }
        const T* used = h.dropout.active ? dropped.data() : weights.data();
        product(true, false, L, D, rows, used, L, go_rows, D, beta, gv.data(), D);
        product(true, false, L, D, rows, gradients.data(), L, q_rows, D, beta, gk.data(), D);
        product(false, false, rows, D, L, gradients.data(), L, k.data(), D, 0, gq.data() + int64_t{1} * first * D, D);
      }
      std::fill(gk.begin() + int64_t{1} * L * D, gk.end(), T(0));
      std::fill(gv.begin() + int64_t{1} * L * D, gv.end(), T(0));
      scatter(gq.data(), h.tokens, D, static_cast<T>(h.scale), result + at, stride);
      scatter(gk.data(), h.tokens, D, T(1), result + at + U, stride);
      scatter(gv.data(), h.tokens, D, T(1), result + at + 2 * U, stride);
    }
  }
}

// ----------------------------------------------------------------------------- dropout, sum, layer normalisation

// norm(dropout(x) + residual) over the last axis, (..., U), each part optional but the norm.
// Source: Ba et al., "Layer Normalization", 2016, equation 4, with epsilon added to the variance.
//
// Inputs: x, [residual], gamma, beta (U,), [dropout's draw (64,), loose].
// Outputs: y like x; means and inverse deviations of rows, (R,) each.

bool has_residual(const Attributes& attributes) { return attributes.integer("residual", 0) != 0; }

void norm_count(const Attributes& attributes, int* inputs, int* outputs) {
  *inputs = 3 + has_residual(attributes) + has_dropout(attributes);
  *outputs = 3;
}
int norm_loose(const Attributes& attributes) { return has_dropout(attributes); }

void norm_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  const Dims x = (*in)[0];
  unsigned rows = 1;
  for (size_t i = 0; i + 1 < x.size(); ++i) rows *= x[i];
  const int gamma = 1 + has_residual(attributes);
  if (has_residual(attributes)) (*in)[1] = x;
  (*in)[gamma] = (*in)[gamma + 1] = {x.back()};
  if (has_dropout(attributes)) (*in)[gamma + 2] = {kDrawn};
  (*out)[0] = x;
  (*out)[1] = (*out)[2] = {rows};
}

constexpr int kParts = 32;  // of rows, whatever the number of threads

// Numbered as inputs from `first` on.
struct Norm {
  int64_t rows, units;
  double epsilon;
  const Array *x, *residual, *gamma, *beta;
  Dropout dropout;

  Norm(const Call& call, int first) {
    const Attributes& attributes = call.attributes;
    x = &call.inputs[first++];
    residual = has_residual(attributes) ? &call.inputs[first++] : nullptr;
    gamma = &call.inputs[first++];
    beta = &call.inputs[first++];
    if (has_dropout(attributes)) dropout = dropout_of(attributes.number("p", 0), call.inputs[first]);
    epsilon = attributes.number("eps", 1e-12);
    const Array& like = call.outputs[0];  // y, or the gradient of x
    units = like.shape[like.dims - 1];
    rows = units ? like.size() / units : 0;
  }

  // A row of dropout(x) + residual; `factors` is filled if dropout is active.
  template <typename T>
  void sum(int64_t row, uint32_t* words, T* factors, T* out) const {
    const T* from = x->data<T>() + row * units;
    const int count = static_cast<int>(units);
    if (dropout.active) {
      dropout.factors(static_cast<uint32_t>(row), 0, count, words, factors);
#pragma omp simd
      for (int j = 0; j < count; ++j) out[j] = from[j] * factors[j];
    } else {
      std::copy(from, from + count, out);
    }
    if (residual) {
      const T* other = residual->data<T>() + row * units;
#pragma omp simd
      for (int j = 0; j < count; ++j) out[j] += other[j];
    }
  }
};

// What each thread needs for a row; made before the threads begin, where an exception may still be thrown.
template <typename T>
class Rows {
 public:
  struct Own {
    std::vector<T> sum, factors, slopes;
    std::vector<uint32_t> words;
  };
  explicit Rows(int units) : of_threads_(num_threads) {
    for (Own& own : of_threads_) {
      own = {std::vector<T>(units), std::vector<T>(units, T(1)), std::vector<T>(units),
             std::vector<uint32_t>(units + 4)};
    }
  }
  Own& own() { return of_threads_[omp_get_thread_num()]; }

 private:
  std::vector<Own> of_threads_;
};

template <typename T>
void norm_forward_of(const Call& call) {
  const Norm norm(call, 0);
  const int U = static_cast<int>(norm.units);
  const T* gamma = norm.gamma->data<T>();
  const T* beta = norm.beta->data<T>();
  T* result = call.outputs[0].data<T>();
  T* means = call.outputs[1].data<T>();
  T* inverses = call.outputs[2].data<T>();
  Rows<T> of_threads(U);
#pragma omp parallel num_threads(num_threads)
  {
    auto& [sum, factors, slopes, words] = of_threads.own();
#pragma omp for schedule(static)
    for (int64_t row = 0; row < norm.rows; ++row) {
      norm.sum(row, words.data(), factors.data(), sum.data());
      const T* h = sum.data();
      T* y = result + row * U;
      T mean = 0, variance = 0;
#pragma omp simd reduction(+ : mean)
      for (int j = 0; j < U; ++j) mean += h[j];
      mean /= U;
#pragma omp simd reduction(+ : variance)
      for (int j = 0; j < U; ++j) variance += (h[j] - mean) * (h[j] - mean);
      const T inverse = 1 / std::sqrt(variance / U + static_cast<T>(norm.epsilon));
#pragma omp simd
      for (int j = 0; j < U; ++j) y[j] = (h[j] - mean) * inverse * gamma[j] + beta[j];
      means[row] = mean;
      inverses[row] = inverse;
    }
  }
}

template <typename T>
void norm_backward_of(const Call& call) {
  // Gradients of the three outputs, the inputs, the three outputs.
  const Norm norm(call, 3);
  const int U = static_cast<int>(norm.units), num_inputs = static_cast<int>(call.outputs.size());
  const T* gradient = call.inputs[0].data<T>();
  const T* gamma = norm.gamma->data<T>();
  const T* means = call.inputs[3 + num_inputs + 1].data<T>();
  const T* inverses = call.inputs[3 + num_inputs + 2].data<T>();
  T* of_x = call.outputs[0].data<T>();
  T* of_residual = norm.residual ? call.outputs[1].data<T>() : nullptr;
  const int at_gamma = norm.residual ? 2 : 1;
  if (has_dropout(call.attributes)) call.outputs[at_gamma + 2].fill_with_zeros();
  std::vector<T> sums(int64_t{2} * kParts * U, T(0));
  Rows<T> of_threads(U);
#pragma omp parallel num_threads(num_threads)
  {
    auto& [sum, factors, slopes, words] = of_threads.own();
#pragma omp for schedule(static)
    for (int part = 0; part < kParts; ++part) {
      T* of_gamma = sums.data() + int64_t{2} * part * U;
      T* of_beta = of_gamma + U;
      for (int64_t row = norm.rows * part / kParts; row < norm.rows * (part + 1) / kParts; ++row) {
        norm.sum(row, words.data(), factors.data(), sum.data());
        T* h = sum.data();
        T* slope = slopes.data();
        const T* from = gradient + row * U;
        const T mean = means[row], inverse = inverses[row];
        T first = 0, second = 0;
#pragma omp simd reduction(+ : first, second)
        for (int j = 0; j < U; ++j) {
          h[j] = (h[j] - mean) * inverse;
          of_gamma[j] += from[j] * h[j];
          of_beta[j] += from[j];
          slope[j] = from[j] * gamma[j];
          first += slope[j];
          second += slope[j] * h[j];
        }
        first /= U;
        second /= U;
        T* to = of_x + row * U;
        if (of_residual) {
          T* other = of_residual + row * U;
#pragma omp simd
          for (int j = 0; j < U; ++j) {
            const T all = inverse * (slope[j] - first - h[j] * second);
            other[j] = all;
            to[j] = all * factors[j];
          }
        } else {
#pragma omp simd
          for (int j = 0; j < U; ++j) to[j] = inverse * (slope[j] - first - h[j] * second) * factors[j];
        }
      }
    }
  }
  T* of_gamma = call.outputs[at_gamma].data<T>();
  T* of_beta = call.outputs[at_gamma + 1].data<T>();
  for (int j = 0; j < U; ++j) {
    T gamma_sum = 0, beta_sum = 0;
    for (int part = 0; part < kParts; ++part) {
      gamma_sum += sums[int64_t{2} * part * U + j];
      beta_sum += sums[(int64_t{2} * part + 1) * U + j];
    }
    of_gamma[j] = gamma_sum;
    of_beta[j] = beta_sum;
  }
}

// ---------------------------------------------------------------------------------------------------- AdamW

// One step of AdamW for several parameters. Source: Loshchilov and Hutter, https://arxiv.org/abs/1711.05101,
// algorithm 2; `lrs` are corrections of the moments' bias, `etas` rates.
//
// Inputs: weight, gradient, mean, variance of each. Outputs: weight, mean, variance of each, to be given as `out`.

void adamw_count(const Attributes& attributes, int* inputs, int* outputs) {
  const int size = attributes.integer("size", 1);
  *inputs = 4 * size;
  *outputs = 3 * size;
}
int adamw_loose(const Attributes&) { return 0; }

void adamw_shapes(const Attributes&, std::vector<Dims>* in, std::vector<Dims>* out) {
  for (size_t i = 0; i < out->size(); ++i) {
    const Dims& own = (*in)[4 * (i / 3)];
    (*out)[i] = own;
    for (int j = 0; j < 4; ++j) (*in)[4 * (i / 3) + j] = own;
  }
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
  for (size_t i = 0; i < size; ++i) {
    const T* old = call.inputs[4 * i].data<T>();
    const T* gradient = call.inputs[4 * i + 1].data<T>();
    const T* old_mean = call.inputs[4 * i + 2].data<T>();
    const T* old_variance = call.inputs[4 * i + 3].data<T>();
    T* weight = call.outputs[3 * i].data<T>();
    T* mean = call.outputs[3 * i + 1].data<T>();
    T* variance = call.outputs[3 * i + 2].data<T>();
    const T step = etas[i] * lrs[i], keep = 1 - etas[i] * wds[i];
    const int64_t count = call.outputs[3 * i].size();
#pragma omp parallel for simd schedule(static) num_threads(num_threads) if (count > 16384)
    for (int64_t j = 0; j < count; ++j) {
      T g = gradient[j] * rescale;
      if (clip >= 0) g = g > clip ? clip : (g < -clip ? -clip : g);
      const T m = beta1 * old_mean[j] + rest1 * g;
      const T v = beta2 * old_variance[j] + rest2 * g * g;
      mean[j] = m;
      variance[j] = v;
      weight[j] = keep * old[j] - step * m / (std::sqrt(v) + epsilon);
    }
  }
}

// --------------------------------------------------------------------------------------------- what there is

// The version of an operator for how the first output is stored.
template <void (*Single)(const Call&), void (*Double)(const Call&), void (*Half)(const Call&) = nullptr>
void by_type(const Call& call) {
  const int type = call.outputs[0].dtype;
  if (type == kBFloat16 && Half) {
    Half(call);
  } else {
    (type == kFloat64 ? Double : Single)(call);
  }
}

const Operator kAttention = {
    "_mxtrain_attention", attention_count, attention_shapes, attention_loose, true,
    by_type<attention_forward_of<float, float>, attention_forward_of<double, double>,
            attention_forward_of<BFloat16, float>>,
    by_type<attention_backward_of<float, float>, attention_backward_of<double, double>,
            attention_backward_of<BFloat16, float>>};
const Operator kNorm = {
    "_mxtrain_norm", norm_count, norm_shapes, norm_loose, false,
    by_type<norm_forward_of<float>, norm_forward_of<double>>,
    by_type<norm_backward_of<float>, norm_backward_of<double>>};
const Operator kAdamW = {
    "_mxtrain_adamw", adamw_count, adamw_shapes, adamw_loose, false,
    by_type<adamw_forward_of<float>, adamw_forward_of<double>>, nullptr};

}  // namespace

const Operator* const kOperators[] = {&kAttention, &kNorm, &kAdamW};
const int kNumOperators = 3;

std::string prepare() {
  num_threads = omp_get_max_threads();
  return blas.find();
}

}  // namespace mxtrain
