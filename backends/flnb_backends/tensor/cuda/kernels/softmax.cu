// Softmax and cross entropy along the rows of an array (outer, n, inner) of T, computed in A; targets are of I.
#include "rows.cuh"

struct Exponentials {
  A largest, sum;  // of a row's elements; of exp(x - largest)
};

static __device__ Exponentials exponentials(const T *x, const Rows &rows, const Row &row) {
  A largest = (A)-__int_as_float(0x7f800000), sum = 0;  // minus infinity
  FOR_ELEMENTS(rows, row) largest = Largest()(largest, (A)x[i]);
  largest = joined(largest, Largest());
  FOR_ELEMENTS(rows, row) sum += exp((A)x[i] - largest);
  return {largest, joined(sum, Sum())};
}

extern "C" __global__ void softmax(const T *x, T *y, long long outer, long long n, long long inner, long long chunk) {
  Rows rows = {outer, n, inner, chunk};
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    Exponentials found = exponentials(x, rows, row);
    FOR_ELEMENTS(rows, row) y[i] = (T)(exp((A)x[i] - found.largest) / found.sum);
  }
}

extern "C" __global__ void log_softmax(const T *x, T *y, long long outer, long long n, long long inner, long long chunk) {
  Rows rows = {outer, n, inner, chunk};
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    Exponentials found = exponentials(x, rows, row);
    A log_sum = log(found.sum);
    FOR_ELEMENTS(rows, row) y[i] = (T)((A)x[i] - found.largest - log_sum);
  }
}

// of_x = (g - sum of g y) y
extern "C" __global__ void softmax_pull(const T *g, const T *y, T *of_x, long long outer, long long n, long long inner,
                                        long long chunk) {
  Rows rows = {outer, n, inner, chunk};
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    A sum = 0;
    FOR_ELEMENTS(rows, row) sum += (A)g[i] * (A)y[i];
    sum = joined(sum, Sum());
    FOR_ELEMENTS(rows, row) of_x[i] = (T)(((A)g[i] - sum) * (A)y[i]);
  }
}

// of_x = g - exp(y) sum of g
extern "C" __global__ void log_softmax_pull(const T *g, const T *y, T *of_x, long long outer, long long n, long long inner,
                                            long long chunk) {
  Rows rows = {outer, n, inner, chunk};
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    A sum = 0;
    FOR_ELEMENTS(rows, row) sum += (A)g[i];
    sum = joined(sum, Sum());
    FOR_ELEMENTS(rows, row) of_x[i] = (T)((A)g[i] - exp((A)y[i]) * sum);
  }
}

// y[row] = factor * sum of the logarithms of the targets' probabilities, log_p (n, classes)
extern "C" __global__ void cross_entropy(const T *log_p, const I *targets, R *y, A factor, A none, long long classes,
                                         long long outer, long long n, long long inner, long long chunk) {
  reduce(y, Rows{outer, n, inner, chunk}, none, Sum(), [=](const Row &, long long, long long i) {
    return factor * (A)log_p[i * classes + (long long)targets[i]];
  });
}

// of_x = factor g (p - 1 at the target), where g is one number, or one for each row (each = 1)
extern "C" __global__ void cross_entropy_pull(const T *g, const I *targets, const T *log_p, T *of_x, A factor, long long each,
                                              long long outer, long long n, long long inner, long long chunk) {
  Rows rows = {outer, n, inner, chunk};
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    if (!row.exists) continue;
    long long target = (long long)targets[row.number];
    A scale = factor * (A)g[row.number * each];
    FOR_ELEMENTS(rows, row) of_x[i] = (T)((exp((A)log_p[i]) - (A)(k == target)) * scale);
  }
}
