// CUDA C for g++: what NVRTC declares for a kernel, declared here over the emulated device. Included before its text.
#pragma once
#include <math.h>    // not <cmath>: in CUDA C ::abs and ::log have overloads for float, as these headers make them
#include <stdlib.h>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if __has_include(<vector_types.h>)  // NVIDIA's own, which its fp16 and bf16 headers need
#include <vector_types.h>
#include <vector_functions.h>
#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __forceinline__
#undef __noinline__
#undef __launch_bounds__
#undef __align__
#else
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
#endif

#include "doors.hpp"

#define FLNB_PLAIN __attribute__((no_sanitize("thread")))  // not announced by the compiler as an access of the kernel
#define FLNB_DOOR extern "C" __attribute__((visibility("default"))) FLNB_PLAIN
#define FLNB_HERE __builtin_return_address(0)

extern "C" char __start_flnb_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_flnb_shared[] __attribute__((weak, visibility("hidden")));
extern "C" const unsigned long flnb_shared_spans[];
static const Doors *flnb_doors;
static const Thread *flnb_thread;
FLNB_DOOR void flnb_open(const Doors *doors, Library *library) {
  flnb_doors = doors;
  *library = {__start_flnb_shared, __stop_flnb_shared, &flnb_thread, flnb_shared_spans};
}

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("flnb_shared")))
#define __restrict __restrict__
#define FLNB_DYNAMIC_SHARED(type, name) type *name = (type *)flnb_doors->dynamic_shared()
#define threadIdx (flnb_thread->thread)
#define blockIdx (flnb_thread->block)
#define blockDim (flnb_thread->block_extent)
#define gridDim (flnb_thread->grid_extent)
static const int warpSize = 32;
#define __CUDACC_VER_MAJOR__ 13  // which CuPy's headers ask for
#define __CUDACC_VER_MINOR__ 0

using std::cos;
using std::erf;  // of float and of double, as in CUDA C
using std::erfc;
using std::exp;
using std::isfinite;
using std::isinf;
using std::isnan;
using std::log;
using std::signbit;
using std::sin;
using std::sqrt;
template <class T> static inline T min(T a, T b) { return b < a ? b : a; }
template <class T> static inline T max(T a, T b) { return a < b ? b : a; }

FLNB_PLAIN static inline void __syncthreads() { flnb_doors->barrier(); }
FLNB_PLAIN static inline int __syncthreads_count(int p) { return flnb_doors->vote(p, COUNT); }
FLNB_PLAIN static inline int __syncthreads_and(int p) { return flnb_doors->vote(p, ALL); }
FLNB_PLAIN static inline int __syncthreads_or(int p) { return flnb_doors->vote(p, ANY); }
FLNB_PLAIN static inline void __syncwarp(unsigned mask = ~0u) { flnb_doors->warp_barrier(mask); }
FLNB_PLAIN static inline unsigned __ballot_sync(unsigned mask, int p) { return flnb_doors->ballot(mask, p); }
FLNB_PLAIN static inline int __any_sync(unsigned mask, int p) { return flnb_doors->ballot(mask, p) != 0; }
FLNB_PLAIN static inline int __all_sync(unsigned mask, int p) { return flnb_doors->ballot(mask, !p) == 0; }
static inline void __threadfence() {}  // blocks run one after another: their memory order is not emulated
static inline void __threadfence_block() {}

template <class T> FLNB_PLAIN static inline T flnb_shuffle(unsigned mask, T value, int source) {
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  bits = flnb_doors->shuffle(mask, bits, source);
  memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T> FLNB_PLAIN static inline T __shfl_sync(unsigned mask, T value, int source, int width = 32) {
  int lane = flnb_thread->lane;
  return flnb_shuffle(mask, value, (lane & ~(width - 1)) | (source & (width - 1)));
}
template <class T> FLNB_PLAIN static inline T __shfl_down_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int lane = flnb_thread->lane;
  return flnb_shuffle(mask, value, (lane & (width - 1)) + (int)by < width ? lane + (int)by : lane);
}
template <class T> FLNB_PLAIN static inline T __shfl_up_sync(unsigned mask, T value, unsigned by, int width = 32) {
  int lane = flnb_thread->lane;
  return flnb_shuffle(mask, value, (lane & (width - 1)) >= (int)by ? lane - (int)by : lane);
}
template <class T> FLNB_PLAIN static inline T __shfl_xor_sync(unsigned mask, T value, int by, int width = 32) {
  int lane = flnb_thread->lane, other = lane ^ by;
  return flnb_shuffle(mask, value, other / width <= lane / width ? other : lane);
}

