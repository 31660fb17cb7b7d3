// Row kernels of min-plus elimination; nearly all of its time is spent here.
#pragma once

#include <cstddef>

namespace shardwright::min_plus {

// out[b] = min(out[b], base + p[b]).
void relax(double* out, double base, const double* p, size_t n);
// out[b] = min(out[b], base + p[b] + q[b]).
void relaxSum(double* out, double base, const double* p, const double* q, size_t n);
// out[b] = min(out[b], p[b] - q[b]); infinity - infinity leaves out as it is.
void relaxDifference(double* out, const double* p, const double* q, size_t n);
// sum[b] = base + p[b].
void assign(double* sum, double base, const double* p, size_t n);
// sum[b] += p[b].
void add(double* sum, const double* p, size_t n);
double least(const double* p, size_t n);

}  // namespace shardwright::min_plus
