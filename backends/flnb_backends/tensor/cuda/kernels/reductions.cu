// Reductions of the rows of an array (outer, n, inner) of T to R, computed in A.
#include "rows.cuh"

#define REDUCTION(join) \
  reduce(y, Rows{outer, n, inner, chunk}, none, join, [=](const Row &, long long, long long i) { return (A)x[i]; })

extern "C" __global__ void sum(const T *x, R *y, A none, long long outer, long long n, long long inner, long long chunk) {
  REDUCTION(Sum());
}
extern "C" __global__ void product(const T *x, R *y, A none, long long outer, long long n, long long inner, long long chunk) {
  REDUCTION(Product());
}
extern "C" __global__ void largest(const T *x, R *y, A none, long long outer, long long n, long long inner, long long chunk) {
  REDUCTION(Largest());
}
extern "C" __global__ void smallest(const T *x, R *y, A none, long long outer, long long n, long long inner, long long chunk) {
  REDUCTION(Smallest());
}
