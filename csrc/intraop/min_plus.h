// Row kernels of min-plus elimination; nearly all of its time is spent here.
#pragma once

#include <cstddef>
#include <span>

namespace shardwright::min_plus {

// out[b] = min(out[b], base + p[b]).
void relax(double* out, double base, const double* p, size_t n);
// out[b] = min(out[b], base + p[b] + q[b]).
void relaxSum(double* out, double base, const double* p, const double* q, size_t n);
// out[b] = min(out[b], p[b] - q[b]); infinity - infinity leaves out as it is.
void relaxDifference(double* out, const double* p, const double* q, size_t n);
// out[b] = max(out[b], p[b] - base), base finite.
void raiseByDifference(double* out, const double* p, double base, size_t n);
// out[b] = min(out[b], base[i] + p[at[i] * stride + b]) over all i.
void relaxAll(double* out, size_t n, std::span<const double> base, std::span<const size_t> at,
              const double* p, size_t stride);
// out[b] = min(out[b], base[i] + p[at[i] * p_stride + b] + q[at[i] * q_stride + b]) over all i.
void relaxSumAll(double* out, size_t n, std::span<const double> base, std::span<const size_t> at,
                 const double* p, size_t p_stride, const double* q, size_t q_stride);
// sum[b] = base + p[b].
void assign(double* sum, double base, const double* p, size_t n);
// sum[b] += p[b].
void add(double* sum, const double* p, size_t n);
double least(const double* p, size_t n);
// The least p[b] + q[b].
double leastSum(const double* p, const double* q, size_t n);
// out[b] = min over a of base[a] + table[a * cols + b].
void multiply(double* out, const double* base, const double* table, size_t rows, size_t cols);
// base[a] = share * h[a] - message[a], the product rounded down to a multiple of quantum. Exact
// while |share * h[a]| < 2^50 quanta.
void splitOff(double* base, double share, const double* h, const double* message, size_t n,
              double quantum);
// out[b] = min(out[b] - least, cap), where least is the least entry; returns it.
double normalise(double* out, size_t n, double cap);

}  // namespace shardwright::min_plus
