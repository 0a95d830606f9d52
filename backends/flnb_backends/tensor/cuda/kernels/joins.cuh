struct Sum {
  template <class V> __device__ V operator()(V a, V b) const { return a + b; }
};
struct Product {
  template <class V> __device__ V operator()(V a, V b) const { return a * b; }
};
struct Largest {  // or the first NaN
  template <class V> __device__ V operator()(V a, V b) const { return a < b || b != b ? b : a; }
};
struct Smallest {
  template <class V> __device__ V operator()(V a, V b) const { return b < a || b != b ? b : a; }
};
