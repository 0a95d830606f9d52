"""The README's promises: its code runs, its files and commands exist, its order holds."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "README.md").read_text()


def test_the_code_runs_block_after_block(tmp_path: Path) -> None:
    pytest.importorskip("anywidget")
    code = "\n".join(re.findall(r"```python\n(.*?)```", TEXT, re.S))
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


def test_the_commands_of_the_continuous_integration_are_the_readmes() -> None:
    command = "python -m pip install uv && python -m uv run pytest"
    assert command in TEXT
    assert command in (ROOT / ".ci" / "run").read_text()
    assert command in (ROOT / "CONTRIBUTING.md").read_text()
    assert "python -m pip install uv && python -m uv run --extra lab flnb lab" in TEXT


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
        "Replace the memory manager",
        "Where things are",
    ]
    assert TEXT.index("![") < TEXT.index("## Start")
