"""Kernels broken at one place, and the tests of the methods that launch them as judges.

`python -m tests.backends.cuda.mutants [FILE ...]` breaks every barrier, bound, mask and index of the files, one after
another, and prints what the tests did not notice. All files take half an hour of processor time.
"""

from __future__ import annotations

import os
import re
import resource
import sys
import tempfile
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

import pytest
from flnb_backends.tensor.cuda import launcher

HERE = Path(__file__).parent
FOLDER = launcher.FOLDER
SECONDS = 60
"""Of processor time for the judges of one mutant: a loop without end is noticed."""
SMALL = 32, 2
"""Threads and blocks of a grid for the judges."""
BREAKS = {
    r"__syncthreads\(\);": "",
    r"0xffffffffu": "0x0000ffffu",
    r" < ": " <= ",
    r" <= ": " < ",
    r" > ": " >= ",
    r" >= ": " > ",
    r" == 0": " != 0",
    r"threadIdx\.[xyz]": "0",
    r"blockIdx\.[xyz]": "0",
    r"(?:block|grid)Dim\.[xyz]": "1",
    r" % ": " / ",
    r"(?<=\w)\[([^\[\]]+)\]": r"[\1 + 1]",
}
"""What is broken: barriers, masks, bounds and indices."""
DECLARED = re.compile(r" *(?:__shared__|long long|unsigned|int|[A-Z]) (?:.*[\w\])], |[\w ]*)\w+")
"""What stands before a number in brackets that is an array's extent, no index: that of a shared one is halved."""
REDUCTIONS = "test_reductions.py -k (any_axes and sum) or long_rows or no_number or neighbouring or without"
JUDGES = {
    "rows.cuh": REDUCTIONS,
    "joins.cuh": REDUCTIONS,
    "nests.cuh": "test_jit.py -k random or half",
    "reductions.cu": REDUCTIONS,
    "positions.cu": "test_reductions.py -k float32-arg or long_rows or no_number",
    "scans.cu": "test_reductions.py -k running or no_number or scan",
    "softmax.cu": "test_whole.py -k (softmax or cross) and not float64",
    "normalization.cu": "test_whole.py -k norm and not float64",
    "activations.cu": "test_whole.py -k (relu or gelu or swish or sigmoid) and not float64",
    "optimizers.cu": "test_optimizers.py -k float32 or numbers",
    "creation.cu": "test_indexing.py",
    "indexing.cu": "test_indexing.py",
    "scattering.cu": "test_indexing.py",
    "random.cu": "test_random.py",
    "nonzero.cu": "test_sorting.py -k nonzero and (many or float32)",
    "sorting.cu": "test_sorting.py -k (merged or several or argtopk or float32 or views) and not nonzero",
    "windows.cu": "test_windows.py -k not float16 and not float64",
}
"""The tests, with options of pytest, that judge the mutants of each file."""


EXTRA_ROUND = "one more round of the loop, in which there is nothing to do"
EQUAL = "of equal values either is right"
EQUIVALENT = {
    ("rows.cuh", "tile<< < -> <= >>rows.tiles()"): EXTRA_ROUND,
    ("joins.cuh", "return a<< < -> <= >>b || b != b"): EQUAL,
    ("joins.cuh", "return b<< < -> <= >>a || b != b"): EQUAL,
    ("rows.cuh", "if (threads<< <= -> < >>32)"): "one warp may also take the way of several",
    ("nests.cuh", "if (span<< <= -> < >>32)"): "one warp may also take the way of several",
    ("nests.cuh", "(span<< < -> <= >>32 ? span : 32)"): EQUAL,
    ("rows.cuh", "(inner + blockDim.x - 1) / <<blockDim.x->1>>"): "more tiles, without rows",
    ("scans.cu", "begin<< < -> <= >>rows.n"): EXTRA_ROUND,
    ("scans.cu", "by<< < -> <= >>group"): EXTRA_ROUND,
    ("positions.cu", "b.place<< < -> <= >>0"): "place 0 is that of the thread whose result counts, never the other's",
    ("positions.cu", "a.place<< < -> <= >>b.place"): "places of two candidates differ",
    ("activations.cu", "(A)x[i]<< < -> <= >>0"): EQUAL,
    ("optimizers.cu", "scale<< < -> <= >>most"): EQUAL,
    ("random.cu", "j<< < -> <= >>EACH && i"): EXTRA_ROUND,
    ("random.cu", "j<< < -> <= >>EACH; j += 2"): EXTRA_ROUND,
    ("random.cu", "k<< < -> <= >>2 && i"): "the next round writes that element again",
    ("random.cu", "bool inside = from<< < -> <= >>to"): "between equal limits there is one number",
    ("nonzero.cu", "from<< < -> <= >>n; from += blockDim.x"): EXTRA_ROUND,
    ("nonzero.cu", "by<< < -> <= >>(int)blockDim.x"): EXTRA_ROUND,
    ("nonzero.cu", "k<< >= -> > >>count"): "a guard against tensors that change meanwhile",
    ("nonzero.cu", "__shared__ int warps<<[32]->[32 / 2]>>"): "room for the 1024 threads that a block may have",
    ("sorting.cu", "(run<< < -> <= >>keep ? run : keep)"): EQUAL,
    ("sorting.cu", "one<< > -> >= >>other"): "keys that are equal do not come here",
    ("sorting.cu", "first<< > -> >= >>second"): "places differ",
    ("sorting.cu", "if (last<< > -> >= >>n) last = n"): EQUAL,
    ("sorting.cu", "if (rank<< >= -> > >>keep) continue;"): "one more element is written, where nothing is read",
    ("windows.cu", "at<< < -> <= >>all.kernel[d] ? 0"): "one more window is looked at, which does not have the element",
}
"""Mutants, by file and a part of `Mutant.where`, that change no result, with the reason."""


