"""The time until an edited source file has passed its tests, and until a class edited in a notebook is active.

A file is chosen with a probability proportional to its lines, without replacement, as the paper chooses files for
incremental builds (appendix A.1.2), and changed in a copy of this checkout. Its tests are the file ``test_NAME.py``, or
if there is none, all tests of the folder. These tests are run once before the measurement, so that caches are filled.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.complexity.installed import PACKAGES, ROOT
from benchmarks.complexity.lines import count, sources

__all__ = ["PARTS", "active_in_notebook", "chosen", "file_to_tests", "from_scratch", "mirror"]

COPIED = ("flnb", "telemetry", "backends", "tests", "benchmarks", "notebooks", "pyproject.toml", "README.md")


def mirror(source: Path, root: Path) -> Path | None:
    """Return the path of a source file's tests: the file ``test_NAME.py``, else a folder; None if there are none."""
    inside = source.relative_to(root).parts[:-1]
    folders = [root / "tests" / name.removeprefix("flnb_") for name in reversed(inside[1:])]
    files = [folder / f"test_{source.stem}.py" for folder in (*folders, root / "tests", root / "tests" / inside[0])]
    candidates = [*files, *folders, root / "tests" / inside[0]]
    return next((path for path in candidates if path.exists()), None)


def chosen(number: int, seed: int = 0) -> list[Path]:
    """Draw ``number`` source files that have tests, without replacement, with probabilities proportional to lines."""
    files = [
        path for package in PACKAGES for path in sources(ROOT / package) if path.suffix == ".py" and mirror(path, ROOT)
    ]
    lines = [count(path.read_text(), "Python") for path in files]
    draw = random.Random(seed)
    found: list[Path] = []
    while len(found) < min(number, len(files)):
        (path,) = draw.choices(files, lines)
        found += [] if path in found else [path]
    return found


def file_to_tests(files: list[Path]) -> list[dict[str, Any]]:
    """Edit source files in a copy of this checkout, one after the other, and run the tests of each.

    Return a row of the printed table for each file, with the seconds from the edit until the tests have passed.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for name in COPIED:
            ours = ROOT / name
            copy = shutil.copytree if ours.is_dir() else shutil.copy
            copy(ours, root / name, **({"ignore": shutil.ignore_patterns("node_modules")} if ours.is_dir() else {}))
        return [_edited(root, root / path.relative_to(ROOT)) for path in files]


def _edited(root: Path, source: Path) -> dict[str, Any]:
    tests = mirror(source, root)
    assert tests
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(str(root / name) for name in ("", *COPIED[1:3]))}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def run(*command: str) -> str:
        done = subprocess.run([sys.executable, *command], cwd=root, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return done.stdout

    pytest = ("-m", "pytest", "-q", "-x", "-m", "not browser", str(tests))
    run(*pytest)
    began, spent = time.perf_counter(), _children()
    with source.open("a") as file:
        file.write('\n__edited__ = "yes"\n')
    output = run(*pytest)
    took, spent = time.perf_counter() - began, _children() - spent
    module = ".".join(source.relative_to(root).with_suffix("").parts)
    module = re.sub(r"^(telemetry|backends)\.|\.__init__$", "", module)
    assert run("-c", f"import {module} as module; print(module.__edited__)").strip() == "yes"
    return {
        "file edited": str(source.relative_to(root)),
        "its tests": str(tests.relative_to(root)),
        "passed": int(re.findall(r"(\d+) passed", output)[-1]),
        "s until passed": round(took, 2),
        "processor s": round(spent, 2),
    }


def _children() -> float:
    """Return the processor seconds of this process's children that have ended."""
    times = os.times()
    return times.children_user + times.children_system


def from_scratch() -> dict[str, Any] | None:
    """Build and install this checkout's wheel, and return the elapsed seconds ("s") and the "processor s".

    Return None if pip is not installed, or if the build fails.
    """
    if not find_spec("pip"):
        return None
    pip = (sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check")
    with tempfile.TemporaryDirectory() as folder:
        began, spent = time.perf_counter(), _children()
        built = subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, str(ROOT)], capture_output=True)
        wheels = [str(path) for path in Path(folder).glob("*.whl")]
        if built.returncode or not wheels:
            return None
        subprocess.run([*pip, "install", "--no-deps", "--target", f"{folder}/installed", *wheels], check=True)
        return {"s": round(time.perf_counter() - began, 2), "processor s": round(_children() - spent, 2)}


BACKEND = """
class Edited(flnb.backends.NumpyBackend):
    def add(self, x, y, out=None):
        answers.append({version})
        return super().add(x, y, out)
"""
MANAGER = """
class Edited(flnb.memory.Caching):
    def alloc(self, nbytes, stream=0, hint=None):
        answers.append({version})
        return super().alloc(nbytes, stream, hint)
"""
TAPE = """
class Edited(flnb.interface.Tape):
    def record(self, node):
        answers.append({version})
        return node
"""
PARTS = {
    "backend": (BACKEND, "flnb.set_backend(Edited)", "flnb.ones((2,)) + flnb.ones((2,))"),
    "manager": (MANAGER, "flnb.set_memory_manager(Edited)", "flnb.zeros((512, 512))"),
    "tape": (TAPE, "flnb.set_tape(Edited)", "flnb.tanh(flnb.Variable(flnb.ones((2,))))"),
}
"""For each kind of class the text of three notebook cells: the first defines the class, the second makes it active, and
the third calls it."""


def active_in_notebook(part: str, rounds: int) -> list[float] | None:
    """Return the seconds from sending a notebook cell with an edited class until a later cell has used the new code.

    Return None if the extra "lab" is not installed.

    Args:
        part: the kind of class, a key of `PARTS`.
        rounds: the number of edits, each of which is measured.
    """
    if not (find_spec("jupyter_client") and find_spec("ipykernel")):
        return None
    from jupyter_client.manager import KernelManager

    cell, use, call = PARTS[part]
    manager = KernelManager(kernel_name="python3", transport="ipc")
    manager.start_kernel()
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=60)
        _answer(client, f"import flnb, flnb.interface; answers = []\n{cell.format(version=0)}\n{use}")
        times = []
        for version in range(rounds + 1):
            began = time.perf_counter()
            _answer(client, cell.format(version=version))
            answer = _answer(client, f"{call}; print(answers[-1])").strip()
            times.append(time.perf_counter() - began)
            if answer != str(version):
                raise RuntimeError(f"the {part} of version {version} was defined, but version {answer} answered")
        return times[1:]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _answer(client: Any, code: str) -> str:
    """Run ``code`` as a notebook cell, and return the text that it prints, or its error."""
    printed: list[str] = []

    def hear(message: dict[str, Any]) -> None:
        if message["msg_type"] == "stream":
            printed.append(message["content"]["text"])

    reply = client.execute_interactive(code, output_hook=hear, timeout=60)
    if reply["content"]["status"] != "ok":
        raise RuntimeError("\n".join(reply["content"]["traceback"]))
    return "".join(printed)
