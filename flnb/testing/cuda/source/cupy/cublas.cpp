// The calls of cuBLAS that matrix products make, as loops on the emulated device. The API: "cuBLAS Library", NVIDIA.
// The library's own header would bring half a gigabyte; its constants are listed here.
#include <cstddef>
#include <complex>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#define API extern "C" __attribute__((visibility("default"))) int
extern "C" int cuLaunchHostFunc(void *stream, void (*function)(void *), void *argument);
extern "C" void flnb_device_touch(const char *what, const void *address, size_t bytes, int writes);

enum { SUCCESS = 0, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };           // cublasStatus_t
enum { R32 = 0, R64 = 1, R16 = 2, C32 = 4, C64 = 5, RBF16 = 14 };      // cudaDataType
enum { PLAIN = 0, TRANSPOSED = 1, ADJOINT = 2 };                       // cublasOperation_t
enum { COMPUTE_16 = 64, COMPUTE_64 = 70 };                             // cublasComputeType_t; others: 32 bits

struct Handle {
  void *stream = nullptr;
  int math = 0, pointer_mode = 0;
};

API cublasCreate_v2(Handle **made) { return *made = new Handle, SUCCESS; }
API cublasDestroy_v2(Handle *handle) { return delete handle, SUCCESS; }
API cublasGetVersion_v2(Handle *, int *version) { return *version = 130000, SUCCESS; }
API cublasSetStream_v2(Handle *handle, void *stream) { return handle->stream = stream, SUCCESS; }
API cublasGetStream_v2(Handle *handle, void **stream) { return *stream = handle->stream, SUCCESS; }
API cublasSetMathMode(Handle *handle, int mode) { return handle->math = mode, SUCCESS; }
API cublasGetMathMode(Handle *handle, int *mode) { return *mode = handle->math, SUCCESS; }
API cublasSetPointerMode_v2(Handle *handle, int mode) { return handle->pointer_mode = mode, SUCCESS; }
API cublasGetPointerMode_v2(Handle *handle, int *mode) { return *mode = handle->pointer_mode, SUCCESS; }

struct Matrix {
  char *data;
  int type, rows, columns;  // as stored, column by column
  long leading, stride;     // elements from column to column, and from matrix to matrix
  int op;
  size_t bytes(long batch) const;
};
struct Product {
  Matrix a, b, c;
  int m, n, k, batch;
  std::complex<double> alpha, beta;
};

static int size_of(int type) { return type == C64 ? 16 : type == R64 || type == C32 ? 8 : type == R32 ? 4 : 2; }
size_t Matrix::bytes(long batch) const {
  return !rows || !columns ? 0 : size_of(type) * ((batch - 1) * stride + (columns - 1) * leading + rows);
}

template <class T> static std::complex<double> value(T x) { return (double)x; }
template <> std::complex<double> value(std::complex<float> x) { return x; }
template <> std::complex<double> value(std::complex<double> x) { return x; }
template <> std::complex<double> value(__half x) { return __half2float(x); }
template <> std::complex<double> value(__nv_bfloat16 x) { return __bfloat162float(x); }
static std::complex<double> load(const void *at, int type, long i) {
  switch (type) {
    case R32: return value(((float *)at)[i]);
    case R64: return value(((double *)at)[i]);
    case C32: return value(((std::complex<float> *)at)[i]);
    case C64: return value(((std::complex<double> *)at)[i]);
    case R16: return value(((__half *)at)[i]);
    default: return value(((__nv_bfloat16 *)at)[i]);
  }
}
static void store(void *at, int type, long i, std::complex<double> x) {
  switch (type) {
    case R32: ((float *)at)[i] = x.real(); break;
    case R64: ((double *)at)[i] = x.real(); break;
    case C32: ((std::complex<float> *)at)[i] = x; break;
    case C64: ((std::complex<double> *)at)[i] = x; break;
    case R16: ((__half *)at)[i] = __float2half((float)x.real()); break;
    default: ((__nv_bfloat16 *)at)[i] = __float2bfloat16((float)x.real());
  }
}
static std::complex<double> element(const Matrix &of, long batch, long row, long column) {
  long at = of.op ? column + row * of.leading : row + column * of.leading;
  auto x = load(of.data, of.type, batch * of.stride + at);
  return of.op == ADJOINT ? std::conj(x) : x;
}

static void run(void *given) {
  auto *p = (Product *)given;
  bool reads_c = p->beta != 0.0;
  flnb_device_touch("gemm", p->a.data, p->a.bytes(p->batch), 0);
  flnb_device_touch("gemm", p->b.data, p->b.bytes(p->batch), 0);
  if (reads_c) flnb_device_touch("gemm", p->c.data, p->c.bytes(p->batch), 0);
  flnb_device_touch("gemm", p->c.data, p->c.bytes(p->batch), 1);
  for (long s = 0; s < p->batch; s++)
    for (long j = 0; j < p->n; j++)
      for (long i = 0; i < p->m; i++) {
        std::complex<double> sum = 0.0;
        for (long l = 0; l < p->k; l++) sum += element(p->a, s, i, l) * element(p->b, s, l, j);
        long at = s * p->c.stride + i + j * p->c.leading;
        sum *= p->alpha;
        store(p->c.data, p->c.type, at, reads_c ? sum + p->beta * load(p->c.data, p->c.type, at) : sum);
      }
  delete p;
}

API cublasGemmStridedBatchedEx(Handle *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, void *a,
                               int type_a, int lda, long long stride_a, void *b, int type_b, int ldb,
                               long long stride_b, const void *beta, void *c, int type_c, int ldc, long long stride_c,
                               int batch, int compute, int) {
  int rows_a = op_a ? k : m, rows_b = op_b ? n : k;
  if (m < 0 || n < 0 || k < 0 || batch < 0 || lda < rows_a || ldb < rows_b || ldc < m) return INVALID_VALUE;
  if (type_a != type_b || handle->pointer_mode) return NOT_SUPPORTED;
  int scalar = compute == COMPUTE_16 ? R16 : compute == COMPUTE_64 ? (type_c == C64 ? C64 : R64) : type_c == C32 ? C32 : R32;
  auto *made = new Product{{(char *)a, type_a, rows_a, op_a ? m : k, lda, stride_a, op_a},
                           {(char *)b, type_b, rows_b, op_b ? k : n, ldb, stride_b, op_b},
                           {(char *)c, type_c, m, n, ldc, stride_c, PLAIN},
                           m, n, k, batch, load(alpha, scalar, 0), load(beta, scalar, 0)};
  return cuLaunchHostFunc(handle->stream, run, made) ? INVALID_VALUE : SUCCESS;
}
API cublasGemmEx(Handle *handle, int op_a, int op_b, int m, int n, int k, const void *alpha, void *a, int type_a,
                 int lda, void *b, int type_b, int ldb, const void *beta, void *c, int type_c, int ldc, int compute,
                 int algorithm) {
  return cublasGemmStridedBatchedEx(handle, op_a, op_b, m, n, k, alpha, a, type_a, lda, 0, b, type_b, ldb, 0, beta, c,
                                    type_c, ldc, 0, 1, compute, algorithm);
}
