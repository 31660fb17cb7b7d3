#include "intraop/min_plus.h"

#include "intraop/table_pool.h"

namespace shardwright::min_plus {

// The compiler makes one version per instruction set; the loader picks.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define SHARDWRIGHT_VECTORISED __attribute__((target_clones("avx2", "default"), optimize("O3")))
#else
#define SHARDWRIGHT_VECTORISED
#endif

SHARDWRIGHT_VECTORISED void relax(double* out, double base, const double* p, size_t n) {
  for (size_t b = 0; b < n; ++b) {
    const double cost = base + p[b];
    out[b] = cost < out[b] ? cost : out[b];
  }
}

SHARDWRIGHT_VECTORISED void relaxSum(double* out, double base, const double* p, const double* q,
                                     size_t n) {
  for (size_t b = 0; b < n; ++b) {
    const double cost = base + p[b] + q[b];
    out[b] = cost < out[b] ? cost : out[b];
  }
}

SHARDWRIGHT_VECTORISED void relaxDifference(double* out, const double* p, const double* q,
                                            size_t n) {
  for (size_t b = 0; b < n; ++b) {
    const double cost = p[b] - q[b];
    out[b] = cost < out[b] ? cost : out[b];
  }
}

SHARDWRIGHT_VECTORISED void assign(double* sum, double base, const double* p, size_t n) {
  for (size_t b = 0; b < n; ++b) sum[b] = base + p[b];
}

SHARDWRIGHT_VECTORISED void add(double* sum, const double* p, size_t n) {
  for (size_t b = 0; b < n; ++b) sum[b] += p[b];
}

SHARDWRIGHT_VECTORISED double least(const double* p, size_t n) {
  double result = kInfinity;
  for (size_t b = 0; b < n; ++b) result = p[b] < result ? p[b] : result;
  return result;
}

SHARDWRIGHT_VECTORISED double leastSum(const double* p, const double* q, size_t n) {
  double result = kInfinity;
  for (size_t b = 0; b < n; ++b) {
    const double sum = p[b] + q[b];
    result = sum < result ? sum : result;
  }
  return result;
}

SHARDWRIGHT_VECTORISED void multiply(double* out, const double* base, const double* table,
                                     size_t rows, size_t cols) {
  for (size_t b = 0; b < cols; ++b) out[b] = kInfinity;
  for (size_t a = 0; a < rows; ++a) {
    const double first = base[a];
    const double* row = table + a * cols;
    for (size_t b = 0; b < cols; ++b) {
      const double cost = first + row[b];
      out[b] = cost < out[b] ? cost : out[b];
    }
  }
}

SHARDWRIGHT_VECTORISED void splitOff(double* base, double share, const double* h,
                                     const double* message, size_t n, double quantum) {
  // Adding and taking away 1.5 * 2^52 quanta rounds to the nearest quantum; one quantum less before
  // makes it a round downwards.
  const double shift = 6755399441055744.0 * quantum;
  for (size_t a = 0; a < n; ++a) {
    const double share_of_h = ((share * h[a] - quantum) + shift) - shift;
    base[a] = share_of_h - message[a];
  }
}

SHARDWRIGHT_VECTORISED double normalise(double* out, size_t n, double cap) {
  double smallest = kInfinity;
  for (size_t b = 0; b < n; ++b) smallest = out[b] < smallest ? out[b] : smallest;
  for (size_t b = 0; b < n; ++b) {
    const double rest = out[b] - smallest;
    out[b] = rest < cap ? rest : cap;
  }
  return smallest;
}

#undef SHARDWRIGHT_VECTORISED

}  // namespace shardwright::min_plus
