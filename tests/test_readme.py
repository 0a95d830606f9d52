"""The README's promises: its code runs, its files and commands exist, its order holds."""

from __future__ import annotations

import ast
import builtins
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_code_runs_block_after_block(tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    blocks = re.findall(r"```python\n(.*?)```", TEXT, re.S)
    if (shutil.which("g++") is None or find_spec("cupy") is None) and "CI" not in os.environ:
        blocks = [block for block in blocks if "emulate()" not in block]
    code = "\n".join(blocks)
    assert code.count("train()") > 3
    done = subprocess.run(
        [sys.executable, "-W", "error::DeprecationWarning:__main__", "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_a_block_that_needs_another_one_says_so() -> None:
    sections = re.split(r"^## ", TEXT, flags=re.M)
    blocks = [(section, code) for section in sections for code in re.findall(r"```python\n(.*?)```", section, re.S)]
    ten, start = next((code, at) for at, (section, code) in enumerate(blocks) if section.startswith("Ten lines"))
    shared = {"flnb", "net", "x", "y", "train"}
    assert f"they use its {', '.join(f'`{n}`' for n in ('net', 'x', 'y'))} and `train`" in " ".join(TEXT.split())
    for at, (section, code) in enumerate(blocks):
        names = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)]
        bound = {node.id for node in names if isinstance(node.ctx, ast.Store)} | set(dir(builtins))
        for node in ast.walk(ast.parse(code)):
            if isinstance(node, ast.alias):
                bound.add((node.asname or node.name).split(".")[0])
            elif isinstance(node, (ast.FunctionDef, ast.ClassDef, ast.arg)):
                bound.add(node.arg if isinstance(node, ast.arg) else node.name)
        missing = {node.id for node in names} - bound
        continues = start < at <= start + 3
        assert missing <= (shared if continues else {"flnb"}), f"{section.splitlines()[0]}: {missing}"
    assert ten.startswith("import flnb")


def test_the_script_of_ranks_runs_on_two_of_them_and_a_killed_one_is_named(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    assert "flnb launch -n 4 script.py" in TEXT
    code = next(block for block in re.findall(r"```python\n(.*?)```", TEXT, re.S) if "distributed.init()" in block)
    imports = "import os, signal\nimport flnb\nimport flnb.nn as nn\n"
    checks = "assert total.item() == 2.0\nassert model.module.weight.grad.tolist() == [[3.0] * 4]\n"
    fault = "if distributed.rank() == 1:\n    os.kill(os.getpid(), signal.SIGKILL)\ndistributed.barrier()\n"
    script = tmp_path / "script.py"
    script.write_text(imports + code + checks + "print('averaged', flush=True)\n" + fault)
    command = [sys.executable, "-m", "flnb.cli", "launch", "-n", "2", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.count("averaged") == 2, done.stderr[-3000:]
    assert re.search(r"CollectiveError: rank 1 \(process \d+\) has died", done.stderr), done.stderr[-3000:]
    assert (tmp_path / "flight.json").exists()


def stored(benchmark: str) -> Any:
    """The rows of a benchmark's stored results."""
    return json.loads((ROOT / "benchmarks" / "results" / f"{benchmark}.json").read_text())["rows"]


def between(figures: Iterable[str]) -> str:
    """The least and the greatest of some sorted figures, as README writes them."""
    least, *_, greatest = figures
    return least if least == greatest else f"{least} to {greatest}"


def test_the_figures_of_watching_are_the_stored_ones() -> None:
    found: dict[tuple[str, str], list[float]] = {}
    quartiles: list[float] = []
    for row in stored("overhead"):
        case, of = row["case"].split()[0], row["ratio"].split(" / ")[0]
        found.setdefault((case, of), []).append(row["median"])
        if case == "training" and of in ("recorder", "disk"):
            quartiles += map(float, row["quartiles"].split(" .. "))
    percent = {of: between(f"{100 * (v % 1):.1f}" for v in sorted(values)) for of, values in found.items()}
    times = {of: between(f"{v:.2f}" for v in sorted(values)) for of, values in found.items()}
    spread = between(f"{100 * (v - 1):.1f}" for v in (min(quartiles), max(quartiles)))
    for part in (
        f"{percent['training', 'recorder']} % with a recorder",
        f"{percent['training', 'disk']} % with a recording to disk",
        f"quartiles {spread} %",
        f"{percent['training', 'dashboard']} % with the live dashboard",
        f"{percent['training', 'rest of recorder']} % of the step",
        f"{percent['training', 'rest of disk']} % with a disk",
        f"{times['chain', 'recorder']} times and {times['chain', 'dashboard']} times",
        f"takes {times['chain', 'flnb']} times what torch takes",
    ):
        assert part in " ".join(TEXT.split())


def test_the_figures_of_models_are_the_stored_ones() -> None:
    for framework, title in (("flnb numpy", "`numpy`"), ("flnb cpu+jit", "`cpu`, `flnb.jit`")):
        ours = {row["model"]: row for row in stored("models") if row["framework"] == framework}
        models = [ours[name] for name in ("alexnet", "vgg16", "resnet50", "bert", "asr-transformer", "vit")]
        assert f"| {title}: median | {' | '.join(row['over torch'] for row in models)} |" in TEXT
        spread = " | ".join(row["over torch: least .. most"] for row in models)
        assert f"| {title}: least .. most of 7 rounds | {spread} |" in TEXT
    best = " | ".join(row["over the best torch"] for row in models)  # of the last framework, which is captured
    assert f"| {title}, over the best torch: median | {best} |" in TEXT


def test_the_figures_of_ranks_are_the_stored_ones() -> None:
    rows = stored("distributed")
    alone = {row["bytes"]: row for row in rows["crossing"] if row["machine"] == "as it is"}
    raw, ours, gloo = (alone[4][name].split(" / ")[0] for name in ("Allreduce", "flnb", "gloo"))
    ratios = [f"{alone[mib << 20]['of Allreduce, median']:.2f}" for mib in (1, 4, 16)]
    hidden = [float(row["hidden, median"][:-2]) for row in rows["overlap"] if "buckets" in row["reduced"]]
    for part in (
        f"takes {raw} µs by raw mpi4py, {ours} µs here with every check and event, {gloo} µs by torch's gloo",
        "1, 4 and 16 MiB take {}, {} and {} times as long".format(*ratios),
        f"hides {min(hidden):.0f} to {max(hidden):.0f} % of transfers",
    ):
        assert part in " ".join(TEXT.split())


def test_extras_that_are_named_exist() -> None:
    extras = set(re.findall(r"'\.\[([\w,-]+)\]'", TEXT))
    known = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert {"lab,mpi,parallel", "cuda", "cuda12", "cuda-emulated"} <= extras
    assert {name for names in extras for name in names.split(",")} <= known


def test_the_commands_of_the_continuous_integration_are_the_readmes() -> None:
    command = "python -m pip install uv && python -m uv run pytest"
    assert command in TEXT
    assert command in (ROOT / ".ci" / "run").read_text()
    assert command in (ROOT / "CONTRIBUTING.md").read_text()
    assert "python -m pip install uv && python -m uv run --no-dev --extra lab --extra cpu flnb lab" in TEXT


def test_packages_are_installed_where_the_commands_run() -> None:
    """A bare `pip` may be that of another Python."""
    assert "python -m venv .venv && . .venv/bin/activate && python -m pip install -e '.[lab,cpu]' && flnb lab" in TEXT
    assert re.findall(r"(?<!python -m )(?:pip install|uv run).*", TEXT) == []
    assert "python -m uv run --no-dev --extra mpi flnb launch -n 4 script.py" in TEXT


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md"])
def test_every_path_exists(name: str) -> None:
    text = (ROOT / name).read_text()
    paths = re.findall(r"\]\(([\w./-]+)\)", text) + re.findall(
        r"`((?:flnb|tests|telemetry|backends|notebooks)/[\w./]+)`", text
    )
    assert len(paths) >= 2
    for path in paths:
        assert (ROOT / path).exists() or path.startswith("flnb/widgets/frontend"), f"{name} names {path}"


def test_sections_come_in_the_order_in_which_a_reader_needs_them() -> None:
    assert re.findall(r"^## (.*)$", TEXT, re.M) == [
        "Start",
        "Ten lines",
        "Replace the backend",
        "Run a step as one program",
        "Replace the memory manager",
        "Run on several ranks",
        "On a GPU, and without one",
        "Where things are",
    ]
    assert TEXT.index("![") < TEXT.index("## Start")
