"""oneDNN through its C API: loads the library, creates its objects, and turns status codes into errors.

The functions are called by cffi in ABI mode. They are declared below, because cffi takes 0.4 s to read the whole header
of oneDNN. The numbers of its enums are those of version 3.2; they are the same up to version 3.12.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flnb_telemetry.extras import require

from flnb_backends.native.locating import Found, locate
from flnb_backends.native.preparation import prepares

if TYPE_CHECKING:
    from collections.abc import Sequence

STATUSES = (
    "success", "out_of_memory", "invalid_arguments", "unimplemented", "last_impl_reached", "runtime_error",
    "not_required", "invalid_graph", "invalid_graph_op", "invalid_shape", "invalid_data_type",
)  # fmt: skip
"""Names of `dnnl_status_t`, without the prefix."""

DECLARATIONS = """
typedef struct dnnl_engine *dnnl_engine_t;
typedef struct dnnl_stream *dnnl_stream_t;
typedef struct dnnl_memory *dnnl_memory_t;
typedef struct dnnl_memory_desc *dnnl_memory_desc_t;
typedef struct dnnl_primitive *dnnl_primitive_t;
typedef struct dnnl_primitive_desc *dnnl_primitive_desc_t;
typedef struct dnnl_primitive_attr *dnnl_primitive_attr_t;
typedef struct { int arg; dnnl_memory_t memory; } dnnl_exec_arg_t;
int dnnl_engine_create(dnnl_engine_t *, int kind, size_t index);
int dnnl_stream_create(dnnl_stream_t *, dnnl_engine_t, unsigned flags);
int dnnl_memory_desc_create_with_strides(dnnl_memory_desc_t *, int ndims, int64_t *dims, int type, int64_t *strides);
int dnnl_memory_desc_create_with_tag(dnnl_memory_desc_t *, int ndims, int64_t *dims, int type, int tag);
int dnnl_memory_desc_destroy(dnnl_memory_desc_t);
int dnnl_memory_desc_equal(dnnl_memory_desc_t, dnnl_memory_desc_t);
size_t dnnl_memory_desc_get_size(dnnl_memory_desc_t);
int dnnl_memory_create(dnnl_memory_t *, dnnl_memory_desc_t, dnnl_engine_t, void *handle);
int dnnl_memory_set_data_handle(dnnl_memory_t, uintptr_t handle);
int dnnl_memory_destroy(dnnl_memory_t);
int dnnl_primitive_attr_create(dnnl_primitive_attr_t *);
int dnnl_primitive_attr_set_scratchpad_mode(dnnl_primitive_attr_t, int mode);
int dnnl_convolution_forward_primitive_desc_create(dnnl_primitive_desc_t *, dnnl_engine_t, int propagation,
    int algorithm, dnnl_memory_desc_t src, dnnl_memory_desc_t weights, dnnl_memory_desc_t bias, dnnl_memory_desc_t dst,
    int64_t *strides, int64_t *dilates, int64_t *left, int64_t *right, dnnl_primitive_attr_t);
int dnnl_convolution_backward_data_primitive_desc_create(dnnl_primitive_desc_t *, dnnl_engine_t, int algorithm,
    dnnl_memory_desc_t diff_src, dnnl_memory_desc_t weights, dnnl_memory_desc_t diff_dst,
    int64_t *strides, int64_t *dilates, int64_t *left, int64_t *right, dnnl_primitive_desc_t, dnnl_primitive_attr_t);
int dnnl_convolution_backward_weights_primitive_desc_create(dnnl_primitive_desc_t *, dnnl_engine_t, int algorithm,
    dnnl_memory_desc_t src, dnnl_memory_desc_t diff_weights, dnnl_memory_desc_t diff_bias, dnnl_memory_desc_t diff_dst,
    int64_t *strides, int64_t *dilates, int64_t *left, int64_t *right, dnnl_primitive_desc_t, dnnl_primitive_attr_t);
int dnnl_pooling_forward_primitive_desc_create(dnnl_primitive_desc_t *, dnnl_engine_t, int propagation, int algorithm,
    dnnl_memory_desc_t src, dnnl_memory_desc_t dst, int64_t *strides, int64_t *kernel, int64_t *dilation,
    int64_t *left, int64_t *right, dnnl_primitive_attr_t);
