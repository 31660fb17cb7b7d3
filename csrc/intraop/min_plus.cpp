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

// Entries of a row that stay in registers while all base costs go by; longer rows are read along.
static constexpr size_t kBlock = 4;
static constexpr size_t kLongRow = 64;

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

SHARDWRIGHT_VECTORISED void raiseByDifference(double* out, const double* p, double base, size_t n) {
  for (size_t b = 0; b < n; ++b) {
    const double difference = p[b] - base;
    out[b] = difference > out[b] ? difference : out[b];
  }
}

SHARDWRIGHT_VECTORISED void relaxAll(double* out, size_t n, std::span<const double> base,
                                     std::span<const size_t> at, const double* p, size_t stride) {
  size_t b = 0;
  if (n < kLongRow) {
    for (; b + kBlock <= n; b += kBlock) {
      double least[kBlock];
      for (size_t k = 0; k < kBlock; ++k) least[k] = out[b + k];
      for (size_t i = 0; i < base.size(); ++i) {
        const double first = base[i];
        const double* row = p + at[i] * stride + b;
        for (size_t k = 0; k < kBlock; ++k) {
          const double cost = first + row[k];
          least[k] = cost < least[k] ? cost : least[k];
        }
      }
      for (size_t k = 0; k < kBlock; ++k) out[b + k] = least[k];
    }
  }
  for (size_t i = 0; i < base.size(); ++i) {
    const double first = base[i];
    const double* row = p + at[i] * stride;
    for (size_t k = b; k < n; ++k) {
      const double cost = first + row[k];
      out[k] = cost < out[k] ? cost : out[k];
    }
  }
}

SHARDWRIGHT_VECTORISED void relaxSumAll(double* out, size_t n, std::span<const double> base,
                                        std::span<const size_t> at, const double* p,
                                        size_t p_stride, const double* q, size_t q_stride) {
  size_t b = 0;
  if (n < kLongRow) {
    for (; b + kBlock <= n; b += kBlock) {
      double least[kBlock];
      for (size_t k = 0; k < kBlock; ++k) least[k] = out[b + k];
      for (size_t i = 0; i < base.size(); ++i) {
        const double first = base[i];
        const double* p_row = p + at[i] * p_stride + b;
        const double* q_row = q + at[i] * q_stride + b;
        for (size_t k = 0; k < kBlock; ++k) {
          const double cost = first + p_row[k] + q_row[k];
          least[k] = cost < least[k] ? cost : least[k];
        }
      }
      for (size_t k = 0; k < kBlock; ++k) out[b + k] = least[k];
    }
  }
  for (size_t i = 0; i < base.size(); ++i) {
    const double first = base[i];
    const double* p_row = p + at[i] * p_stride;
    const double* q_row = q + at[i] * q_stride;
    for (size_t k = b; k < n; ++k) {
      const double cost = first + p_row[k] + q_row[k];
      out[k] = cost < out[k] ? cost : out[k];
    }
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
