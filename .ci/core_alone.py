"""Run the core's tests in a copy of the tree without the tools: `python .ci/core_alone.py [pytest's arguments]`.

The table in ARCHITECTURE.md says what the tools are. Left out are tests that name one: files that import it, functions
that use it. Nothing else is: what asks for a tool without naming it fails.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import flnb  # noqa: E402
from tests.rooms import modules, removed, room, targets  # noqa: E402

TESTS = (
    "dispatch",
    "autograd",
    "ops",
    "backends",
    "telemetry",
    "memory",
    "core",
    "test_tensor.py",
    "test_bad_input.py",
)
LAZY = {f"flnb.{name}" for name, home in flnb._LAZY.items() if removed(home)}
LAZY |= {f"flnb.memory.{name}" for home, names in flnb.memory._LAB.items() for name in names.split()}
LAZY |= {name for name in modules() if removed(name)}
WHOLE = ["tests/ops/test_creation.py::test_everything_public_exists"]  # of flnb as a whole
# which ask for a tool
METHODS = r"\.(to_torch_snapshot|save_html|save_trace|report|calls|captured|to_code)\b|inputs=True|\.pickle\b"
NAMED = re.compile("|".join([*(rf"\b{re.escape(name)}\b" for name in sorted(LAZY)), METHODS]))


def imports_tools(path: Path, before: frozenset[Path] = frozenset()) -> bool:
    """Whether a module of tests imports a tool, itself, by another module of tests, or by its folder's fixtures.

    ``before`` has the modules that led here, which are not looked at again: fixtures may import from their folder.
    """
    fixtures, before = path.with_name("conftest.py"), before | {path}
    if fixtures.exists() and fixtures not in before and imports_tools(fixtures, before):
        return True
    for node in ast.walk(ast.parse(path.read_text())):
        for target in targets(node):
            own = ROOT / f"{target.replace('.', '/')}.py"
            above = ROOT / f"{target.rpartition('.')[0].replace('.', '/')}.py"
            if target in LAZY or target.rpartition(".")[0] in LAZY:
                return True
            if target.startswith("tests.") and any(
                p.exists() and p not in before and imports_tools(p, before) for p in (own, above)
            ):
                return True
    return False


def using_tools(path: Path) -> list[str]:
    """The test functions in a file that name a tool, or what asks for one."""
    source = path.read_text()
    functions = [node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef)]
    lines = source.splitlines()
    starts = {node: min(d.lineno for d in (node, *node.decorator_list)) - 1 for node in functions}
    texts = {node.name: "\n".join(lines[starts[node] : node.end_lineno]) for node in functions}
    used = {name for name, text in texts.items() if NAMED.search(text)}
    while more := {n for n, text in texts.items() if n not in used and any(re.search(rf"\b{u}\b", text) for u in used)}:
        used |= more
    return sorted(name for name in used if name.startswith("test_"))


def copied(folder: Path) -> None:
    """Copy the tree without the tools."""
    for name in ("flnb", "telemetry", "backends", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
    for name in ("pyproject.toml", "ARCHITECTURE.md"):
        shutil.copy(ROOT / name, folder / name)
    for name, path in modules().items():
        if room(name).storey in ("programs", "tools"):
            place = folder / path.relative_to(ROOT)
            if place.name == "__init__.py":
                shutil.rmtree(place.parent, ignore_errors=True)
            else:
                place.unlink(missing_ok=True)


def main() -> int:
    """Copy, run, report."""
    files = [
        p
        for t in TESTS
        for p in ([ROOT / "tests" / t] if t.endswith(".py") else (ROOT / "tests" / t).rglob("test_*.py"))
    ]
    chosen = sorted(str(p.relative_to(ROOT)) for p in files if not imports_tools(p))
    left_out = [f"{path}::{name}" for path in chosen for name in using_tools(ROOT / path)]
    left_out = [name for name in left_out if not name.startswith("tests/core/")] + WHOLE  # those ask for the error
    print(f"core alone: {len(chosen)} of {len(files)} files of tests; {len(left_out)} tests in them name a tool")
    with tempfile.TemporaryDirectory() as folder:
        copied(Path(folder))
        roots = os.pathsep.join(str(Path(folder) / name) for name in ("", "telemetry", "backends"))
        options = [option for name in left_out for option in ("--deselect", name)]
        command = [sys.executable, "-m", "pytest", "-q", *chosen, *options, *sys.argv[1:]]
        # An installation of the core alone has the backend numpy, and the suite ran on cpu: so this is also the run on
        # numpy of the tests of ops, gradients and backends, of all those that say most about a backend in a minute.
        environment = {**os.environ, "PYTHONPATH": roots, "FLNB_BACKEND": "numpy"}
        return subprocess.run(command, cwd=folder, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
