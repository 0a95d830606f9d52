"""Uniformly distributed random numbers as machine code: the same numbers as NumPy's generator PCG64, in less time.

Each state of PCG64 (128 bits) is a multiple of the previous one plus a constant, so NumPy computes one after the other.
The state some steps ahead is also a multiple plus a constant; so `LANES` consecutive states are computed side by side.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb_backends.native.llvm import function
from flnb_backends.native.preparation import prepares

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LEAST", "draw"]

LANES = 16
LEAST = 4096
"""The number of elements of the smallest array that machine code fills."""
FACTOR, MODULUS, WORD = 0x2360ED051FC65DA44385DF649FCCF645, 1 << 128, (1 << 64) - 1
"""The factor from one state to the next, and the numbers of states and of 64-bit words."""
BITS, COUNTS = f"<{LANES} x i64>", {"f": 2 * LANES, "d": LANES}
"""For each dtype, how many numbers are made of `LANES` states."""


def _equal(kind: str, number: float, count: int = LANES) -> str:
    """Return a vector of equal constants in LLVM's syntax."""
    constant = f"{number:.17e}" if isinstance(number, float) else str(number)
    return f"<{', '.join([f'{kind} {constant}'] * count)}>"


_CONVERSIONS = {
    "f": f"""
  %halves = bitcast {BITS} %bits to <{2 * LANES} x i32>
  %high = lshr <{2 * LANES} x i32> %halves, {_equal("i32", 8, 2 * LANES)}
  %number = sitofp <{2 * LANES} x i32> %high to <{2 * LANES} x float>
  %unit = fmul <{2 * LANES} x float> %number, {_equal("float", 2.0**-24, 2 * LANES)}
  store <{2 * LANES} x float> %unit, ptr %place, align 4""",
    "d": f"""
  %high = lshr {BITS} %bits, {_equal("i64", 11)}
  %number = sitofp {BITS} %high to <{LANES} x double>
  %unit = fmul <{LANES} x double> %number, {_equal("double", 2.0**-53)}
  store <{LANES} x double> %unit, ptr %place, align 8""",
}
"""LLVM IR that converts the generator's bits to numbers from 0 to 1 and stores them, as NumPy does."""


class _State(ctypes.Structure):
    """NumPy's struct for PCG64: a pointer to state and increment, and the unused half of an output, if any."""

    _fields_ = (("address", ctypes.c_uint64), ("waits", ctypes.c_int), ("half", ctypes.c_uint32))


def _first() -> tuple[str, str, str]:
    """Return LLVM IR that computes the next `LANES` states, and the names of vectors of their low and high words."""
    lines, low, high, before = [], "poison", "poison", "%state"
    for i in range(LANES):
        lines += [f"%m{i} = mul i128 {before}, {FACTOR}", f"%s{i} = add i128 %m{i}, %increment"]
        lines += [f"%low{i} = trunc i128 %s{i} to i64", f"%up{i} = lshr i128 %s{i}, 64"]
        lines += [f"%high{i} = trunc i128 %up{i} to i64"]
        lines += [f"%l{i} = insertelement {BITS} {low}, i64 %low{i}, i64 {i}"]
        lines += [f"%h{i} = insertelement {BITS} {high}, i64 %high{i}, i64 {i}"]
        low, high, before = f"%l{i}", f"%h{i}", f"%s{i}"
    return "\n".join(lines), low, high


def _step(step: int) -> str:
    """Return LLVM IR that computes the next `LANES` states from the present ones, side by side.

    Each new state is ``step`` times the old state, plus a constant whose low word is %ML and whose high word is %MH.
    The upper word of a product of two words is computed from products of their halves.
    """
    return f"""
  %x0 = and {BITS} %low, {_equal("i64", 0xFFFFFFFF)}
  %x1 = lshr {BITS} %low, {_equal("i64", 32)}
  %p00 = mul {BITS} %x0, {_equal("i64", step & 0xFFFFFFFF)}
  %p01 = mul {BITS} %x0, {_equal("i64", step >> 32 & 0xFFFFFFFF)}
  %p10 = mul {BITS} %x1, {_equal("i64", step & 0xFFFFFFFF)}
  %p11 = mul {BITS} %x1, {_equal("i64", step >> 32 & 0xFFFFFFFF)}
  %c00 = lshr {BITS} %p00, {_equal("i64", 32)}
  %mid = add {BITS} %p10, %c00
  %mid0 = and {BITS} %mid, {_equal("i64", 0xFFFFFFFF)}
  %mid1 = lshr {BITS} %mid, {_equal("i64", 32)}
  %sum = add {BITS} %p01, %mid0
  %sum1 = lshr {BITS} %sum, {_equal("i64", 32)}
  %sum0 = shl {BITS} %sum, {_equal("i64", 32)}
  %p0 = and {BITS} %p00, {_equal("i64", 0xFFFFFFFF)}
  %product_low = or {BITS} %sum0, %p0
  %u1 = add {BITS} %p11, %mid1
  %u2 = add {BITS} %u1, %sum1
  %cross1 = mul {BITS} %low, {_equal("i64", step >> 64)}
  %cross2 = mul {BITS} %high_word, {_equal("i64", step & WORD)}
  %u3 = add {BITS} %u2, %cross1
  %u4 = add {BITS} %u3, %cross2
  %u5 = add {BITS} %u4, %MH
  %new_low = add {BITS} %product_low, %ML
  %over = icmp ult {BITS} %new_low, %ML
  %carry = zext <{LANES} x i1> %over to {BITS}
  %new_high = add {BITS} %u5, %carry"""


