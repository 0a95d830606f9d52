"""oneDNN's library: where it is found, what is missing, and its primitives on addresses."""

from __future__ import annotations

import math
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flnb_backends.native.gemm import Product
from flnb_backends.native.locating import locate
from flnb_backends.native.onednn import OneDnnError, library
from flnb_backends.native.prepared import Unsuitable, channels_last, contiguous, regular
from flnb_backends.native.primitives import prepare
from flnb_backends.tensor import cpu
from flnb_backends.tensor.cpu import CpuBackend

import flnb

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


def test_a_status_of_a_run_is_an_error():
    """Each call is made to fail in oneDNN itself: it lacks its arguments, a row's length, a memory object."""
    made, arrays, _ = convolution("plain")
    scratch = np.zeros(made.scratch, np.uint8).ctypes.data
    whole, made.calls = made.calls, tuple(call._replace(number=0) for call in made.calls)
    with pytest.raises(OneDnnError, match=r"oneDNN: conv in conv of float32\[1, 2, 5, 5\] with .*: invalid_arguments$"):
        made.run(addresses(*arrays), scratch)
    made.calls, made._outer[0] = whole, library().ffi.NULL
    with pytest.raises(OneDnnError, match=r"set addresses of conv of float32\[1, 2, 5, 5\] .*: invalid_arguments$"):
        made.run(addresses(*arrays), scratch)
    a = np.zeros((7, 7), "f")
    product = Product(laid(a, a, a))
    product._ldb = 3
    with pytest.raises(OneDnnError, match=r"product of float32\[7, 7\] and float32\[7, 7\]: invalid_arguments$"):
        product.run(addresses(a, a, np.zeros_like(a)))


def test_a_status_is_the_error_of_the_op_and_names_the_users_line(monkeypatch):
    x, w = flnb.ones((2, 8, 9, 9)), flnb.ones((8, 8, 3, 3))
    with flnb.use_backend(CpuBackend(1, "nhwc")):
        flnb.conv2d(x, w)
        ready = next(made for made in reversed(cpu._here.ready.values()) if made.implementation)
        monkeypatch.setattr(ready, "calls", [call._replace(number=0) for call in ready.calls])
        with pytest.raises(OneDnnError, match="invalid_arguments") as failed:
            flnb.conv2d(x, w)
    (note,) = failed.value.__notes__
    assert note.startswith("in 'conv2d' of float32[2,8,9,9] and float32[8,8,3,3], giving float32[2,8,7,7], called at ")
    assert "test_onednn.py:" in note


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
from flnb_backends.native.locating import locate
rng = np.random.default_rng(0)
x, w = rng.normal(size=(2, 3, 43, 38)).astype("f"), rng.normal(size=(16, 3, 11, 11)).astype("f")
attributes = (4, 4), (2, 3), (1, 1), 1
expected = NumpyBackend().conv2d(x, w, *attributes)
backend = CpuBackend(1, "padded")
for image in (x, np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)):
    for _ in range(2):
        np.testing.assert_allclose(backend.conv2d(image, w, *attributes), expected, atol=1e-4)
from flnb_backends.native.routines import Routine
from flnb_backends.native.runner import Segment
from flnb_backends.tensor.cpu import _here
made, y = Routine(next(reversed(_here.ready.values())), 1), np.zeros_like(expected)
scratch = np.full(made.scratch, 255, np.uint8)
Segment([(made, [a.ctypes.data for a in (image, w, y)], scratch.ctypes.data)]).run()
np.testing.assert_allclose(y, expected, atol=1e-4)
print(locate().instruction_set, *[getattr(ready, "zeros", None) for ready in _here.ready.values()])
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


