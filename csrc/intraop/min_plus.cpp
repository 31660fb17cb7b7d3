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

#undef SHARDWRIGHT_VECTORISED

}  // namespace shardwright::min_plus