def _text(dtype: str) -> str:
    """Return the LLVM IR of ``void draw(uint64 *state, void *out, int64 count)``, which uses count * `LANES` states."""
    following = sum(pow(FACTOR, i, MODULUS) for i in range(LANES)) % MODULUS
    first, low, high = _first()
    return f"""
declare {BITS} @llvm.fshr.v{LANES}i64({BITS}, {BITS}, {BITS})
define void @draw(ptr %at, ptr %out, i64 %count) #0 {{
entry:
  %state = load i128, ptr %at, align 8
  %second = getelementptr i64, ptr %at, i64 2
  %increment = load i128, ptr %second, align 8
  {first}
  %more = mul i128 %increment, {following}
  %more_low = trunc i128 %more to i64
  %more_up = lshr i128 %more, 64
  %more_high = trunc i128 %more_up to i64
  %ml = insertelement {BITS} poison, i64 %more_low, i64 0
  %mh = insertelement {BITS} poison, i64 %more_high, i64 0
  %ML = shufflevector {BITS} %ml, {BITS} poison, <{LANES} x i32> zeroinitializer
  %MH = shufflevector {BITS} %mh, {BITS} poison, <{LANES} x i32> zeroinitializer
  br label %head
head:
  %i = phi i64 [ 0, %entry ], [ %next, %body ]
  %low = phi {BITS} [ {low}, %entry ], [ %new_low, %body ]
  %high_word = phi {BITS} [ {high}, %entry ], [ %new_high, %body ]
  %again = icmp slt i64 %i, %count
  br i1 %again, label %body, label %done
body:
  %index = mul i64 %i, {COUNTS[dtype]}
  %place = getelementptr {"float" if dtype == "f" else "double"}, ptr %out, i64 %index
  %mixed = xor {BITS} %low, %high_word
  %turn = lshr {BITS} %high_word, {_equal("i64", 58)}
  %bits = call {BITS} @llvm.fshr.v{LANES}i64({BITS} %mixed, {BITS} %mixed, {BITS} %turn)
  {_CONVERSIONS[dtype]}
  {_step(pow(FACTOR, LANES, MODULUS))}
  %next = add i64 %i, 1
  br label %head
done:
  %first_low = extractelement {BITS} %low, i64 0
  %first_high = extractelement {BITS} %high_word, i64 0
  %a = zext i64 %first_low to i128
  %b = zext i64 %first_high to i128
  %c = shl i128 %b, 64
  %ahead = or i128 %a, %c
  %back = sub i128 %ahead, %increment
  %last = mul i128 %back, {pow(FACTOR, -1, MODULUS)}
  store i128 %last, ptr %at, align 8
  ret void
}}
attributes #0 = {{ nounwind "prefer-vector-width"="512" }}
"""


@cache
@prepares
def _function(dtype: str) -> Callable[[int, int, int], None] | None:
    """Return the compiled function for a dtype; None without llvmlite or cffi, or if it draws other numbers than NumPy.

    It can draw other numbers if a version of NumPy stores the generator's state in another way.
    """
    ours, theirs = np.random.default_rng(0), np.random.default_rng(0)
    state = _State.from_address(ours.bit_generator.ctypes.state_address)
    words = ours.bit_generator.state["state"]
    numbers = [words["state"] & WORD, words["state"] >> 64, words["inc"] & WORD, words["inc"] >> 64]
    if state.waits or [*(ctypes.c_uint64 * 4).from_address(state.address)] != numbers:
        return None
    text = _text(dtype)
    found = function("draw", "void (*)(uintptr_t, uintptr_t, int64_t)", text, lambda: text)
    if found is None:
        return None
    drawn = np.empty(3 * COUNTS[dtype], dtype)
    found[0](state.address, drawn.ctypes.data, 3)
    same = np.array_equal(drawn, theirs.random(drawn.shape, drawn.dtype))
    return found[0] if same and ours.bit_generator.state["state"] == theirs.bit_generator.state["state"] else None


def draw(source: np.random.Generator, out: np.ndarray[Any, Any]) -> bool:
    """Fill an array with random numbers from 0 to 1, as ``source.random(out=out)`` does: the same numbers and state.

    Returns:
        Whether it was filled. If False, nothing was drawn: the generator is not PCG64, or the array is small, not
        contiguous or neither float32 nor float64, or llvmlite is not installed.
    """
    dtype, bits = out.dtype.char, source.bit_generator
    if out.size < LEAST or dtype not in "fd" or type(bits) is not np.random.PCG64 or not out.flags.carray:
        return False
    fill = _function(dtype)
    if fill is None:
        return False
    flat = out.reshape(-1)
    with bits.lock:
        state = _State.from_address(bits.ctypes.state_address)
        begin = int(dtype == "f" and state.waits)
        count = (flat.size - begin - 1) // COUNTS[dtype]  # by the rest, NumPy sets `half` as always
        end = begin + count * COUNTS[dtype]
        if begin:
            source.random(dtype=flat.dtype, out=flat[:begin])
        fill(state.address, flat[begin:].ctypes.data, count)
        source.random(dtype=flat.dtype, out=flat[end:])
    return True
