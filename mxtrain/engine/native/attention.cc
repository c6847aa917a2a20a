// Multi-head attention: float32, float64 to check it by, and bfloat16, which is taken and given, computed in float32.

#include <dlfcn.h>

#include "common.h"

namespace mxtrain {
namespace {

// OpenBLAS, which MXNet brings. Within a parallel region each product runs on the thread that asks for it. (To set its
// number of threads instead would free what products of other engine threads compute in.)
struct Blas {
  using Gemm32 = void (*)(int, int, int, int, int, int, float, const float*, int, const float*, int, float, float*, int);
  using Gemm64 = void (*)(int, int, int, int, int, int, double, const double*, int, const double*, int, double, double*,
                          int);
  Gemm32 gemm32 = nullptr;
  Gemm64 gemm64 = nullptr;

  std::string find() {
    void* library = dlopen("libopenblas.so.0", RTLD_LAZY | RTLD_NOLOAD);
    if (!library) return "MXNet's OpenBLAS is not there";
    gemm32 = reinterpret_cast<Gemm32>(dlsym(library, "cblas_sgemm"));
    gemm64 = reinterpret_cast<Gemm64>(dlsym(library, "cblas_dgemm"));
    return gemm32 && gemm64 ? "" : "MXNet's OpenBLAS lacks a function";
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

// softmax(Q K^T / sqrt(D)) V of every head, with dropout of the weights; keys beyond a text's length have weight 0, and
// with causal=1 those behind a query, too: of these, scores are made only within a block of rows.
// Scores are made block by block and never stored: backward makes them again.
// Source: Dao et al., "FlashAttention", 2022, algorithms 1 and 4 (blocks of rows only: caches here hold all columns).
//
// Inputs: queries, keys and values (T, B, 3 * U); then loose: lengths (B,), dropout's seed (64,) if there is dropout.
// Outputs: contexts (T, B, U); log-sum-exps of rows of scores (B, N, T).

constexpr int kBlockRows = 128;

void attention_count(const Attributes& attributes, int* inputs, int* outputs) {
  *inputs = 2 + has_dropout(attributes);
  *outputs = 2;
}
int attention_loose(const Attributes& attributes) { return 1 + has_dropout(attributes); }

void attention_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  unsigned heads = attributes.integer("num_heads", 1);
  const Dims& qkv = (*in)[0];
  if (qkv.size() != 3) throw std::invalid_argument("attention takes (T, B, 3 * U)");
  if (attributes.integer("num_heads", 1) < 1 || qkv[2] % (3 * heads)) throw std::invalid_argument("attention: heads must divide the units");
  (*in)[1] = {qkv[1]};
  if (has_dropout(attributes)) (*in)[2] = {kSeedBits};
  (*out)[0] = {qkv[0], qkv[1], qkv[2] / 3};
  (*out)[1] = {qkv[1], heads, qkv[0]};
}

struct Heads {
  int tokens, batch, heads, width;
  bool causal;
  double scale;
  Dropout dropout;
  const Array* lengths;

  // `like`: an output whose last axis has `parts` times the units. `inputs` of forward.
  Heads(const Attributes& attributes, const Array& like, int parts, const Array* inputs)
      : tokens(static_cast<int>(like.shape[0])), batch(static_cast<int>(like.shape[1])),
        heads(attributes.integer("num_heads", 1)), width(static_cast<int>(like.shape[2]) / parts / heads),
        causal(attributes.integer("causal", 0) != 0), scale(1 / std::sqrt(static_cast<double>(width))), lengths(&inputs[1]) {
    if (has_dropout(attributes)) dropout = dropout_of(attributes.number("p", 0), inputs[2]);
  }