int dnnl_pooling_backward_primitive_desc_create(dnnl_primitive_desc_t *, dnnl_engine_t, int algorithm,
    dnnl_memory_desc_t diff_src, dnnl_memory_desc_t diff_dst, int64_t *strides, int64_t *kernel, int64_t *dilation,
    int64_t *left, int64_t *right, dnnl_primitive_desc_t, dnnl_primitive_attr_t);
int dnnl_matmul_primitive_desc_create(dnnl_primitive_desc_t *, dnnl_engine_t, dnnl_memory_desc_t src,
    dnnl_memory_desc_t weights, dnnl_memory_desc_t bias, dnnl_memory_desc_t dst, dnnl_primitive_attr_t);
int dnnl_reorder_primitive_desc_create(dnnl_primitive_desc_t *, dnnl_memory_desc_t, dnnl_engine_t, dnnl_memory_desc_t,
    dnnl_engine_t, dnnl_primitive_attr_t);
dnnl_memory_desc_t dnnl_primitive_desc_query_md(dnnl_primitive_desc_t, int what, int index);
int dnnl_primitive_desc_query(dnnl_primitive_desc_t, int what, int index, void *result);
int dnnl_primitive_desc_destroy(dnnl_primitive_desc_t);
int dnnl_primitive_create(dnnl_primitive_t *, dnnl_primitive_desc_t);
int dnnl_primitive_execute(dnnl_primitive_t, dnnl_stream_t, int count, dnnl_exec_arg_t *);
int dnnl_primitive_destroy(dnnl_primitive_t);
int dnnl_sgemm(char transposed_a, char transposed_b, int64_t m, int64_t n, int64_t k, float alpha, uintptr_t a,
    int64_t lda, uintptr_t b, int64_t ldb, float beta, uintptr_t c, int64_t ldc);
