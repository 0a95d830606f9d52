// Windows of images with up to three dimensions: pooling, and the columns of a convolution. T is the elements' type, F the
// type in which they are compared and added.

struct Windows {  // along each axis; images of fewer dimensions have extents of 1 in front
  long long size[3], kernel[3], stride[3], padding[3], dilation[3];
  long long fit[3];  // how many windows there are
};

struct Place {
  long long image, at[3];
};

// Where element number i of images of some extents is.
__device__ Place place_of(long long i, const long long *extents) {
  Place place;
  for (int d = 2; d >= 0; d--) {
    place.at[d] = i % extents[d];
    i /= extents[d];
  }
  place.image = i;
  return place;
}

__device__ long long elements(const long long *extents) { return extents[0] * extents[1] * extents[2]; }

struct Largest {
  long long place;  // its offset in the image
  F value;
};

// A window's largest element: the first of equal ones, or the first NaN.
__device__ Largest first_largest(const T *image, const Place &window, const Windows &all) {
  Largest found = {-1, 0};
  for (long long a = 0; a < all.kernel[0]; a++)
    for (long long b = 0; b < all.kernel[1]; b++)
      for (long long c = 0; c < all.kernel[2]; c++) {
        long long z = window.at[0] * all.stride[0] + a, y = window.at[1] * all.stride[1] + b;
        long long at = (z * all.size[1] + y) * all.size[2] + window.at[2] * all.stride[2] + c;
        F value = (F)image[at];
        bool is_first_nan = value != value && found.value == found.value;
        if (found.place < 0 || value > found.value || is_first_nan) found = {at, value};
      }
  return found;
}

// y[window] = its largest element, NaN if it has one
extern "C" __global__ void max_pool(const T *x, T *y, long long count, Windows all) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    Place window = place_of(i, all.fit);
    const T *image = x + window.image * elements(all.size);
    y[i] = (T)first_largest(image, window, all).value;
  }
}

// places[window] = the offset of its largest element in the image, -1 if that is NaN
extern "C" __global__ void max_places(const T *x, long long *places, long long count, Windows all) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    Place window = place_of(i, all.fit);
    const T *image = x + window.image * elements(all.size);
    Largest found = first_largest(image, window, all);
    places[i] = found.value == found.value ? found.place : -1;
  }
}

// y[window] = the element of v at the window's place, 0 if it has none
extern "C" __global__ void take_places(const T *v, const long long *places, T *y, long long count, Windows all) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    long long image = i / elements(all.fit), place = places[i];
    y[i] = place < 0 ? (T)0 : v[image * elements(all.size) + place];
  }
}

// y[element] = the sum of g over the windows whose place it is. Every element looks for its windows, so that the order of
// the additions is always the same.
extern "C" __global__ void add_at_places(const T *g, const long long *places, T *y, long long count, Windows all) {
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    Place element = place_of(i, all.size);
    long long own = i - element.image * elements(all.size), first[3], last[3];
    for (int d = 0; d < 3; d++) {
      long long at = element.at[d];
      first[d] = at < all.kernel[d] ? 0 : (at - all.kernel[d]) / all.stride[d] + 1;
      last[d] = at / all.stride[d] < all.fit[d] ? at / all.stride[d] : all.fit[d] - 1;
    }
    F sum = 0;
    for (long long a = first[0]; a <= last[0]; a++)
      for (long long b = first[1]; b <= last[1]; b++)
        for (long long c = first[2]; c <= last[2]; c++) {
          long long window = ((element.image * all.fit[0] + a) * all.fit[1] + b) * all.fit[2] + c;
          if (places[window] == own) sum += (F)g[window];
        }
    y[i] = (T)sum;
  }
}

// columns[channel, offset in the kernel][image, window] = the element of x (images, channels, ...) there, 0 in the padding
extern "C" __global__ void im2col(const T *x, T *columns, long long images, long long channels, Windows all) {
  long long windows = images * elements(all.fit);
  for (long long row = blockIdx.y; row < channels * elements(all.kernel); row += gridDim.y) {
    Place offset = place_of(row, all.kernel);  // its image is the channel
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < windows; i += (long long)gridDim.x * blockDim.x) {
      Place window = place_of(i, all.fit);
      long long at = window.image * channels + offset.image;
      bool inside = true;
      for (int d = 0; d < 3; d++) {
        long long here = window.at[d] * all.stride[d] + offset.at[d] * all.dilation[d] - all.padding[d];
        inside = inside && here >= 0 && here < all.size[d];
        at = at * all.size[d] + here;
      }
      columns[row * windows + i] = inside ? x[at] : (T)0;
    }
  }
}

// y (images, channels, ...)[element] = the sum of the columns' elements that `im2col` would read from it
extern "C" __global__ void col2im(const T *columns, T *y, long long images, long long channels, Windows all) {
  long long windows = images * elements(all.fit), count = images * channels * elements(all.size);
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    Place element = place_of(i, all.size);
    long long image = element.image / channels, channel = element.image % channels;
    F sum = 0;
    for (long long k = 0; k < elements(all.kernel); k++) {
      Place offset = place_of(k, all.kernel);
      long long window = image;
      bool inside = true;
      for (int d = 0; d < 3; d++) {
        long long from = element.at[d] + all.padding[d] - offset.at[d] * all.dilation[d];
        inside = inside && from >= 0 && from % all.stride[d] == 0 && from / all.stride[d] < all.fit[d];
        window = window * all.fit[d] + from / all.stride[d];
      }
      if (inside) sum += (F)columns[(channel * elements(all.kernel) + k) * windows + window];
    }
    y[i] = (T)sum;
  }
}

// y (n, m, inner) = x (m, n, inner) with its first two axes exchanged
extern "C" __global__ void swap_leading(const T *x, T *y, long long m, long long n, long long inner) {
  long long count = m * n * inner;
  for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += (long long)gridDim.x * blockDim.x) {
    long long row = i / inner;
    y[i] = x[(row % m * n + row / m) * inner + i % inner];
  }
}