class Mutant(NamedTuple):
    """A file of kernels with one place broken."""

    file: str
    begin: int
    where: str
    old: str
    new: str
    text: str


def mutants(file: str) -> list[Mutant]:
    """Every mutant of a file."""
    text, found = (FOLDER / file).read_text(), []
    for old, new in BREAKS.items():
        for match in re.finditer(old, text):
            begin, end = match.span()
            before = text[text.rfind("\n", 0, begin) + 1 : begin]
            after = text[end : text.find("\n", end)]
            put, extent = match.expand(new), match[0].strip("[]").isdigit() and DECLARED.fullmatch(before)
            if "//" in before or before.startswith("#include") or (extent and "__shared__" not in before):
                continue
            if extent:
                put = f"[{match[1]} / 2]"
            where = f"{before}<<{match[0]}->{put}>>{after}".strip()
            found.append(Mutant(file, begin, where, match[0], put, text[:begin] + put + text[end:]))
    return found


def reason(mutant: Mutant) -> str:
    """Why a mutant changes no result; "" if it should be noticed."""
    found = [why for (file, where), why in EQUIVALENT.items() if file == mutant.file and where in mutant.where]
    return found[0] if found else ""


def noticed(mutant: Mutant) -> bool:
    """Whether the tests fail with a mutant in its file's place; they run in a process of their own."""
    child = os.fork()
    if child:
        _, status = os.waitpid(child, 0)
        return status != 0
    try:
        os.dup2(os.open(os.environ.get("FLNB_MUTANTS_LOG", os.devnull), os.O_WRONLY | os.O_APPEND | os.O_CREAT), 1)
        os.dup2(1, 2)
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with tempfile.TemporaryDirectory() as folder:
            launcher.FOLDER = Path(copytree(FOLDER, folder, dirs_exist_ok=True))
            Path(folder, mutant.file).write_text(mutant.text)
            launcher.kernel_text.cache_clear()
            launcher.THREADS, launcher.BLOCKS = (
                SMALL  # so that small tensors need several blocks, and loops over the grid
            )
            code = judged(mutant.file)
    except BaseException:
        code = 1
    finally:
        os._exit(code)


def judged(file: str) -> int:
    """Run the tests that judge a file's mutants; returns pytest's exit status."""
    tests, _, chosen = JUDGES[file].partition(" -k ")
    paths = [str(HERE / name) for name in tests.split()]
    options = "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow", "--import-mode=importlib"
    return int(pytest.main([*options, *paths, *(["-k", chosen] if chosen else [])]))


def main(files: list[str]) -> int:
    """Judge all mutants of some files, of all by default; print the survivors and return how many have no reason."""
    missed = 0
    for file in files or sorted(JUDGES):
        every, passed = mutants(file), 0
        for mutant in every:
            if not noticed(mutant):
                line, passed = mutant.text.count("\n", 0, mutant.begin) + 1, passed + 1
                missed += not reason(mutant)
                print(f"    {file}:{line}: {mutant.where}  # {reason(mutant) or 'NOT NOTICED'}", flush=True)
        print(f"{file}: {len(every) - passed} of {len(every)} noticed", flush=True)
    return missed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