void omp_set_num_threads(int);
int omp_get_thread_num(void);
int omp_get_num_threads(void);
void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags);
"""

CPU, IN_ORDER, FLOAT32, ANY = 1, 1, 3, 1
USER_SCRATCHPAD = 1


class OneDnnError(RuntimeError):
    """Raised if a function of oneDNN fails. The message names the attempted action, ``doing``.

    Attributes:
        number: the status code that the function returned.
        status: the name of the status, such as "unimplemented".
    """

    def __init__(self, status: int, doing: str) -> None:
        self.number = status
        self.status = STATUSES[status] if 0 <= status < len(STATUSES) else f"status {status}"
        super().__init__(f"oneDNN: {doing}: {self.status}")


class OneDnn:
    """The loaded oneDNN library, with one engine (this CPU) and one stream; every call blocks until it is done.

    Args:
        found: where the library is, and its number of threads.

    Attributes:
        ffi: cffi's object for the declared types, which allocates C objects.
        lib: cffi's object for the library, whose attributes are the C functions.
        attributes: the attributes with which primitives are created. They require the caller to provide scratch
            memory; otherwise oneDNN would allocate scratch memory for the thread that creates the primitive.
        threads: the number of threads that OpenMP uses by default.
        pointer: returns the pointer to a contiguous array's elements; raises ValueError for another array.
        most_threads: the largest number of threads that oneDNN may use in this process.
        team: the addresses of the OpenMP functions that run machine code on several threads; empty if there are none.

    Raises:
        ImportError: cffi is not installed.
    """

    def __init__(self, found: Found) -> None:
        self.ffi: Any = require("cffi", extra="cpu", purpose="the cpu backend").FFI()
        self.ffi.cdef(DECLARATIONS)
        # Not to be closed at exit: objects that are still alive call the library to be destroyed.
        self.lib: Any = self.ffi.dlopen(found.path, self.ffi.RTLD_NOW | self.ffi.RTLD_NODELETE)
        plain: Any = import_module("_cffi_backend").FFI()  # its methods are C functions; those of `cffi.FFI` call these
        self._cast, self.pointer, self._word = plain.cast, plain.from_buffer, plain.typeof("uintptr_t")
        self.threads = found.threads
        self.engine = self.new("dnnl_engine_t", "engine_create", CPU, 0)
        self.stream = self.new("dnnl_stream_t", "stream_create", self.engine, IN_ORDER)
        self.attributes = self.new("dnnl_primitive_attr_t", "primitive_attr_create")
        self.check(self.lib.dnnl_primitive_attr_set_scratchpad_mode(self.attributes, USER_SCRATCHPAD), "set attributes")
        self.most_threads = sys.maxsize
        self._set_threads: Any = getattr(self.lib, "omp_set_num_threads", None)  # of the OpenMP that it has loaded
        names = ("GOMP_parallel", "omp_get_thread_num", "omp_get_num_threads")
        runs = all(hasattr(self.lib, name) for name in names)
        self.team = [self.word(self.ffi.addressof(self.lib, name)) for name in names if runs]
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forked)

    def _forked(self) -> None:
        """Limit oneDNN to one thread in a forked child process, in which libgomp's other threads do not exist."""
        self.most_threads = 1

    def granted(self, count: int) -> int:
        """Return how many threads oneDNN may use if ``count`` are requested: 1 in a forked child, else ``count``."""
        return min(count, self.most_threads)

    def use_threads(self, count: int) -> None:
        """Set the number of threads for oneDNN's calls from this thread, to a number that `granted` has returned."""
        if self._set_threads is not None:
            self._set_threads(count)

    def function(self, kind: str, address: int) -> Any:
        """Return machine code at an address as a function of the C type ``kind``."""
        return self._cast(kind, address)

    def check(self, status: int, doing: str) -> None:
        """Raise `OneDnnError` if a status is not success; its message names the attempted action, ``doing``."""
        if status:
            raise OneDnnError(status, doing)

    def new(self, kind: str, create: str, *arguments: Any, doing: str = "") -> Any:
        """Create an object of the C type ``kind`` by calling the function ``dnnl_`` + create with the arguments.

        The object is destroyed when there is no reference to it any more. ``doing`` describes the action for an error's
        message.
        """
        place = self.ffi.new(f"{kind} *")
        self.check(getattr(self.lib, f"dnnl_{create}")(place, *arguments), doing or create)
        destroy = getattr(self.lib, f"{kind.removesuffix('_t')}_destroy", None)
        return place[0] if destroy is None else self.ffi.gc(place[0], destroy)

    def address(self, array: Any) -> int:
        """Return the address of an array's first element, by cffi; NumPy's attribute takes five times as long."""
        try:
            return int(self._cast(self._word, self.pointer(array)))
        except ValueError:
            return int(array.__array_interface__["data"][0])

    def word(self, pointer: Any) -> int:
        """Return the address in a C pointer."""
        return int(self._cast(self._word, pointer))

    def addresses(self, arrays: Sequence[Any]) -> list[int]:
        """Return the address of each array's first element."""
        cast, word, from_buffer = self._cast, self._word, self.pointer
        try:
            return [int(cast(word, from_buffer(x))) for x in arrays]
        except ValueError:  # not contiguous
            return [self.address(x) for x in arrays]

    def numbers(self, values: Any) -> Any:
        """Return integers as a C array of int64."""
        return self.ffi.new("int64_t[]", list(values))

    def described(self, shape: tuple[int, ...], strides: tuple[int, ...] | None) -> Any:
        """Return the descriptor of a float32 tensor; strides are in elements, None lets oneDNN choose the layout."""
        rank, doing = len(shape), f"describe float32{list(shape)} with strides {strides}"
        how, last = ("tag", ANY) if strides is None else ("strides", self.numbers(strides))
        create = f"memory_desc_create_with_{how}"
        return self.new("dnnl_memory_desc_t", create, rank, self.numbers(shape), FLOAT32, last, doing=doing)


@cache
@prepares
def library() -> OneDnn:
    """Return the oneDNN library, which is opened at the first call.

    Raises:
        ImportError: oneDNN cannot be used; the message says what to install.
    """
    return OneDnn(locate())
