"""The table of rooms in ARCHITECTURE.md, and the imports of our modules, for tests that hold one against the other."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {
    "flnb": ROOT / "flnb",
    "flnb_telemetry": ROOT / "telemetry" / "flnb_telemetry",
    "flnb_backends": ROOT / "backends" / "flnb_backends",
}
STOREYS = ["programs", "faces", "tools", "library", "core"]


def modules() -> dict[str, Path]:
    """Every module of ours by its dotted name."""
    found = {}
    for name, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            if "node_modules" in path.parts:
                continue
            parts = path.relative_to(folder).with_suffix("").parts
            dotted = ".".join([name, *parts])
            found[dotted.removesuffix(".__init__")] = path
    return found


class Import(NamedTuple):
    """An import of one of our modules; ``kind``: when the module is imported (eager), inside a function, for types."""

    source: str
    target: str
    kind: str


@cache
def imports() -> list[Import]:
    """Every import of ours in our modules: eager, inside functions and for types."""
    paths = modules()
    found: set[Import] = set()

    def visit(source: str, node: ast.AST, kind: str) -> None:
        for child in ast.iter_child_nodes(node):
            for target in targets(child):
                ours = next((name for name in (target, target.rpartition(".")[0]) if name in paths), source)
                if ours != source:
                    found.add(Import(source, ours, kind))
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
                visit(source, ast.Module(child.body, []), "types")
                visit(source, ast.Module(child.orelse, []), kind)
            elif isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
                visit(source, child, "function" if kind == "eager" else kind)
            else:
                visit(source, child, kind)

    for name, path in paths.items():
        visit(name, ast.parse(path.read_text()), "eager")
    return sorted(found)


def targets(node: ast.AST) -> list[str]:
    """The dotted names that a node imports, by ``import_module("name")``, `extras.tool` and `extras.late` as well."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [f"{node.module}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "tool", "late")):
        return [str(a.value) for a in node.args[:1] if isinstance(a, ast.Constant)]
    return []


class Room(NamedTuple):
    """A line of the table: its height, counted from below, and the storey that it is in."""

    height: int
    storey: str


@cache
def rooms() -> dict[str, Room]:
    """Every name in the table, of a package or a module, with its room."""
    (table,) = re.findall(r"```rooms\n(.*?)```", (ROOT / "ARCHITECTURE.md").read_text(), re.DOTALL)
    lines = [line.partition("#")[0].split() for line in table.splitlines()]
    assert [line[0] for line in lines if line[0] in STOREYS] == STOREYS
    found, storey = {}, ""
    for i, line in enumerate(lines):
        if line[0] in STOREYS:
            storey = line.pop(0)
        found |= dict.fromkeys(line, Room(len(lines) - i, storey))
    return found


@cache
def room(module: str) -> Room:
    """That with the longest name that begins this module's."""
    fitting = [name for name in rooms() if f"{module}.".startswith(f"{name}.") and (name != "flnb" or module == "flnb")]
    assert fitting, f"{module} is in no room: add it to the table in ARCHITECTURE.md"
    return rooms()[max(fitting, key=len)]


def removed(module: str) -> bool:
    """Whether a module is one of the tools, which core must do without."""
    return module in modules() and room(module).storey in ("programs", "tools")
