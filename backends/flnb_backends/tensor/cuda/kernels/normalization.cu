// Layer norm and batch norm of an array of T, computed in A.
#include "rows.cuh"

// Rows are what is normalised together. A weight or a bias may be null; without a weight, normal is y and may be null.
extern "C" __global__ void layer_norm(const T *x, const T *weight, const T *bias, T *y, T *normal, T *inverses, T *means,
                                      A eps, long long outer, long long n, long long inner, long long chunk) {
  Rows rows = {outer, n, inner, chunk};
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    A sum = 0, squares = 0;
    FOR_ELEMENTS(rows, row) sum += (A)x[i];
    A mean = joined(sum, Sum()) / (A)n;
    FOR_ELEMENTS(rows, row) squares += ((A)x[i] - mean) * ((A)x[i] - mean);
    A inverse = 1 / sqrt(joined(squares, Sum()) / (A)n + eps);
    FOR_ELEMENTS(rows, row) {
      A value = ((A)x[i] - mean) * inverse;
      if (normal) normal[i] = (T)value;
      if (weight) value *= (A)weight[k];
      if (bias) value += (A)bias[k];
      y[i] = (T)value;
    }
    if (row.exists && threadIdx.y == 0) {
      means[row.number] = (T)mean;
      inverses[row.number] = (T)inverse;
    }
  }
}

// of_x = (h - mean of h - normal * mean of h normal) * inverse, where h = g * weight
extern "C" __global__ void layer_norm_pull(const T *g, const T *weight, const T *normal, const T *inverses, T *of_x,
                                           long long outer, long long n, long long inner, long long chunk) {
  Rows rows = {outer, n, inner, chunk};
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    A sum = 0, projected = 0;
    FOR_ELEMENTS(rows, row) {
      A h = weight ? (A)g[i] * (A)weight[k] : (A)g[i];
      sum += h;
      projected += h * (A)normal[i];
    }
    sum = joined(sum, Sum()) / (A)n;
    projected = joined(projected, Sum()) / (A)n;
    A inverse = row.exists ? (A)inverses[row.number] : (A)0;
    FOR_ELEMENTS(rows, row) {
      A h = weight ? (A)g[i] * (A)weight[k] : (A)g[i];
      of_x[i] = (T)((h - sum - (A)normal[i] * projected) * inverse);
    }
  }
}

// In an array (N, channels, positions), all elements of a row are of one channel.
static __device__ long long channel_of(const Row &row, long long channels, long long positions) {
  return row.begin / positions % channels;
}

// y[row] = share * sum of x
extern "C" __global__ void shares(const T *x, R *y, A share, long long outer, long long n, long long inner, long long chunk) {
  reduce(y, Rows{outer, n, inner, chunk}, (A)0, Sum(), [=](const Row &, long long, long long i) { return (A)x[i] * share; });
}

// y[row] = share * sum of (x - mean of its channel)^2
extern "C" __global__ void squares(const T *x, const T *means, R *y, A share, long long channels, long long positions,
                                   long long outer, long long n, long long inner, long long chunk) {
  reduce(y, Rows{outer, n, inner, chunk}, (A)0, Sum(), [=](const Row &row, long long, long long i) {
    A apart = (A)x[i] - (A)means[channel_of(row, channels, positions)];
    return apart * apart * share;
  });
}

// y[row] = sum of a b
extern "C" __global__ void products(const T *a, const T *b, R *y, long long outer, long long n, long long inner,
                                    long long chunk) {
  reduce(y, Rows{outer, n, inner, chunk}, (A)0, Sum(), [=](const Row &, long long, long long i) { return (A)a[i] * (A)b[i]; });
}

extern "C" __global__ void batch_norm(const T *x, const T *weight, const T *bias, const T *means, const T *variances, T *y,
                                      T *normal, T *inverses, A eps, long long channels, long long positions,
                                      long long outer, long long n, long long inner, long long chunk) {
  Rows rows = {outer, n, inner, chunk};
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    if (!row.exists) continue;
    long long c = channel_of(row, channels, positions);
    A mean = (A)means[c], inverse = 1 / sqrt((A)variances[c] + eps), factor = (A)weight[c], shift = (A)bias[c];
    FOR_ELEMENTS(rows, row) {
      A value = ((A)x[i] - mean) * inverse;
      normal[i] = (T)value;
      y[i] = (T)(value * factor + shift);
    }
    if (row.begin < channels * positions && row.first == 0 && threadIdx.y == 0) inverses[c] = (T)inverse;
  }
}

// of_x = (g - share * (of_bias + normal * of_weight)) * inverse * weight
extern "C" __global__ void batch_norm_pull(const T *g, const T *weight, const T *normal, const T *inverses, const T *of_weight,
                                           const T *of_bias, T *of_x, A share, long long channels, long long positions,
                                           long long outer, long long n, long long inner, long long chunk) {
  Rows rows = {outer, n, inner, chunk};
  FOR_TILES(rows) {
    Row row = row_of(rows, tile + threadIdx.z);
    if (!row.exists) continue;
    long long c = channel_of(row, channels, positions);
    A scale = (A)inverses[c] * (A)weight[c], along = (A)of_bias[c] * share, projected = (A)of_weight[c] * share;
    FOR_ELEMENTS(rows, row) of_x[i] = (T)(((A)g[i] - (along + (A)normal[i] * projected)) * scale);
  }
}
