"""Every example in a docstring of the three packages runs and prints what it says."""

import ast
import doctest
from importlib import import_module
from pathlib import Path

import pytest

import flnb

pytestmark = pytest.mark.usefixtures("numpy_session")
ROOT = Path(flnb.__file__).parents[1]
FOLDERS = {"flnb": ROOT, "telemetry/flnb_telemetry": ROOT / "telemetry", "backends/flnb_backends": ROOT / "backends"}


def has_examples(text):
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    nodes = ast.walk(ast.parse(text)) if ">>> " in text else ()
    return any(">>> " in (ast.get_docstring(node) or "") for node in nodes if isinstance(node, documented))


def modules():
    for folder, base in FOLDERS.items():
        for path in sorted((ROOT / folder).rglob("*.py")):
            if "node_modules" not in path.parts and has_examples(path.read_text()):
                yield ".".join(path.relative_to(base).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", list(modules()))
def test_examples(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = doctest.testmod(import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    assert result.attempted > 0
    assert result.failed == 0
