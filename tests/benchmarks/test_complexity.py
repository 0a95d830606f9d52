"""Lines and operators are counted as the benchmark says."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import flnb
from benchmarks import complexity
from benchmarks.complexity import installed, iteration, lines, operators

if TYPE_CHECKING:
    from pathlib import Path

PYTHON = '''"""A module's docstring

over lines."""

import sys  # why

# alone

def twice(x):
    """Its own."""
    text = """not a docstring

    # nor a comment"""
    return (
        # inside
        2 * x  # the number

    ), "#", text
'''

SLASHED = """// alone
/* over
   lines */ int a; /* and */ int b;
const char* url = "http://x"; // after
char quote = '"'; /* "

*/
int c;
"""


@pytest.mark.parametrize(
    ("language", "text", "expected"),
    [
        ("Python", PYTHON, 7),
        ("Python", "", 0),
        ("Python", "'only' 'strings'\n", 0),
        ("Python", "x = 1; 'a string'\n", 1),
        ("Python", "print 'of an old version' # yes\n\n# no\n", 1),
        ("Python", "{{ template }}\n  unindent: '#'\n # no\n", 2),
        ("C, C++, CUDA", SLASHED, 4),
        ("C, C++, CUDA", "a / b;\n\n   \n/**/\n", 1),
        ("TypeScript", "const s = `// ${x}\n/* in a template */`;\n// out\n", 2),
        ("CSS", "a { /* no */\n}\n/* no\nno */\n", 2),
        ("YAML", "# no\na: '#yes'\n\nb: 2 # no\n", 2),
        ("CMake", 'set(A "# yes")\n#no\n', 1),
        ("Cython", "cdef int x # no\n# no\n", 1),
    ],
)
def test_lines_of_code(language: str, text: str, expected: int) -> None:
    assert lines.count(text, language) == expected


def test_files_are_counted_by_language_and_tests_are_not(tmp_path: Path) -> None:
    sources = {
        "a.py": "x = 1\n", "b/c.pyi": "y: int\nz: int\n", "b/d.cu": "int d; // d\n", "CMakeLists.txt": "# a\nb()\n",
        "b/readme.md": "x\n", "tests/test_a.py": "x = 1\n", "node_modules/e.ts": "x;\n", ".hidden/f.py": "x\n",
    }  # fmt: skip
    for name, text in sources.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    found = list(lines.sources(tmp_path))
    assert [str(path.relative_to(tmp_path)) for path in found] == ["CMakeLists.txt", "a.py", "b/c.pyi", "b/d.cu"]
    assert lines.by_language(found) == {"Python": 3, "CMake": 1, "C, C++, CUDA": 1}


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("add", ["add"]), ("_foreach_addcmul_", ["add"]), ("scatter-add", ["add"]), ("logaddexp", ["add"]),
        ("constant_pad_nd", []), ("padding", []), ("_add_batch_dim", []),
        ("cudnn_convolution_add_relu", ["add", "conv"]), ("convert_element_type", []), ("conv1d_input_grad", ["conv"]),
        ("cumsum", ["sum"]), ("einsum", ["sum"]), ("subtract", []),
    ],
)  # fmt: skip
def test_names_that_add_convolve_and_sum(name: str, kinds: list[str]) -> None:
    assert [kind for kind, names in operators.matching([name]).items() if names] == kinds


def test_flnb_has_the_operators_of_its_table() -> None:
    found = operators.operators("flnb")
    assert found is not None
    assert found["counts"]["operators"] == len(flnb.dispatch.table.OPS)
    assert found["counts"]["operators"] - found["counts"]["primitives"] == sum(
        op.body is not None for op in flnb.dispatch.table.OPS.values()
    )
    assert {"add"} <= set(found["names"]["add"])
    assert found["counts"]["add"] == len(found["names"]["add"])


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("numpy", {"add": "add", "conv": "convolve", "sum": "sum"}),
        ("torch", {"add": "addmm", "conv": "convolution_backward", "sum": "cumsum"}),
        ("jax", {"add": "add", "conv": "conv_general_dilated", "sum": "reduce_sum"}),
    ],
)
def test_operators_of_peers(framework: str, expected: dict[str, str]) -> None:
    pytest.importorskip(framework)
    found = operators.operators(framework)
    assert found is not None
    for kind, name in expected.items():
        assert name in found["names"][kind]
    schemas = found["counts"].get("schemas")
    assert schemas is None or schemas > found["counts"]["operators"]


def test_a_peer_that_is_not_installed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "find_spec", lambda name: None if name == "torch" else find_spec(name))
    monkeypatch.setattr(operators, "find_spec", installed.find_spec)
    assert operators.operators("torch") is None
    assert list(complexity.measured(["torch"], 1)) == []


def test_bytes_are_those_of_the_installed_files(monkeypatch: pytest.MonkeyPatch) -> None:
    row = installed.row("numpy")
    assert row is not None
    assert row["version"] == np.__version__
    assert row["requires"] == []
    assert (
        row["bytes"] == row["bytes with requirements"] == sum(path.stat().st_size for path in installed.files("numpy"))
    )
    ours = installed.row("flnb")
    assert ours is not None
    assert ours["requires"] == ["numpy"]
    assert ours["bytes with requirements"] == ours["bytes"] + row["bytes"]
    held = {str(path.relative_to(installed.ROOT)) for path in installed.files("flnb")}
    assert {"flnb/dispatch/table.py", "flnb/py.typed", "telemetry/flnb_telemetry/bus.py"} <= held
    assert not [name for name in held if "frontend" in name or "__pycache__" in name]


def test_requirements_of_extras_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    class Distribution:
        def __init__(self, requires: list[str] | None) -> None:
            self.requires = requires

    known = {
        "a": Distribution(["b>=1", "c; extra == 'more'", "d; python_version < '3'"]),
        "b": Distribution(["a", "e[x]"]),
        "e": Distribution(None),
    }
    monkeypatch.setattr(installed, "distribution", known.__getitem__)
    assert installed.required(("a",)) == ["b", "e"]


@pytest.mark.parametrize(
    ("source", "tests"),
    [
        ("flnb/meters.py", "tests/test_meters.py"),
        ("flnb/nn/module.py", "tests/nn/test_module.py"),
        ("flnb/nn/adaptive.py", "tests/nn"),
        ("backends/flnb_backends/memory/caching.py", "tests/memory/test_caching.py"),
        ("backends/flnb_backends/tensor/erf.py", "tests/backends/test_erf.py"),
        ("telemetry/flnb_telemetry/bus.py", "tests/telemetry/test_bus.py"),
        ("telemetry/flnb_telemetry/analysis/levels.py", "tests/telemetry/test_levels.py"),
        ("flnb/collector.py", None),
    ],
)
def test_the_tests_of_a_source_file(source: str, tests: str | None) -> None:
    found = iteration.mirror(installed.ROOT / source, installed.ROOT)
    assert found == (installed.ROOT / tests if tests else None)


def test_files_are_drawn_by_their_lines() -> None:
    files = iteration.chosen(5)
    assert len(set(files)) == 5
    assert files == iteration.chosen(5)
    assert files != iteration.chosen(5, seed=1)
    assert all(path.is_file() and iteration.mirror(path, installed.ROOT) for path in files)


def test_a_class_that_does_not_become_active_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ipykernel")
    cell, use, call = iteration.PARTS["backend"]
    frozen: Any = {"backend": (cell, f"{use}; answers.append(-1)", "0"), "broken": (cell, "1 / 0", call)}
    monkeypatch.setattr(iteration, "PARTS", frozen)
    with pytest.raises(RuntimeError, match="the backend of version 0 was defined, but version -1 answered"):
        iteration.active_in_notebook("backend", 1)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        iteration.active_in_notebook("broken", 1)