  int units() const { return heads * width; }
  // A text without a token, or with more than there are, is taken as one without padding.
  int length(int text) const {
    const double given = lengths->at(text);
    return given >= 1 && given < tokens ? static_cast<int>(given) : tokens;
  }
  // Keys that queries before `end` look at, of a text of that length.
  int keys(int length, int end) const { return causal ? std::min(length, end) : length; }
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
  T* log_sum_exps = call.outputs[1].data<T>();
  const int U = h.units(), D = h.width, block = std::min(kBlockRows, h.tokens);
  const int64_t stride = int64_t{3} * h.batch * U, out_stride = int64_t{1} * h.batch * U, size = int64_t{1} * h.tokens * D;
  struct Workspace {
    std::vector<T> q, k, v, rows_out, scores, factors;
    std::vector<uint32_t> words;
  };
  std::vector<Workspace> workspaces(num_threads);
  for (Workspace& own : workspaces) {
    own = {std::vector<T>(size), std::vector<T>(size), std::vector<T>(size), std::vector<T>(block * D),
           std::vector<T>(int64_t{1} * block * h.tokens), std::vector<T>(h.tokens),
           std::vector<uint32_t>(h.tokens + 4)};
  }
#pragma omp parallel num_threads(num_threads)
  {
    auto& [q, k, v, rows_out, scores, factors, words] = workspaces[omp_get_thread_num()];
#pragma omp for schedule(static)
    for (int pair = 0; pair < h.batch * h.heads; ++pair) {
      const int text = pair / h.heads, head = pair % h.heads, L = h.length(text);
      const S* own = qkv + int64_t{3} * text * U + head * D;
      gather(own, stride, h.tokens, D, static_cast<T>(h.scale), q.data());
      gather(own + U, stride, L, D, T(1), k.data());
      gather(own + 2 * U, stride, L, D, T(1), v.data());
      for (int first = 0; first < h.tokens; first += block) {
        const int rows = std::min(block, h.tokens - first), C = h.keys(L, first + rows);
        product(false, true, rows, C, D, q.data() + int64_t{1} * first * D, D, k.data(), D, 0, scores.data(), C);
        for (int r = 0; r < rows; ++r) {
          T* row = scores.data() + int64_t{1} * r * C;
          const int seen = h.keys(C, first + r + 1);
          std::fill(row + seen, row + C, T(0));
          T largest = row[0];
#pragma omp simd reduction(max : largest)
          for (int j = 0; j < seen; ++j) largest = row[j] > largest ? row[j] : largest;
          T sum = 0;
#pragma omp simd reduction(+ : sum)
          for (int j = 0; j < seen; ++j) {
            row[j] = exp_of(row[j] - largest);
            sum += row[j];
          }
          log_sum_exps[int64_t{1} * pair * h.tokens + first + r] = largest + std::log(sum);
          const T inverse = 1 / sum;
          if (h.dropout.active) {
            h.dropout.factors(first + r, pair, seen, words.data(), factors.data());
#pragma omp simd
            for (int j = 0; j < seen; ++j) row[j] *= inverse * factors[j];
          } else {
#pragma omp simd
            for (int j = 0; j < seen; ++j) row[j] *= inverse;
          }
        }
        product(false, false, rows, D, C, scores.data(), C, v.data(), D, 0, rows_out.data(), D);
        scatter(rows_out.data(), rows, D, T(1), contexts + first * out_stride + int64_t{1} * text * U + head * D,
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
  const T* log_sum_exps = call.inputs[3 + num_inputs].data<T>();
  S* result = call.outputs[0].data<S>();
  const int U = h.units(), D = h.width, block = std::min(kBlockRows, h.tokens);
  const int64_t stride = int64_t{3} * h.batch * U, out_stride = int64_t{1} * h.batch * U, size = int64_t{1} * h.tokens * D;
  struct Workspace {
    std::vector<T> q, k, v, go, o, gq, gk, gv, weights, gradients, dropped, factors;
    std::vector<uint32_t> words;
  };
  std::vector<Workspace> workspaces(num_threads);
  for (Workspace& own : workspaces) {
    for (auto* one : {&own.q, &own.k, &own.v, &own.go, &own.o, &own.gq, &own.gk, &own.gv}) one->resize(size);
    for (auto* one : {&own.weights, &own.gradients, &own.dropped}) one->resize(int64_t{1} * block * h.tokens);
    own.factors.resize(h.tokens);
    own.words.resize(h.tokens + 4);
  }
#pragma omp parallel num_threads(num_threads)
  {
    auto& [q, k, v, go, o, gq, gk, gv, weights, gradients, dropped, factors, words] = workspaces[omp_get_thread_num()];
#pragma omp for schedule(static)
    for (int pair = 0; pair < h.batch * h.heads; ++pair) {
      const int text = pair / h.heads, head = pair % h.heads, L = h.length(text);
      const int64_t at = int64_t{3} * text * U + head * D, out_at = int64_t{1} * text * U + head * D;
      gather(qkv + at, stride, h.tokens, D, static_cast<T>(h.scale), q.data());
      gather(qkv + at + U, stride, L, D, T(1), k.data());
      gather(qkv + at + 2 * U, stride, L, D, T(1), v.data());
      gather(gradient + out_at, out_stride, h.tokens, D, T(1), go.data());
      gather(contexts + out_at, out_stride, h.tokens, D, T(1), o.data());
      if (h.causal) {  // the first blocks of rows do not reach all keys
        std::fill(gk.begin(), gk.end(), T(0));
        std::fill(gv.begin(), gv.end(), T(0));
      }
      for (int first = 0; first < h.tokens; first += block) {
        const int rows = std::min(block, h.tokens - first), C = h.keys(L, first + rows);
        const T beta = first || h.causal ? 1 : 0;
        const T* q_rows = q.data() + int64_t{1} * first * D;
        const T* go_rows = go.data() + int64_t{1} * first * D;
        product(false, true, rows, C, D, q_rows, D, k.data(), D, 0, weights.data(), C);
        product(false, true, rows, C, D, go_rows, D, v.data(), D, 0, gradients.data(), C);
        for (int r = 0; r < rows; ++r) {
          T* weight = weights.data() + int64_t{1} * r * C;
          T* score_gradient = gradients.data() + int64_t{1} * r * C;
          const int seen = h.keys(C, first + r + 1);
          std::fill(weight + seen, weight + C, T(0));
          std::fill(score_gradient + seen, score_gradient + C, T(0));
          const T log_sum_exp = log_sum_exps[int64_t{1} * pair * h.tokens + first + r];
          const T* go_row = go_rows + int64_t{1} * r * D;
          const T* o_row = o.data() + int64_t{1} * (first + r) * D;
          T mean = 0;
#pragma omp simd reduction(+ : mean)
          for (int j = 0; j < D; ++j) mean += go_row[j] * o_row[j];
          if (h.dropout.active) {
            T* kept = dropped.data() + int64_t{1} * r * C;
            std::fill(kept + seen, kept + C, T(0));
            h.dropout.factors(first + r, pair, seen, words.data(), factors.data());
#pragma omp simd
            for (int j = 0; j < seen; ++j) {
              const T own = exp_of(weight[j] - log_sum_exp);
              score_gradient[j] = own * (score_gradient[j] * factors[j] - mean);
              kept[j] = own * factors[j];
            }
          } else {
#pragma omp simd
            for (int j = 0; j < seen; ++j) {
              weight[j] = exp_of(weight[j] - log_sum_exp);
              score_gradient[j] = weight[j] * (score_gradient[j] - mean);
            }
          }
        }
        const T* used = h.dropout.active ? dropped.data() : weights.data();
        product(true, false, C, D, rows, used, C, go_rows, D, beta, gv.data(), D);
        product(true, false, C, D, rows, gradients.data(), C, q_rows, D, beta, gk.data(), D);
        product(false, false, rows, D, C, gradients.data(), C, k.data(), D, 0, gq.data() + int64_t{1} * first * D, D);
      }
      std::fill(gk.begin() + int64_t{1} * L * D, gk.end(), T(0));
      std::fill(gv.begin() + int64_t{1} * L * D, gv.end(), T(0));
      scatter(gq.data(), h.tokens, D, static_cast<T>(h.scale), result + at, stride);
      scatter(gk.data(), h.tokens, D, T(1), result + at + U, stride);
      scatter(gv.data(), h.tokens, D, T(1), result + at + 2 * U, stride);
    }
  }
}

}  // namespace

extern const Operator kAttention;
std::string find_blas() { return blas.find(); }

const Operator kAttention = {
    "_mxtrain_attention", attention_count, attention_shapes, attention_loose, true,
    by_type<attention_forward_of<float, float>, attention_forward_of<double, double>,
            attention_forward_of<BFloat16, float>>,
    by_type<attention_backward_of<float, float>, attention_backward_of<double, double>,
            attention_backward_of<BFloat16, float>>};

}  // namespace mxtrain