def said(program, **environment):
    """What a program prints."""
    done = run(program, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def error(program, **environment):
    """The last line that a program writes, which fails."""
    done = run(program, **environment)
    assert done.returncode == 1, done.stdout
    return done.stderr.strip().splitlines()[-1]


USE = "import flnb\nflnb.set_backend('cpu')\n"
ACTIVE = "import flnb\nfrom flnb.dispatch import state\nprint(state.current().backend.name)\n"


def doctor():
    """The end of a program, which prints the doctor's report. A function: core alone leaves out what calls it."""
    return "from flnb.doctor import doctor\nprint(doctor())\n"


def row(report, name):
    """A line of the doctor's report."""
    (found,) = (line for line in report.splitlines() if line.startswith(f"{name} "))
    return found.removeprefix(name).strip()


def test_it_is_the_default_and_cffi_and_llvmlite_wait_for_their_first_use():
    assert said(
        f"""{ACTIVE}
import sys
import numpy as np
flnb.ones(3) + 1
with flnb.record() as recorded:
    flnb.ones((2, 2)) @ flnb.ones((2, 2))
{doctor()}
assert not {{"cffi", "llvmlite"}} & sys.modules.keys()
x = flnb.asarray(np.ones((100, 100), "f"))
(x @ x).sum().item()
assert "cffi" in sys.modules and "llvmlite" not in sys.modules
""",
        FLNB_BACKEND="",
    ).startswith("cpu\n")


def test_the_variable_names_another_default():
    assert said(ACTIVE, FLNB_BACKEND="numpy") == "numpy\n"
    loaded = "import sys\nassert 'cffi' not in sys.modules and 'libdnnl' not in open('/proc/self/maps').read()"
    said(f"{ACTIVE}{loaded}", FLNB_BACKEND="numpy")
    assert said(f"{ACTIVE}print(state.current().backend.threads)", FLNB_BACKEND="cpu:3") == "cpu\n3\n"
    expected = "ValueError: unknown backend 'cpuu'; known: cpu, cuda, deferred, meta, numpy; did you mean 'cpu'?"
    assert error("import flnb", FLNB_BACKEND="cpuu") == expected


def test_without_cffi_the_default_is_numpy_and_the_extra_is_named():
    absent = f"import sys\nsys.modules['cffi'] = None\n{ACTIVE}"
    expected = "the cpu backend needs cffi; install it with: pip install 'flnb[cpu]'"
    found = said(f"{absent}{doctor()}", FLNB_BACKEND="")
    assert found.startswith("numpy\n")
    assert row(found, "onednn") == expected
    assert error(f"{absent}{USE}", FLNB_BACKEND="") == f"ImportError: flnb: {expected}"
    assert error("import sys\nsys.modules['cffi'] = None\nimport flnb", FLNB_BACKEND="cpu").endswith(expected)


ABSENT = "from flnb_backends.native import locating\nlocating.PACKAGE, locating.FILE = 'absent', 'libabsent.so.3'\n"


def test_without_a_library_the_extra_and_the_variable_are_named():
    there_is_none = error(f"{ABSENT}{USE}", FLNB_BACKEND="numpy")
    begins = "there is no libabsent.so.3; the cpu backend needs oneDNN 3 for OpenMP"
    assert there_is_none.startswith(f"ImportError: flnb: {begins}")
    assert "pip install 'flnb[cpu]'" in there_is_none
    assert "set FLNB_ONEDNN_LIBRARY to its path" in there_is_none
    assert row(said(f"{ABSENT}{doctor()}", FLNB_BACKEND="numpy"), "onednn").startswith(begins)


def test_the_library_that_the_variable_names():
    for path, message in (
        ("/nowhere/libdnnl.so.3", "/nowhere/libdnnl.so.3 cannot be opened ("),
        ("libm.so.6", "libm.so.6 is not the oneDNN library; the cpu backend needs oneDNN 3"),
    ):
        found = said(f"{ACTIVE}{doctor()}", FLNB_ONEDNN_LIBRARY=path, FLNB_BACKEND="")
        assert found.startswith("numpy\n")
        assert row(found, "onednn").startswith(message)
        assert error(USE, FLNB_ONEDNN_LIBRARY=path).startswith(f"ImportError: flnb: {message}")
    path = locate().path
    use = f"{ABSENT}{USE}print(locating.locate().path)"
    assert said(use, FLNB_ONEDNN_LIBRARY=path, FLNB_BACKEND="numpy").strip() == path


def test_where_libgomp_is_missing_the_default_is_numpy_and_the_doctor_names_it(tmp_path):
    """As in a slim container: a copy of the library that needs a libgomp which is nowhere."""
    copy = tmp_path / "libdnnl.so.3"
    copy.write_bytes(Path(locate().path).read_bytes().replace(b"libgomp.so.1", b"libgomp.so.7"))
    found = said(f"{ACTIVE}{doctor()}", FLNB_ONEDNN_LIBRARY=str(copy), FLNB_BACKEND="")
    assert found.startswith("numpy\n")
    needs = f"oneDNN ({copy}) needs the system's libgomp.so.1: install it (Debian's package libgomp1)"
    assert row(found, "onednn") == needs
    assert row(found, "computed by").startswith("NumPy ")
    assert error(USE, FLNB_ONEDNN_LIBRARY=str(copy)) == f"ImportError: flnb: {needs}"


def test_doctor_and_recordings_name_what_computes():
    report = f"""{ACTIVE}
with flnb.record() as recorded:
    flnb.ones(3) + 1
print("libraries", recorded.meta["libraries"])
{doctor()}"""
    found = said(report, OMP_NUM_THREADS="2", OPENBLAS_NUM_THREADS="1", FLNB_BACKEND="")
    here = locate()
    assert row(found, "onednn") == f"{here._replace(threads=2)}  ({here.path})"
    assert str(here._replace(threads=2)) == f"{here.version}, {here.instruction_set}, 2 threads (OpenMP)"
    assert found.startswith("cpu\n")
    computed = row(found, "computed by")
    assert computed.startswith(
        f"oneDNN {here.version}, {here.instruction_set}, 2 threads (OpenMP); NumPy {np.__version__}, "
    )
    assert computed.endswith(", 1 thread")
    assert row(found, "libraries") == computed
    assert row(found, "backend").startswith("cpu  (available: cpu, ")
    found = said(report, FLNB_BACKEND="numpy")
    assert row(found, "libraries") == row(found, "computed by")
    assert row(found, "computed by").startswith(f"NumPy {np.__version__}, ")


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
