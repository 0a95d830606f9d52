// argmax and argmin: the index of the first extreme element of each row of (outer, n, inner); a NaN counts as extreme.
#include "rows.cuh"

struct Candidate {
  A value;
  long long place;  // in its row, -1 if there is none

  __device__ explicit operator long long() const { return place; }
};

static __device__ Candidate of_lane(Candidate value, int by) { return {of_lane(value.value, by), of_lane(value.place, by)}; }

static __device__ Candidate *shared_values(Candidate) {
  __shared__ Candidate values[256];
  return values;
}

struct Greater {
  __device__ bool operator()(A a, A b) const { return a > b || (a != a && b == b); }
};
struct Less {
  __device__ bool operator()(A a, A b) const { return a < b || (a != a && b == b); }
};

template <class Before> struct First {
  __device__ Candidate operator()(Candidate a, Candidate b) const {
    if (a.place < 0 || b.place < 0) return a.place < 0 ? b : a;
    bool equal = !Before()(a.value, b.value) && !Before()(b.value, a.value);
    return (equal ? a.place < b.place : Before()(a.value, b.value)) ? a : b;
  }
};

// Reduce rows of x; or with `candidates`, the winners' indices in the parts of rows of `length` elements, reduce those.
template <class Before>
static __device__ void position(const T *x, const long long *candidates, long long *y, const Rows &rows, long long length) {
  reduce(y, rows, Candidate{A(), -1}, First<Before>(), [=](const Row &row, long long k, long long i) {
    if (!candidates) return Candidate{(A)x[i], row.first + k};
    long long outer = i / rows.inner / rows.n, place = candidates[i];
    return Candidate{(A)x[(outer * length + place) * rows.inner + i % rows.inner], place};
  });
}

extern "C" __global__ void argmax(const T *x, const long long *candidates, long long *y, long long length, long long outer,
                                  long long n, long long inner, long long chunk) {
  position<Greater>(x, candidates, y, {outer, n, inner, chunk}, length);
}
extern "C" __global__ void argmin(const T *x, const long long *candidates, long long *y, long long length, long long outer,
                                  long long n, long long inner, long long chunk) {
  position<Less>(x, candidates, y, {outer, n, inner, chunk}, length);
}
