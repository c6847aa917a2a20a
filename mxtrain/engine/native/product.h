// Products of small matrices, each on the thread that asks for it, for whatever vectors the processor has.

#ifndef MXTRAIN_PRODUCT_H_
#define MXTRAIN_PRODUCT_H_

#include <cstdint>
#include <cstring>

namespace mxtrain {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64, kPanelVectors = 4;  // 32 registers: 6 rows of 4 vectors, and what is read
#elif defined(__AVX__)
constexpr int kVectorBytes = 32, kPanelVectors = 2;
#else
constexpr int kVectorBytes = 16, kPanelVectors = 2;
#endif
constexpr int kPanelRows = 6;
// Columns of matrices are filled up to a multiple of it.
constexpr int kColumns = 16;
inline int filled(int columns) { return (columns + kColumns - 1) / kColumns * kColumns; }

// (rows, columns) with distances between neighbours.
template <typename T>
struct Matrix {
  const T* first;
  int64_t row, column;
};

// Multiplications and additions become one instruction here, unlike elsewhere (see FLAGS).
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=fast")
#endif

template <typename T>
using Vector __attribute__((vector_size(kVectorBytes), aligned(alignof(T)), may_alias)) = T;

// A panel of the result, its sums in registers.
template <typename T, int Rows, int Vectors>
__attribute__((noinline)) void panel(const T* a, int64_t a_row, int64_t a_column, int count, const T* b, int64_t ldb,
                                     bool adds, T* out, int64_t ldo) {
  constexpr int kWidth = kVectorBytes / sizeof(T);
  Vector<T> sums[Rows][Vectors];
  for (int i = 0; i < Rows; ++i) {
    for (int v = 0; v < Vectors; ++v) {
      sums[i][v] = adds ? *reinterpret_cast<const Vector<T>*>(out + i * ldo + v * kWidth) : Vector<T>{};
    }
  }
  for (int k = 0; k < count; ++k) {
    Vector<T> row[Vectors];
    for (int v = 0; v < Vectors; ++v) row[v] = *reinterpret_cast<const Vector<T>*>(b + k * ldb + v * kWidth);
    for (int i = 0; i < Rows; ++i) {
      const T factor = a[i * a_row + k * a_column];
      for (int v = 0; v < Vectors; ++v) sums[i][v] += factor * row[v];
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int v = 0; v < Vectors; ++v) *reinterpret_cast<Vector<T>*>(out + i * ldo + v * kWidth) = sums[i][v];
  }
}

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC pop_options
#endif

template <typename T, int Vectors>
void panels(int rows, const Matrix<T>& a, int count, const T* b, int64_t ldb, bool adds, T* out, int64_t ldo) {
  int i = 0;
  for (; i + kPanelRows <= rows; i += kPanelRows) {
    panel<T, kPanelRows, Vectors>(a.first + i * a.row, a.row, a.column, count, b, ldb, adds, out + i * ldo, ldo);
  }
  for (; i < rows; ++i) {
    panel<T, 1, Vectors>(a.first + i * a.row, a.row, a.column, count, b, ldb, adds, out + i * ldo, ldo);
  }
}

// out (rows, columns) = a (rows, count) times b (count, columns), or this added to it; `columns` is `filled`.
template <typename T>
void product(int rows, int columns, const Matrix<T>& a, int count, const T* b, int64_t ldb, bool adds, T* out,
             int64_t ldo) {
  constexpr int kWidth = kVectorBytes / sizeof(T), kPanel = kPanelVectors * kWidth;
  int j = 0;
  for (; j + kPanel <= columns; j += kPanel) panels<T, kPanelVectors>(rows, a, count, b + j, ldb, adds, out + j, ldo);
  for (; j < columns; j += kWidth) panels<T, 1>(rows, a, count, b + j, ldb, adds, out + j, ldo);
}

}  // namespace mxtrain

#endif  // MXTRAIN_PRODUCT_H_
