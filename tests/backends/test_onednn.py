"""oneDNN's library: where it is found, what is missing, and its primitives on addresses."""

from __future__ import annotations

import ctypes
import math
import os
import platform
import subprocess
import sys

import numpy as np
import pytest
from flnb_backends.native.gemm import Product
from flnb_backends.native.onednn import OneDnnError, library
from flnb_backends.native.prepared import Unsuitable, channels_last, contiguous, regular
from flnb_backends.native.primitives import prepare

pytestmark = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="there is no oneDNN to install"
)


def laid(*arrays):
    """Shapes and strides in elements."""
    return [(x.shape, tuple(step // 4 for step in x.strides)) for x in arrays]


def addresses(*arrays):
    return [x.ctypes.data for x in arrays]


def test_regular_strides():
    assert regular((2, 3, 4), (48, 16, 4)) == (12, 4, 1)
    assert regular((2, 1, 4), (16, 999, 4)) == (4, 4, 1)
    assert regular((2, 3, 4), (48, 4, 12)) == (12, 1, 3)
    assert regular((3, 4), (4, 4)) is None  # windows that overlap
    assert regular((3, 4), (0, 4)) is None
    assert regular((3, 4), (-16, 4)) is None
    assert regular((3, 4), (18, 4)) is None
    assert math.prod(contiguous((5, 1, 1))) == 1


def test_channels_last_strides():
    assert channels_last((2, 3, 4, 5)) == (60, 1, 15, 3)
    assert channels_last((2, 3, 4)) == (12, 1, 3)


def convolution(way):
    """What is prepared for a convolution, its arrays, and what it computes."""
    x, w = np.ones((1, 2, 5, 5), "f"), np.arange(36, dtype="f").reshape(2, 2, 3, 3)
    y = np.zeros((1, 2, 3, 3), "f")
    made = prepare("conv", way, laid(x, w, y), (1, 1), (0, 0), (1, 1), 1)
    return made, (x, w, y), np.broadcast_to(w.sum((1, 2, 3))[:, None, None], y.shape)


@pytest.mark.parametrize("way", ["plain", "nhwc", "blocked"])
def test_a_native_program_can_repeat_the_calls(way):
    made, arrays, expected = convolution(way)
    scratch = np.zeros(made.scratch, np.uint8)
    made.place(addresses(*arrays), scratch.ctypes.data)
    address, calls = made.native()
    execute = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)(address)
    assert [execute(*call) for call in calls] == [0] * len(calls)
    np.testing.assert_allclose(arrays[2], expected, rtol=1e-6)
    arrays[2][...] = 0
    made.run(addresses(*arrays), scratch.ctypes.data)
    np.testing.assert_allclose(arrays[2], expected, rtol=1e-6)


def test_calls_are_named():
    made, _, _ = convolution("nhwc")
    names = [call.what for call in made.calls]
    assert names.index("reorder operand 0") < names.index("conv") < names.index("reorder operand 2")
    assert made.implementation


def test_scratch_memory_may_begin_anywhere():
    made, arrays, expected = convolution("blocked")
    for skip in range(0, 64, 7):
        scratch = np.full(made.scratch + 65, 7, np.uint8)
        made.run(addresses(*arrays), scratch.ctypes.data + skip)
        np.testing.assert_allclose(arrays[2], expected, rtol=1e-6)
        assert (scratch[:skip] == 7).all()
        assert (scratch[made.scratch + skip :] == 7).all()


def test_errors_have_the_name_of_the_status_and_the_shapes():
    x, w, y = np.zeros((1, 2, 5, 5), "f"), np.zeros((2, 3, 3, 3), "f"), np.zeros((1, 2, 3, 3), "f")
    with pytest.raises(
        OneDnnError, match=r"oneDNN: conv of float32\[1, 2, 5, 5\] with .*: invalid_arguments$"
    ) as failed:
        prepare("conv", "plain", laid(x, w, y), (1, 1), (0, 0), (1, 1), 1)
    assert failed.value.status == "invalid_arguments"
    with pytest.raises(OneDnnError, match=r"describe float32\[-2\] with strides \(1,\): invalid_arguments"):
        library().described((-2,), (1,))
    assert str(OneDnnError(99, "work")) == "oneDNN: work: status 99"


def test_reference_code_is_not_used():
    a = np.zeros((80, 80), "f")
    with pytest.raises(Unsuitable, match=r"matmul of float32\[80, 40\] with strides \(80, 2\)"):
        prepare("matmul", "plain", laid(a[:, ::2], a[:40], a))


def test_zeros_around_an_image():
    """The first layer of AlexNet, where only AVX2 needs them: an instruction set is chosen before the library opens."""
    done = run(
        """
import numpy as np
from flnb.backends import CpuBackend, NumpyBackend
from flnb_backends.native.onednn import library
rng = np.random.default_rng(0)
x, w = rng.normal(size=(2, 3, 43, 38)).astype("f"), rng.normal(size=(16, 3, 11, 11)).astype("f")
attributes = (4, 4), (2, 3), (1, 1), 1
expected = NumpyBackend().conv2d(x, w, *attributes)
backend = CpuBackend(1, "padded")
for image in (x, np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)):
    for _ in range(2):
        np.testing.assert_allclose(backend.conv2d(image, w, *attributes), expected, atol=1e-4)
from flnb_backends.tensor.cpu import _here
print(library().instruction_set, *[getattr(ready, "zeros", None) for ready in _here.ready.values()])
""",
        ONEDNN_MAX_CPU_ISA="AVX2",
    )
    assert done.returncode == 0, done.stderr
    if done.stdout.startswith("avx2 "):  # else the processor has less
        padded = 4 * 2 * 3 * 47 * 44
        assert done.stdout.split("[")[1:] == [f"(0, {padded})] ", f"(0, {padded})]\n"]


def test_products_of_matrices_in_any_order():
    a, b, y = (np.random.default_rng(i).normal(size=(7, 7)).astype("f") for i in range(3))
    for left, right in ((a, b), (a.T, b), (a, b.T), (a.T, b.T), (a[:, :1], b[:1]), (a[:1], b[:, :1])):
        out = np.full((len(left), right.shape[1]), np.nan, "f")
        Product(laid(left, right, out)).run(addresses(left, right, out))
        np.testing.assert_allclose(out, left @ right, rtol=1e-5, atol=1e-6)
    for wrong in ((a, b, y.T), (a[:, ::2][:4], b[:4], y[:4])):
        with pytest.raises(Unsuitable, match="contiguous"):
            Product(laid(*wrong))


def run(program, **environment):
    """Run a program in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=250, check=False,
        env={**os.environ, **environment},
    )  # fmt: skip


def error(program, **environment):
    """The last line that a program writes, which fails."""
    done = run(program, **environment)
    assert done.returncode == 1, done.stdout
    return done.stderr.strip().splitlines()[-1]


USE = "import flnb\nflnb.set_backend('cpu')"


def test_other_backends_load_neither_cffi_nor_onednn():
    done = run("""
import sys
import flnb
assert flnb.backends.CpuBackend.name == "cpu"
flnb.ones(3) + 1
assert "cffi" not in sys.modules and "libdnnl" not in open("/proc/self/maps").read()
""")
    assert done.returncode == 0, done.stderr


def test_without_cffi_the_extra_is_named():
    said = error(f"import sys\nsys.modules['cffi'] = None\n{USE}")
    assert said == "ImportError: flnb: the cpu backend needs cffi; install it with: pip install 'flnb[cpu]'"


ABSENT = "from flnb_backends.native import onednn\nonednn.PACKAGE, onednn.FILE = 'absent-package', 'libabsent.so.3'\n"


def test_without_a_library_the_extra_and_the_variable_are_named():
    said = error(f"import flnb\n{ABSENT}{USE}")
    assert said.startswith("ImportError: flnb: there is no libabsent.so.3; the cpu backend needs oneDNN 3 for OpenMP")
    assert "pip install 'flnb[cpu]'" in said
    assert "set FLNB_ONEDNN_LIBRARY to its path" in said


def test_the_library_that_the_variable_names():
    said = error(USE, FLNB_ONEDNN_LIBRARY="/nowhere/libdnnl.so.3")
    assert said.startswith("ImportError: flnb: /nowhere/libdnnl.so.3 cannot be opened (")
    said = error(USE, FLNB_ONEDNN_LIBRARY="libm.so.6")
    assert said.startswith("ImportError: flnb: libm.so.6 is no oneDNN; the cpu backend needs oneDNN 3")
    path = library().path
    done = run(f"{ABSENT}{USE}\nprint(onednn.library().path)", FLNB_ONEDNN_LIBRARY=path)
    assert done.stdout.strip() == path, done.stderr


def test_libgomp_is_named_where_it_is_missing():
    said = error(f"""
from flnb_backends.native import onednn
def opened(path):
    raise OSError("cannot load library: libgomp.so.1: cannot open shared object file: No such file or directory")
onednn.OneDnn = opened
{USE}""")
    assert said.endswith("needs the system's libgomp.so.1: install it (Debian's package libgomp1)")


def test_doctor_shows_the_library_or_what_is_missing():
    report = "from flnb.doctor import doctor\nprint(doctor())"
    (row,) = (line for line in run(report, OMP_NUM_THREADS="2").stdout.splitlines() if line.startswith("onednn "))
    found = library()
    assert row.split(maxsplit=1)[1] == f"{found.version}, {found.instruction_set}, 2 threads (OpenMP)  ({found.path})"
    (row,) = (line for line in run(f"import flnb\n{ABSENT}{report}").stdout.splitlines() if line.startswith("onednn "))
    assert row.split(maxsplit=1)[1].startswith("there is no libabsent.so.3; the cpu backend needs oneDNN 3 for OpenMP")


def test_a_forked_child_computes():
    done = run("""
import os
import numpy as np
from flnb.backends import CpuBackend
x, w = np.ones((4, 32, 20, 20), "f"), np.ones((32, 32, 3, 3), "f")
def convolve():
    return CpuBackend(2, "blocked").conv2d(x, w, (1, 1), (1, 1), (1, 1), 1)
y = convolve()
child = os.fork()
if not child:
    os._exit(0 if (convolve() == y).all() else 3)
assert os.waitpid(child, 0)[1] == 0
""")
    assert done.returncode == 0, done.stderr
