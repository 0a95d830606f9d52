"""Every place of the cuda backend that orders streams, found in the source, and the same code without one of them.

A place is a call that records an event, waits for one or notes a use; an argument that says in which stream; or an
assignment of one. The code of the function around it is exchanged in place, so that all who hold it are concerned.
"""

from __future__ import annotations

import ast
import gc
import re
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, NamedTuple

import flnb_backends

import flnb

if TYPE_CHECKING:
    from collections.abc import Iterator

BACKENDS = Path(flnb_backends.__path__[0])
OTHERS = {BACKENDS / "tensor" / "cuda" / name for name in ("capture.py", "cudnn.py")}
"""What the backend does not use (graphs), and what only a GPU has (cuDNN): they have tests of their own."""
FILES = (
    *sorted(set((BACKENDS / "tensor" / "cuda").glob("*.py")) - OTHERS), BACKENDS / "memory" / "cuda.py",
    *[Path(flnb.__path__[0], "dispatch", name) for name in ("memory.py", "freeing.py")],
)  # fmt: skip
"""The backend with its driver, launcher and staging; the order of blocks; the crossing that tells it of them."""
CALLS = re.compile(
    r"records?|awaits|wait|wait_\w+|await_\w+|_wait|synchronize|host_waited|note_uses|given|freed|insort|tell_\w+"
)
"""Names of functions that order streams, note what did, or tell the emulated device or a recording of it."""
API = re.compile(r"'cu(EventRecord|StreamWaitEvent|\w+Synchronize)'")
"""The same of the driver API."""
TAKERS = re.compile(
    CALLS.pattern + r"|begin|upload|download|copy|copy_between|_copy|fill|launch|Launcher|alloc|_run|_finished|try_call"
)
"""Names of functions that are given streams."""
STREAM = re.compile(
    r"stream|other|outer|theirs|chosen\.ptr|(ready|ahead)\[0\]|(\w+\.)*stream(\(\))?|0 if .* else order\.stream\(\)"
)
"""An expression that is a stream."""
METHOD = {"self.stream": "int"}
"""A method that returns a stream, and one that returns 0."""
ENTERED = re.compile(r"chosen|self\.stream\(\)")
"""Streams in which a ``with`` block's work runs."""
NOTED = re.compile(r"(?!self\.\w+ )[\w.]+\.(several_|current_)?streams? ")
"""The beginning of an assignment of streams to what is not the method's own."""


class Removal(NamedTuple):
    """A place: the function around it by its qualified name, the expression, the line, and what it becomes."""

    file: Path
    function: str
    place: ast.expr
    before: str
    after: str

    def __str__(self) -> str:
        what = ast.unparse(self.place)
        return f"{self.where}: {what}" if what == self.before else f"{self.where}: {what} in {self.before}"

    @property
    def where(self) -> str:
        """The file and the function."""
        return f"{self.file.stem}.{self.function.replace('.<locals>', '')}"

    def codes(self) -> dict[str, CodeType]:
        """The codes without it of the function and those around it; every name is still looked up: closures fit."""
        lines, place = self.file.read_text().splitlines(keepends=True), self.place
        assert place.end_lineno is not None
        assert place.end_col_offset is not None
        head = "".join(lines[: place.lineno - 1]) + lines[place.lineno - 1][: place.col_offset]
        tail = lines[place.end_lineno - 1][place.end_col_offset :] + "".join(lines[place.end_lineno :])
        codes = [compile(f"{head}{self.after}{tail}", str(self.file), "exec", dont_inherit=True)]
        for code in codes:
            codes += [each for each in code.co_consts if isinstance(each, CodeType)]
        return {code.co_qualname: code for code in codes if f"{self.function}.".startswith(f"{code.co_qualname}.")}


def name_of(call: ast.Call) -> str:
    """The last name of what is called."""
    found = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    return found.attr if isinstance(found, ast.Attribute) else getattr(found, "id", "")


def removed(node: ast.AST) -> list[tuple[ast.expr, str]]:
    """The expressions in a statement or call that order streams, with what they become."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        call = node.value
        if CALLS.fullmatch(name_of(call)) or (name_of(call) == "_run" and API.match(ast.unparse(call.args[0]))):
            parts = call.func, *call.args, *[each.value for each in call.keywords]
            return [(call, f"({', '.join(map(ast.unparse, parts))})")]
    elif isinstance(node, ast.Call) and TAKERS.fullmatch(name_of(node)):
        given = [(each, ast.unparse(each)) for each in node.args]
        return [(e, f"({text}, {METHOD.get(text, 0)})[1]") for e, text in given if STREAM.fullmatch(text)]
    elif isinstance(node, (ast.Assign, ast.AugAssign)) and NOTED.match(ast.unparse(node)):
        value = ast.unparse(node.value)
        empty = "lambda _: 0" if value.startswith("lambda") else f"type({value})()"
        return [(node.value, empty)] if value != "()" else []  # which is empty as it is
    elif isinstance(node, ast.With):
        given = [(item.context_expr, ast.unparse(item.context_expr)) for item in node.items]
        return [(e, "__import__('contextlib').nullcontext(0)") for e, text in given if ENTERED.fullmatch(text)]
    return []


def removals() -> list[Removal]:
    """Every place of `FILES`."""
    found = []

    def walk(file: Path, node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            function, line = around.removesuffix(".<locals>"), ast.unparse(child).partition("\n")[0]
            found.extend(Removal(file, function, place, line, after) for place, after in removed(child))
            inside = around
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                inside = f"{around}.{child.name}".removeprefix(".")
                inside += ".<locals>" if isinstance(child, ast.FunctionDef) else ""
            walk(file, child, inside)

    for file in FILES:
        walk(file, ast.parse(file.read_text()), "")
    return found


def functions() -> list[FunctionType]:
    """All functions of `FILES` that there are now, with those inside others."""
    gc.unfreeze()  # the tests' collector does not look at what is older than a module of tests
    files = {str(file) for file in FILES}
    return [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename in files]


@contextmanager
def without(removal: Removal, among: list[FunctionType]) -> Iterator[None]:
    """Run what is inside the block without a place, in the functions that are given."""
    new, file = removal.codes(), str(removal.file)
    there = [(f, f.__code__) for f in among if f.__code__.co_qualname in new and f.__code__.co_filename == file]
    assert there, removal
    try:
        for f, code in there:
            f.__code__ = new[code.co_qualname]
        yield
    finally:
        for f, code in there:
            f.__code__ = code
