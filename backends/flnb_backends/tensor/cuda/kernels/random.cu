// Random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011), the words of whose
// block depend on its number and a key alone. T is the elements' type, F (float or double) the type that they are drawn in.

struct Words {
  unsigned of[4];
};

__device__ Words philox(Words counter, unsigned low, unsigned high) {
  for (int round = 0; round < 10; round++) {
    unsigned long long one = 0xD2511F53ull * counter.of[0], other = 0xCD9E8D57ull * counter.of[2];
    counter = {{(unsigned)(other >> 32) ^ counter.of[1] ^ low, (unsigned)other,
                (unsigned)(one >> 32) ^ counter.of[3] ^ high, (unsigned)one}};
    low += 0x9E3779B9u, high += 0xBB67AE85u;
  }
  return counter;
}

__device__ Words block_of(unsigned long long number, unsigned long long key) {
  return philox({{(unsigned)number, (unsigned)(number >> 32), 0, 0}}, (unsigned)key, (unsigned)(key >> 32));
}

constexpr int EACH = 16 / sizeof(F);  // numbers that one block is enough for

// Number j of a block, in [0, 1): all bits of the fraction are random.
__device__ F unit(const Words &block, int j) {
  if (sizeof(F) == 4) return (F)(block.of[j] >> 8) * (F)(1.0 / (1 << 24));
  unsigned long long bits = (unsigned long long)block.of[2 * j] << 32 | block.of[2 * j + 1];
  return (F)(bits >> 11) * (F)(1.0 / (1ull << 53));
}

// y[i] in [low, high). Thread i draws elements i, i + part, i + 2 part ..., so that threads side by side write side by side.
extern "C" __global__ void random_uniform(T *y, long long n, double low, double high, unsigned long long key) {
  long long part = (n + EACH - 1) / EACH;
  F from = (F)(T)low, to = (F)(T)high;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < part; i += (long long)gridDim.x * blockDim.x) {
    Words block = block_of(i, key);
    for (int j = 0; j < EACH && i + j * part < n; j++) {
      F value = (F)(T)((F)low + unit(block, j) * (F)(high - low));
      bool inside = from < to ? value < to : value > to;
      y[i + j * part] = (T)(inside ? value : from);  // what was rounded to `high` starts over
    }
  }
}

// y[i] normally distributed, two numbers by the transform of Box and Muller (1958)
extern "C" __global__ void random_normal(T *y, long long n, double mean, double std, unsigned long long key) {
  long long part = (n + EACH - 1) / EACH;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < part; i += (long long)gridDim.x * blockDim.x) {
    Words block = block_of(i, key);
    for (int j = 0; j < EACH; j += 2) {
      F distance = sqrt((F)-2 * log((F)1 - unit(block, j))), angle = (F)6.283185307179586 * unit(block, j + 1);
      F pair[2] = {distance * cos(angle), distance * sin(angle)};
      for (int k = 0; k < 2 && i + (j + k) * part < n; k++)
        y[i + (j + k) * part] = (T)((F)mean + (F)std * pair[k]);
    }
  }
}