#define FLNB_ATOMIC(name, result)                                             \
  template <class T, class U> FLNB_PLAIN static inline T name(T *at, U given) { \
    flnb_doors->access(at, sizeof(T), ATOMIC, FLNB_HERE, true);                     \
    T old = *at, value = (T)given;                                            \
    *at = result;                                                             \
    return old;                                                               \
  }
FLNB_ATOMIC(atomicAdd, old + value)
FLNB_ATOMIC(atomicSub, old - value)
FLNB_ATOMIC(atomicMax, old < value ? value : old)
FLNB_ATOMIC(atomicMin, value < old ? value : old)
FLNB_ATOMIC(atomicExch, value)
FLNB_ATOMIC(atomicAnd, old & value)
FLNB_ATOMIC(atomicOr, old | value)
template <class T> FLNB_PLAIN static inline T atomicCAS(T *at, T expected, T value) {
  flnb_doors->access(at, sizeof(T), ATOMIC, FLNB_HERE, true);
  T old = *at;
  if (old == expected) *at = value;
  return old;
}

template <class To, class From> static inline To flnb_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}
static inline float __int_as_float(int bits) { return flnb_bits<float>(bits); }
static inline int __float_as_int(float value) { return flnb_bits<int>(value); }
static inline float __uint_as_float(unsigned bits) { return flnb_bits<float>(bits); }
static inline unsigned __float_as_uint(float value) { return flnb_bits<unsigned>(value); }
static inline double __longlong_as_double(long long bits) { return flnb_bits<double>(bits); }
static inline long long __double_as_longlong(double value) { return flnb_bits<long long>(value); }
static inline int __popc(unsigned bits) { return __builtin_popcount(bits); }
static inline int __popcll(unsigned long long bits) { return __builtin_popcountll(bits); }
static inline int __clz(int bits) { return bits ? __builtin_clz(bits) : 32; }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __saturatef(float x) { return x < 0 ? 0 : x > 1 ? 1 : x; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
template <class T> static inline T __ldg(const T *at) { return *at; }

// A launch's array of addresses becomes a typed call: each value is read as the kernel's own parameter type.
template <class... P, size_t... I>
FLNB_PLAIN static inline void flnb_call(void (*kernel)(P...), void **values, std::index_sequence<I...>) {
  kernel(*(std::remove_reference_t<P> *)values[I]...);
}
template <class... P> FLNB_PLAIN static inline void flnb_enter(void (*kernel)(P...), void **values) {
  flnb_call(kernel, values, std::index_sequence_for<P...>{});
}
template <class... P> FLNB_PLAIN static inline int flnb_sizes(void (*)(P...), int *sizes) {
  int count = 0;
  ((sizes ? (void)(sizes[count] = sizeof(P)) : void(), count++), ...);
  return count;
}
#define FLNB_KERNEL(name)                                                           \
  FLNB_DOOR void flnb_enter_##name(void **values) { flnb_enter(name, values); }     \
  FLNB_DOOR int flnb_sizes_##name(int *sizes) { return flnb_sizes(name, sizes); }

// g++ -fsanitize=thread announces every load and store of a kernel by a call: the device answers, not libtsan.
#define FLNB_ACCESS(name, bytes, kind, aligned) \
  FLNB_DOOR void __tsan_##name(void *at) { flnb_doors->access(at, bytes, kind, FLNB_HERE, aligned); }
#define FLNB_ACCESSES(bytes)                                                                \
  FLNB_ACCESS(read##bytes, bytes, READ, true) FLNB_ACCESS(write##bytes, bytes, WRITE, true) \
  FLNB_ACCESS(unaligned_read##bytes, bytes, READ, false) FLNB_ACCESS(unaligned_write##bytes, bytes, WRITE, false)
FLNB_ACCESSES(1)
FLNB_ACCESSES(2)
FLNB_ACCESSES(4)
FLNB_ACCESSES(8)
FLNB_ACCESSES(16)
FLNB_DOOR void __tsan_read_range(void *at, size_t bytes) { flnb_doors->access(at, bytes, READ, FLNB_HERE, false); }
FLNB_DOOR void __tsan_write_range(void *at, size_t bytes) { flnb_doors->access(at, bytes, WRITE, FLNB_HERE, false); }
FLNB_DOOR void __tsan_func_entry(void *) {}
FLNB_DOOR void __tsan_func_exit() {}
FLNB_DOOR void __tsan_init() {}
FLNB_DOOR void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
  flnb_doors->access((void *)from, bytes, READ, FLNB_HERE, false);
  flnb_doors->access(to, bytes, WRITE, FLNB_HERE, false);
  return memcpy(to, from, bytes);
}
FLNB_DOOR void *__tsan_memset(void *to, int value, size_t bytes) {
  flnb_doors->access(to, bytes, WRITE, FLNB_HERE, false);
  return memset(to, value, bytes);
}
