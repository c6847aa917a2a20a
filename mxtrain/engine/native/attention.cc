// Multi-head attention: float32, float64 to check it by, and bfloat16, which is taken and given, computed in float32.

#include "common.h"
#include "product.h"

namespace mxtrain {
namespace {

// softmax(Q K^T / sqrt(D)) V of every head, with dropout of the weights; keys beyond a text's length have weight 0, and
// with causal=1 those behind a query, too: of these, scores are made only within a block of rows.
// Scores are made block by block and never stored: backward makes them again.
// Source: Dao et al., "FlashAttention", 2022, algorithms 1 and 4 (blocks of rows only: caches here hold all columns).
//
// Of a text to itself. Inputs: queries, keys and values (T, B, 3 * U); then loose: lengths (B,), unless padded=0 says that
// all are T; dropout's seed (64,) if there is dropout. Outputs: contexts (T, B, U); log-sum-exps of rows of scores (B, N, T).
//
// Of a text to another one. Inputs: queries (T, B, U); keys and values (S, B, 2 * U); the same loose ones, lengths of
// keys. Outputs: the same, and (S,) zeros: shapes are read from outputs, and no other one has that of the keys.

constexpr int kBlockRows = 128;

bool has_lengths(const Attributes& attributes) { return attributes.integer("padded", 1) != 0; }
int attention_loose(const Attributes& attributes) { return has_lengths(attributes) + has_dropout(attributes); }

void attention_count(const Attributes& attributes, int* inputs, int* outputs) {
  *inputs = 1 + attention_loose(attributes);
  *outputs = 2;
}
void cross_attention_count(const Attributes& attributes, int* inputs, int* outputs) {
  *inputs = 2 + attention_loose(attributes);
  *outputs = 3;
}

void attention_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  const Dims& qkv = (*in)[0];
  if (qkv.size() != 3 || qkv[2] % 3) throw std::invalid_argument("attention takes (T, B, 3 * U)");
  const unsigned heads = heads_of(attributes, qkv[2] / 3);
  if (has_lengths(attributes)) (*in)[1] = {qkv[1]};
  if (has_dropout(attributes)) in->back() = {kSeedBits};
  (*out)[0] = {qkv[0], qkv[1], qkv[2] / 3};
  (*out)[1] = {qkv[1], heads, qkv[0]};
}

void cross_attention_shapes(const Attributes& attributes, std::vector<Dims>* in, std::vector<Dims>* out) {
  const Dims &q = (*in)[0], &kv = (*in)[1];
  if (q.size() != 3 || kv.size() != 3 || kv[1] != q[1] || kv[2] != 2 * q[2]) {
    throw std::invalid_argument("attention takes (T, B, U) and (S, B, 2 * U)");
  }
  const unsigned heads = heads_of(attributes, q[2]);
  (*in)[2] = {q[1]};
  if (has_dropout(attributes)) (*in)[3] = {kSeedBits};
  (*out)[0] = q;
  (*out)[1] = {q[1], heads, q[0]};
  (*out)[2] = {kv[0]};
}

struct Heads {
  int tokens, sources, batch, heads, width;  // queries, keys, texts, N, D
  bool causal;
  double scale;
  Dropout dropout;
  const Array* lengths;  // nullptr: no text is padded

  // `like`: (T, B, parts * U). `loose`: perhaps lengths and perhaps a seed.
  Heads(const Attributes& attributes, const Array& like, int parts, int num_sources, const Array* loose)
      : tokens(static_cast<int>(like.shape[0])), sources(num_sources), batch(static_cast<int>(like.shape[1])),
        heads(attributes.integer("num_heads", 1)), width(static_cast<int>(like.shape[2]) / parts / heads),
        causal(attributes.integer("causal", 0) != 0), scale(1 / std::sqrt(static_cast<double>(width))),
        lengths(has_lengths(attributes) ? loose : nullptr) {
    if (has_dropout(attributes)) dropout = dropout_of(attributes.number("p", 0), loose[has_lengths(attributes)]);
  }

  int units() const { return heads * width; }
  // A text without a token, or with more than there are, is taken as one without padding.
  int length(int text) const {
    const double given = lengths ? lengths->at(text) : sources;
    return given >= 1 && given < sources ? static_cast<int>(given) : sources;
  }
  // Keys that queries before `end` look at, of a text of that length.
  int keys(int length, int end) const { return causal ? std::min(length, end) : length; }
};

// A part of an array (rows, B, packed * U): queries, keys or values of all heads, or their gradients.
template <typename S>
struct Part {
  S* first;
  int packed;

