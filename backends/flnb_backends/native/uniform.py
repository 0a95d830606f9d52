"""Uniformly distributed random numbers as machine code: the same numbers as NumPy's generator PCG64, in less time.

Each state of PCG64 (128 bits) is a multiple of the previous one plus a constant, so NumPy computes one after the other.
The state some steps ahead is also a multiple plus a constant; so `LANES` consecutive states are computed side by side.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from flnb.graph.emitter import Scalar
from flnb_backends.native.instructions import Code
from flnb_backends.native.llvm import function
from flnb_backends.native.preparation import prepares

if TYPE_CHECKING:
    from collections.abc import Callable

LANES = 16
LEAST = 4096
"""The number of elements of the smallest array that machine code fills."""
FACTOR, MODULUS, WORD, HALF = 0x2360ED051FC65DA44385DF649FCCF645, 1 << 128, (1 << 64) - 1, (1 << 32) - 1
"""The factor from one state to the next, the number of states, the largest 64-bit word, and the largest half of one."""
COUNTS = {"f": 2 * LANES, "d": LANES}
"""For each dtype, how many numbers are made of `LANES` states."""


class _State(ctypes.Structure):
    """NumPy's struct for PCG64: a pointer to state and increment, and the unused half of an output, if any."""

    _fields_ = (("address", ctypes.c_uint64), ("waits", ctypes.c_int), ("half", ctypes.c_uint32))


def _text(dtype: str) -> str:
    """Return the LLVM IR of ``void draw(uint64 *state, void *out, int64 count)``.

    The function computes the generator's next `LANES` states ``count`` times, and writes their numbers to ``out``.
    The states' low and high words are in two arrays, which become registers: LLVM computes all lanes in one iteration.
    """
    code = Code("draw", "ptr %at, ptr %out, i64 %count", width=512)
    code.interleaved, add = LANES * 64 // code.width, code.add
    code.variables += [f"%{name} = alloca [{LANES} x i64], align 64" for name in ("lows", "highs")]
    state = add("load i128, ptr %at, align 8")
    increment = add(f"load i128, ptr {code.element('%at', 'q', '2')}, align 8")
    for lane in range(LANES):
        state = add(f"add i128 {add(f'mul i128 {state}, {FACTOR}')}, {increment}")
        for word, words in zip(_words(code, state), ("%lows", "%highs"), strict=True):
            code.store(word, code.element(words, "Q", str(lane)))
    following = sum(pow(FACTOR, i, MODULUS) for i in range(LANES)) % MODULUS
    more, more_high = _words(code, add(f"mul i128 {increment}, {following}"))
    step = pow(FACTOR, LANES, MODULUS)
    with code.loop("0", "%count") as i:
        drawn = code.element("%out", "Q", i, LANES)
        with code.loop("0", str(LANES), parallel=True) as j:
            places = [code.element(words, "Q", j) for words in ("%lows", "%highs")]
            low, high = (code.load("Q", place) for place in places)
            turned = [f"i64 {word.value}" for word in (low ^ high, low ^ high, high >> 58)]
            bits, place = code.call("@llvm.fshr.i64", "i64", turned), code.element(drawn, "Q", j)
            code.lines.append(f"store i64 {bits}, ptr {place}, align 4{code.group}")  # two numbers of float32
            new = low * (step & WORD) + more
            new_high = _upper(low, step & WORD) + low * (step >> 64) + high * (step & WORD) + more_high
            for word, place in zip((new, new_high + (new < more).to("Q")), places, strict=True):
                code.store(word, place)
        _write_numbers(code, dtype, drawn)
    first, second = (add(f"zext i64 {code.load('Q', words).value} to i128") for words in ("%lows", "%highs"))
    ahead = add(f"or i128 {first}, {add(f'shl i128 {second}, 64')}")
    last = add(f"mul i128 {add(f'sub i128 {ahead}, {increment}')}, {pow(FACTOR, -1, MODULUS)}")
    code.lines.append(f"store i128 {last}, ptr %at, align 8")
    return code.text()


def _words(code: Code, number: str) -> tuple[Scalar, Scalar]:
    """Emit the low and the high word (64 bits each) of a number of 128 bits; returns both."""
    high = code.add(f"lshr i128 {number}, 64")
    low, high = (code.add(f"trunc i128 {each} to i64") for each in (number, high))
    return Scalar(code, low, "Q"), Scalar(code, high, "Q")


def _upper(x: Scalar, number: int) -> Scalar:
    """Emit the high word of the product of a word and a constant, from products of their halves."""
    x0, x1, n0, n1 = x & HALF, x >> 32, number & HALF, number >> 32
    middle = x1 * n0 + (x0 * n0 >> 32)
    return x1 * n1 + (middle >> 32) + (x0 * n1 + (middle & HALF) >> 32)


def _write_numbers(code: Code, dtype: str, drawn: str) -> None:
    """Emit the conversion of the bits of `LANES` states at ``drawn`` to numbers from 0 to 1, in place, as by NumPy."""
    bits, shift = ("i", 8) if dtype == "f" else ("q", 11)
    with code.loop("0", str(COUNTS[dtype]), parallel=True) as j:
        here = code.element(drawn, dtype, j)
        high = code.load(bits.upper(), here) >> shift
        number = Scalar(code, high.value, bits).to(dtype)  # of integers with a sign, which takes less time
        code.store(number * 2.0 ** (shift - 8 * np.dtype(dtype).itemsize), here)


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
