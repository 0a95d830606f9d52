// Order of elements: by keys, unsigned integers K as wide as an element, and of equal keys by place.

// The key of an element: keys are ordered as elements are. NaN is the largest, and zeros of both signs are equal.
// `top` is the sign bit, 0 for unsigned elements; `infinity` the bits of infinity, 0 for integers; `flip` all ones for
// the descending order.
__device__ K key_of(K bits, K top, K infinity, K flip) {
  K key = bits ^ top;
  if (infinity) {
    K size = bits & (K)~top;
    if (size > infinity) key = ~(K)0;
    else if (!size) key = top;
    else if (bits & top) key = ~bits;
  }
  return key ^ flip;
}

// Where element i is in shared memory: of elements that are 1, 2, 4, 8 or 16 apart, those that a warp compares at once lie
// in different banks.
__device__ int slot(int i) { return i & 32 ? i ^ 31 : i; }

// Sort pieces of `width` elements, a power of two, of each row by a bitonic network (Batcher 1968) in shared memory.
// Element i of row r is x[(r / inner * n + i) * inner + r % inner]; its key and place go to keys[r * n ...].
extern "C" __global__ void sort_pieces(const K *x, K *keys, long long *places, long long rows, long long n,
                                       long long inner, long long width, K top, K infinity, K flip) {
  FLNB_DYNAMIC_SHARED(long long, memory);
  int *place = (int *)memory;
  K *key = (K *)(place + width);
  long long pieces = (n + width - 1) / width;
  for (long long piece = blockIdx.x; piece < rows * pieces; piece += gridDim.x) {
    long long row = piece / pieces, from = piece % pieces * width;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      long long at = (row / inner * n + from + i) * inner + row % inner;
      key[slot(i)] = from + i < n ? key_of(x[at], top, infinity, flip) : ~(K)0;
      place[slot(i)] = i;
    }
    for (int size = 2; size <= width; size *= 2)
      for (int step = size / 2; step; step /= 2) {
        __syncthreads();
        for (int pair = threadIdx.x; pair < width / 2; pair += blockDim.x) {
          int begin = 2 * pair - (pair & (step - 1)), low = slot(begin), high = slot(begin + step);
          K one = key[low], other = key[high];
          int first = place[low], second = place[high];
          bool after = one != other ? one > other : first > second, swaps = after == !(begin & size);
          key[low] = swaps ? other : one, key[high] = swaps ? one : other;
          place[low] = swaps ? second : first, place[high] = swaps ? first : second;
        }
      }
    __syncthreads();
    for (int i = threadIdx.x; i < width && from + i < n; i += blockDim.x) {
      keys[row * n + from + i] = key[slot(i)];
      places[row * n + from + i] = from + place[slot(i)];
    }  // the next piece's elements are written by the threads that have read here: no barrier is needed between
  }
}

// Merge sorted runs of `run` elements of each row, two and two: an element's place is its own rank and its rank in the
// other run. Of each run only the first `keep` elements are read and written.
extern "C" __global__ void merge_runs(const K *keys, const long long *places, K *merged, long long *order, long long rows,
                                      long long n, long long run, long long keep) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < rows * n; i += (long long)gridDim.x * blockDim.x) {
    long long at = i % n, row = i - at, own = at / run * run, rank = at - own;
    if (rank >= keep) continue;
    bool is_left = at / run % 2 == 0;
    long long other = is_left ? own + run : own - run, first = other, last = other + (run < keep ? run : keep);
    if (last > n) last = n;
    K key = keys[i];
    while (first < last) {
      long long middle = (first + last) / 2;
      K there = keys[row + middle];
      if (is_left ? there < key : there <= key) first = middle + 1;
      else last = middle;
    }
    rank += first - other;
    if (rank >= keep) continue;
    long long to = row + (is_left ? own : other) + rank;
    merged[to] = key;
    order[to] = places[i];
  }
}

// y[..., i, ...] = the place of the element that is number i in its row
extern "C" __global__ void write_places(const long long *places, long long *y, long long size, long long n,
                                        long long inner, long long keep) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < size; i += (long long)gridDim.x * blockDim.x)
    y[i] = places[(i / inner / keep * inner + i % inner) * n + i / inner % keep];
}

// y[..., i, ...] = the element that is number i in its row, from the end if `reversed`
extern "C" __global__ void write_values(const long long *places, const K *x, K *y, long long size, long long n,
                                        long long inner, long long reversed) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < size; i += (long long)gridDim.x * blockDim.x) {
    long long outer = i / inner / n, number = i / inner % n, column = i % inner;
    long long place = places[(outer * inner + column) * n + (reversed ? n - 1 - number : number)];
    y[i] = x[(outer * n + place) * inner + column];
  }
}

// y[i] = how many elements of the sorted x are less than values[i], or not greater if `right`
extern "C" __global__ void searchsorted(const K *x, const K *values, long long *y, long long n, long long size,
                                        long long right, K top, K infinity) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < size; i += (long long)gridDim.x * blockDim.x) {
    K key = key_of(values[i], top, infinity, 0);
    long long first = 0, last = n;
    while (first < last) {
      long long middle = (first + last) / 2;
      K there = key_of(x[middle], top, infinity, 0);
      if (right ? there <= key : there < key) first = middle + 1;
      else last = middle;
    }
    y[i] = first;
  }
}