  S* of(const Heads& h, int text, int head) const { return first + int64_t{packed} * text * h.units() + head * h.width; }
  int64_t stride(const Heads& h) const { return int64_t{packed} * h.batch * h.units(); }
};

template <typename S>
struct Parts {
  Part<S> q, k, v;

  static Parts of_self(S* qkv, int units) { return {{qkv, 3}, {qkv + units, 3}, {qkv + 2 * units, 3}}; }
  static Parts of_cross(S* q, S* kv, int units) { return {{q, 1}, {kv, 2}, {kv + units, 2}}; }
};

// Rows of one head, `stride` numbers apart, to those of a matrix, `row` apart, and back. S: as stored, T: to compute with.
template <typename S, typename T>
void gather(const S* from, int64_t stride, int count, int width, T factor, T* to, int row) {
  for (int t = 0; t < count; ++t) widen(from + t * stride, width, factor, to + int64_t{1} * t * row);
}
template <typename S, typename T>
void scatter(const T* from, int row, int count, int width, T factor, S* to, int64_t stride) {
  for (int t = 0; t < count; ++t) narrow(from + int64_t{1} * t * row, width, factor, to + t * stride);
}
// The same to a transposed matrix (width, count), whose columns are filled up with zeros; `own` has room for a row.
template <typename S, typename T>
void gather_columns(const S* from, int64_t stride, int count, int width, T* own, T* to, int row) {
  for (int t = 0; t < count; ++t) {
    widen(from + t * stride, width, T(1), own);
    for (int j = 0; j < width; ++j) to[int64_t{1} * j * row + t] = own[j];
  }
  for (int j = 0; j < width; ++j) {
    T* end = to + int64_t{1} * j * row;
    std::fill(end + count, end + filled(count), T(0));
  }
}

template <typename S, typename T>
void forward_of(const Heads& h, const Parts<const S>& given, S* contexts, T* log_sum_exps) {
  const int D = h.width, W = filled(D), K = filled(h.sources), block = std::min(kBlockRows, h.tokens);
  const Part<S> made{contexts, 1};
  struct Workspace {
    std::vector<T> q, k_columns, v, rows_out, scores, factors;
    std::vector<uint32_t> words;
  };
  std::vector<Workspace> workspaces(num_threads);
  for (Workspace& own : workspaces) {
    own = {std::vector<T>(int64_t{1} * h.tokens * W), std::vector<T>(int64_t{1} * W * K),
           std::vector<T>(int64_t{1} * h.sources * W), std::vector<T>(block * W), std::vector<T>(int64_t{1} * block * K),
           std::vector<T>(std::max(W, h.sources)), std::vector<uint32_t>(h.sources + 4)};
  }
#pragma omp parallel num_threads(num_threads)
  {
    auto& [q, k_columns, v, rows_out, scores, factors, words] = workspaces[omp_get_thread_num()];
#pragma omp for schedule(static)
    for (int pair = 0; pair < h.batch * h.heads; ++pair) {
      const int text = pair / h.heads, head = pair % h.heads, L = h.length(text);
      gather(given.q.of(h, text, head), given.q.stride(h), h.tokens, D, static_cast<T>(h.scale), q.data(), W);
      gather_columns(given.k.of(h, text, head), given.k.stride(h), L, D, factors.data(), k_columns.data(), K);
      gather(given.v.of(h, text, head), given.v.stride(h), L, D, T(1), v.data(), W);
      for (int first = 0; first < h.tokens; first += block) {
        const int rows = std::min(block, h.tokens - first), C = h.keys(L, first + rows);
        const int64_t columns = filled(C);
        product<T>(rows, columns, {q.data() + int64_t{1} * first * W, W, 1}, D, k_columns.data(), K, false,
                   scores.data(), columns);
        for (int r = 0; r < rows; ++r) {
          T* row = scores.data() + r * columns;
          const int seen = h.keys(C, first + r + 1);
          std::fill(row + seen, row + columns, T(0));
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
        product<T>(rows, W, {scores.data(), columns, 1}, C, v.data(), W, false, rows_out.data(), W);
        scatter(rows_out.data(), W, rows, D, T(1), made.of(h, text, head) + first * made.stride(h), made.stride(h));
      }
    }
  }
}

template <typename S, typename T>
void backward_of(const Heads& h, const Parts<const S>& given, const S* head_gradient, const S* contexts,
                 const T* log_sum_exps, const Parts<S>& result) {
  const int D = h.width, W = filled(D), K = filled(h.sources), block = std::min(kBlockRows, h.tokens);
  const Part<const S> gradient{head_gradient, 1}, outputs{contexts, 1};
  struct Workspace {
    std::vector<T> q, k, k_columns, v_columns, go, o, gq, gk, gv, weights, gradients, dropped, factors;
    std::vector<uint32_t> words;
  };
  std::vector<Workspace> workspaces(num_threads);
  for (Workspace& own : workspaces) {
    for (auto* one : {&own.q, &own.go, &own.o, &own.gq}) one->resize(int64_t{1} * h.tokens * W);
    for (auto* one : {&own.k, &own.gk, &own.gv}) one->resize(int64_t{1} * h.sources * W);
    for (auto* one : {&own.k_columns, &own.v_columns}) one->resize(int64_t{1} * W * K);
    for (auto* one : {&own.weights, &own.gradients, &own.dropped}) one->resize(int64_t{1} * block * K);
    own.factors.resize(std::max(W, h.sources));
    own.words.resize(h.sources + 4);
  }
#pragma omp parallel num_threads(num_threads)
  {
    auto& [q, k, k_columns, v_columns, go, o, gq, gk, gv, weights, gradients, dropped, factors, words] =
        workspaces[omp_get_thread_num()];
#pragma omp for schedule(static)
    for (int pair = 0; pair < h.batch * h.heads; ++pair) {
      const int text = pair / h.heads, head = pair % h.heads, L = h.length(text);
      gather(given.q.of(h, text, head), given.q.stride(h), h.tokens, D, static_cast<T>(h.scale), q.data(), W);
      gather(given.k.of(h, text, head), given.k.stride(h), L, D, T(1), k.data(), W);
      gather_columns(given.k.of(h, text, head), given.k.stride(h), L, D, factors.data(), k_columns.data(), K);
      gather_columns(given.v.of(h, text, head), given.v.stride(h), L, D, factors.data(), v_columns.data(), K);
      gather(gradient.of(h, text, head), gradient.stride(h), h.tokens, D, T(1), go.data(), W);
      gather(outputs.of(h, text, head), outputs.stride(h), h.tokens, D, T(1), o.data(), W);
      if (h.causal) {  // the first blocks of rows do not reach all keys
        std::fill(gk.begin(), gk.end(), T(0));
        std::fill(gv.begin(), gv.end(), T(0));
      }
      for (int first = 0; first < h.tokens; first += block) {
        const int rows = std::min(block, h.tokens - first), C = h.keys(L, first + rows);
        const bool adds = first || h.causal;
        const int64_t columns = filled(C);
        const T* q_rows = q.data() + int64_t{1} * first * W;
        const T* go_rows = go.data() + int64_t{1} * first * W;
        product<T>(rows, columns, {q_rows, W, 1}, D, k_columns.data(), K, false, weights.data(), columns);
        product<T>(rows, columns, {go_rows, W, 1}, D, v_columns.data(), K, false, gradients.data(), columns);
        for (int r = 0; r < rows; ++r) {
          T* weight = weights.data() + r * columns;
          T* score_gradient = gradients.data() + r * columns;
          const int seen = h.keys(C, first + r + 1);
          std::fill(weight + seen, weight + columns, T(0));
          std::fill(score_gradient + seen, score_gradient + columns, T(0));
          const T log_sum_exp = log_sum_exps[int64_t{1} * pair * h.tokens + first + r];
          const T* go_row = go_rows + int64_t{1} * r * W;
          const T* o_row = o.data() + int64_t{1} * (first + r) * W;
          T mean = 0;
#pragma omp simd reduction(+ : mean)
          for (int j = 0; j < D; ++j) mean += go_row[j] * o_row[j];
          if (h.dropout.active) {
            T* kept = dropped.data() + r * columns;
            std::fill(kept + seen, kept + columns, T(0));
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
        product<T>(C, W, {used, 1, columns}, rows, go_rows, W, adds, gv.data(), W);
        product<T>(C, W, {gradients.data(), 1, columns}, rows, q_rows, W, adds, gk.data(), W);
        product<T>(rows, W, {gradients.data(), columns, 1}, C, k.data(), W, false,
                   gq.data() + int64_t{1} * first * W, W);
      }
      std::fill(gk.begin() + int64_t{1} * L * W, gk.end(), T(0));
      std::fill(gv.begin() + int64_t{1} * L * W, gv.end(), T(0));
      scatter(gq.data(), W, h.tokens, D, static_cast<T>(h.scale), result.q.of(h, text, head), result.q.stride(h));
      scatter(gk.data(), W, h.sources, D, T(1), result.k.of(h, text, head), result.k.stride(h));
      scatter(gv.data(), W, h.sources, D, T(1), result.v.of(h, text, head), result.v.stride(h));
    }
  }
}

template <typename S, typename T>
void attention_forward_of(const Call& call) {
  const Array& made = call.outputs[0];
  const Heads h(call.attributes, made, 1, static_cast<int>(made.shape[0]), call.inputs.data() + 1);
  forward_of<S, T>(h, Parts<const S>::of_self(call.inputs[0].data<S>(), h.units()), made.data<S>(),
                   call.outputs[1].data<T>());
}

template <typename S, typename T>
void cross_attention_forward_of(const Call& call) {
  const Array& made = call.outputs[0];
  const Heads h(call.attributes, made, 1, static_cast<int>(call.outputs[2].shape[0]), &call.inputs[2]);
  call.outputs[2].fill_with_zeros();
  const auto given = Parts<const S>::of_cross(call.inputs[0].data<S>(), call.inputs[1].data<S>(), h.units());
  forward_of<S, T>(h, given, made.data<S>(), call.outputs[1].data<T>());
}

// Inputs of backward: gradients of the outputs, forward's inputs, the outputs.

template <typename S, typename T>
void attention_backward_of(const Call& call) {
  const Array& made = call.outputs[0];
  const Heads h(call.attributes, made, 3, static_cast<int>(made.shape[0]), call.inputs.data() + 3);
  const size_t num_inputs = call.outputs.size();
  for (size_t i = 1; i < num_inputs; ++i) call.outputs[i].fill_with_zeros();
  backward_of<S, T>(h, Parts<const S>::of_self(call.inputs[2].data<S>(), h.units()), call.inputs[0].data<S>(),
                    call.inputs[2 + num_inputs].data<S>(), call.inputs[3 + num_inputs].data<T>(),
                    Parts<S>::of_self(made.data<S>(), h.units()));
}

template <typename S, typename T>
void cross_attention_backward_of(const Call& call) {
  const Array &of_queries = call.outputs[0], &of_keys = call.outputs[1];
  const Heads h(call.attributes, of_queries, 1, static_cast<int>(of_keys.shape[0]), &call.inputs[5]);
  const size_t num_inputs = call.outputs.size();
  for (size_t i = 2; i < num_inputs; ++i) call.outputs[i].fill_with_zeros();
  backward_of<S, T>(h, Parts<const S>::of_cross(call.inputs[3].data<S>(), call.inputs[4].data<S>(), h.units()),
                    call.inputs[0].data<S>(), call.inputs[3 + num_inputs].data<S>(),
                    call.inputs[4 + num_inputs].data<T>(),
                    Parts<S>::of_cross(of_queries.data<S>(), of_keys.data<S>(), h.units()));
}

}  // namespace

extern const Operator kAttention, kCrossAttention;

const Operator kAttention = {
    "_mxtrain_attention", attention_count, attention_shapes, attention_loose, {1, 1},
    by_type<attention_forward_of<float, float>, attention_forward_of<double, double>,
            attention_forward_of<BFloat16, float>>,
    by_type<attention_backward_of<float, float>, attention_backward_of<double, double>,
            attention_backward_of<BFloat16, float>>};

const Operator kCrossAttention = {
    "_mxtrain_cross_attention", cross_attention_count, cross_attention_shapes, attention_loose, {2, 1},
    by_type<cross_attention_forward_of<float, float>, cross_attention_forward_of<double, double>,
            cross_attention_forward_of<BFloat16, float>>,
    by_type<cross_attention_backward_of<float, float>, cross_attention_backward_of<double, double>,
            cross_attention_backward_of<BFloat16, float>>};

}  // namespace mxtrain
