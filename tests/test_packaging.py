"""What the distribution promises: a clean lock, extras that exist, entry points that load, a bundle that is shipped."""

from __future__ import annotations

import ast
import importlib.metadata
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import pytest

import flnb
from flnb import lab

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = [
    path
    for folder in ("flnb", "telemetry", "backends")
    for path in sorted((ROOT / folder).rglob("*.py"))
    if "node_modules" not in path.parts
]


def tracked() -> list[Path]:
    """The files under version control; in an unpacked sdist there are none."""
    done = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    return [ROOT / name for name in done.stdout.splitlines()]


def test_versions_agree() -> None:
    assert flnb.__version__ == PROJECT["project"]["version"] == importlib.metadata.version("flnb")


def test_core_needs_numpy_alone() -> None:
    assert [re.split(r"[><=~ ]", need)[0] for need in PROJECT["project"]["dependencies"]] == ["numpy"]


@pytest.mark.skipif(not (ROOT / "uv.lock").exists(), reason="a checkout only")
def test_lock_names_the_public_index_alone_and_has_no_torch() -> None:
    text = (ROOT / "uv.lock").read_text()
    lock = tomllib.loads(text)
    assert {urlparse(url).hostname for url in re.findall(r'https?://[^"\s]+', text)} == {
        "pypi.org",
        "files.pythonhosted.org",
    }
    assert "file:" not in text
    names = {package["name"] for package in lock["package"]}
    assert not [name for name in names if name.startswith("torch")]
    assert {"numpy", "jupyterlab", "anywidget", "pytest", "playwright"} <= names


@pytest.mark.skipif(not (ROOT / "uv.lock").exists(), reason="a checkout only")
def test_development_needs_headers_and_a_compiler_of_nvidia_but_not_the_toolkit() -> None:
    """The toolkit is 1.7 GB, for those who have a GPU: ``pip install flnb[cuda]``."""
    packages: dict[str, list[Any]] = {}
    for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]:
        packages.setdefault(package["name"], []).append(package)
    reached, ahead = set[str](), list(packages["flnb"][0]["dev-dependencies"]["dev"])
    while ahead:
        need = ahead.pop()
        for package in packages[need["name"]] if need["name"] not in reached else []:
            ahead += package.get("dependencies", []) if package["name"] != "flnb" else []
        for extra in need.get("extra", []):
            ahead += packages[need["name"]][0].get("optional-dependencies", {}).get(extra, [])
        reached.add(need["name"])
    assert {name for name in reached if name.startswith("nvidia")} == {
        "nvidia-cuda-nvrtc", "nvidia-cuda-runtime", "nvidia-cudnn-frontend", "nvidia-cuda-crt",
    }  # fmt: skip


def required() -> list[tuple[str, str, str]]:
    """Every `require("package", extra="...")` in the sources: file, package, extra."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if not (
                isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) == "require"
            ):
                continue
            values = [*node.args[:2], *(key.value for key in node.keywords if key.arg == "extra")]
            package, extra = (str(value.value) for value in values if isinstance(value, ast.Constant))
            found.append((path.name, package.partition(".")[0], extra))
    return found


def test_every_required_package_is_in_the_extra_that_its_error_names() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    distribution = {  # where the import's name is another
        "IPython": "ipykernel", "sklearn": "scikit-learn", "cupy": "cupy-cuda13x", "cupyx": "cupy-cuda13x",
        "resvg_py": "resvg-py",
    }  # fmt: skip
    assert len(required()) >= 10
    for file, package, extra in required():
        assert extra in extras, f"{file}: no extra {extra!r}"
        names = {re.split(r"[><=~\[ ]", need)[0] for need in extras[extra]}
        assert distribution.get(package, package) in names, f"{file}: {package} is not in flnb[{extra}]"


LOADING = """
import sys
from importlib.metadata import EntryPoint
for each in sys.argv[1:]:
    print(EntryPoint("name", each, "group").load().name)
"""


def test_entry_points_load() -> None:
    """In a process of their own: CuPy must not be imported here before the emulated device."""
    parts = [group for name, group in PROJECT["project"]["entry-points"].items() if name.startswith("flnb.")]
    declared = {name: target for group in parts for name, target in group.items()}
    done = subprocess.run(
        [sys.executable, "-c", LOADING, *declared.values()], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [*declared], done.stderr


def test_the_built_bundle_is_shipped() -> None:
    static = ROOT / "flnb" / "widgets" / "static"
    bundles = [static / f"{name}.js" for name in ("dashboard", "comparison", "program")]
    assert all(bundle.stat().st_size > 10_000 for bundle in bundles)
    for target in ("wheel", "sdist"):
        assert "flnb/widgets/static/*" in PROJECT["tool"]["hatch"]["build"]["targets"][target]["artifacts"]
    text = "".join(bundle.read_text() for bundle in bundles)
    assert not re.findall(r"https?://(?!www\.w3\.org)[\w.]+", text), "the widgets must work offline"
    frontend = json.loads((ROOT / "flnb" / "widgets" / "frontend" / "package.json").read_text())
    licences = (static / "licenses.txt").read_text()
    for name in frontend["dependencies"]:
        assert f"{name}\n\nCopyright" in licences, "the licence of a package in the bundle is shipped with it"


@pytest.mark.parametrize("path", sorted((ROOT / "notebooks").glob("*.ipynb")), ids=lambda path: path.name)
def test_notebooks_are_kept_without_outputs(path: Path) -> None:
    """As they are staged: JupyterLab saves outputs into the notebook that somebody runs."""
    staged = subprocess.run(["git", "show", f":notebooks/{path.name}"], cwd=ROOT, capture_output=True, text=True)
    notebook = json.loads(path.read_text() if staged.returncode else staged.stdout)
    assert len(notebook["cells"]) > 5
    for cell in notebook["cells"]:
        assert not cell.get("outputs"), "clear the outputs before committing"
        assert cell.get("execution_count") is None
    assert "widgets" not in notebook["metadata"]


def test_every_notebook_is_in_the_wheel_and_opened_by_name() -> None:
    names = {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert names == set(lab.NOTEBOOKS)
    start = (ROOT / "notebooks" / "quickstart.ipynb").read_text()
    assert all(f"`flnb lab {name}`" in start for name in names - {"quickstart.ipynb"}), "the first leads to all others"
    included = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included == {f"notebooks/{name}": f"flnb/notebooks/{name}" for name in names}


def test_no_file_knows_the_machine_it_was_written_on() -> None:
    machine = re.compile(r"/(?:work|opt)/(?:main|venv|shared|plan|pypi|wheels)|/root/\.|/home/\w+/")
    for path in tracked():
        if path.is_file() and path.suffix not in (".png", ".flnb") and path != Path(__file__):
            found = machine.search(path.read_text(errors="replace"))
            assert not found, f"{path.relative_to(ROOT)} names {found and found.group()}"
