// Sums of elements with equal indices. T is the elements' type, F the type in which they are added, I that of indices.

// rows[i] = rows[i] * extent + index[i], or just index[i] if `first`: flattens the indices of several axes to one.
// Negative indices count from the end.
extern "C" __global__ void add_axis(const I *index, long long *rows, long long n, long long extent, long long first) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < n; i += (long long)gridDim.x * blockDim.x) {
    long long at = (long long)index[i];
    if (at < 0) at += extent;
    rows[i] = first ? at : rows[i] * extent + at;
  }
}

// y (outer, rows, inner)[:, row] = the sum of g (outer, n, inner)[:, i] over all i with rows[i] == row, if there are any.
// `order` is the stable argsort of rows: one thread adds all elements of a row, in their order, without atomics.
extern "C" __global__ void add_rows(const T *g, const long long *rows, const long long *order, T *y, long long outer,
                                    long long n, long long inner, long long extent) {
  long long count = outer * n * inner;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    long long column = i % inner, number = i / inner % n, before = i / inner / n, row = rows[order[number]];
    if (number && rows[order[number - 1]] == row) continue;
    F sum = 0;
    for (; number < n && rows[order[number]] == row; number++)
      sum += (F)g[(before * n + order[number]) * inner + column];
    y[(before * extent + row) * inner + column] = (T)sum;
  }
}
