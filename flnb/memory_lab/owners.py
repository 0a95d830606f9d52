"""Finds which variables refer to each block of memory, from the frames of a traceback and from the tape."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, NamedTuple

from flnb.dispatch.memory import block_of
from flnb.dispatch.source_lines import is_own, lines
from flnb.interface.tape import CODE, LASTI, PARENTS, PLAN, SAVED, Node
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import TracebackType


class Owner(NamedTuple):
    """The variables that refer to a block, and where its tensor was made.

    Attributes:
        names: the variables, as expressions such as "x", "layers[2]" or "net.0.weight".
        owners: descriptions of the variables, such as "a variable of train()".
        gradients: the names of the ops that saved the block for their gradient.
        line, op: the line of the user's code and the op that made the tensor; "" if unknown.
        shape: the tensor's shape.
    """

    names: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    gradients: tuple[str, ...] = ()
    line: str = ""
    op: str = ""
    shape: tuple[int, ...] | None = None

    def joined(self, other: Owner) -> Owner:
        """Merge this record of a block with ``other``, which also provides line, op and shape that are unknown here."""
        shape = other.shape if self.shape is None else self.shape
        return Owner(
            tuple(dict.fromkeys(self.names + other.names)), tuple(dict.fromkeys(self.owners + other.owners)),
            tuple(dict.fromkeys(self.gradients + other.gradients)), self.line or other.line, self.op or other.op, shape,
        )  # fmt: skip

    @property
    def held(self) -> str:
        """Return all references as one text: "a variable of train(); the tape, for the gradient of exp"."""
        tape = [f"the tape, for the gradient of {', '.join(self.gradients)}"] if self.gradients else []
        return "; ".join([*self.owners, *tape])


def owners(trace: TracebackType | None) -> dict[int, Owner]:
    """Return the references to blocks, by block id, found from the frames of a traceback."""
    found: dict[int, Owner] = {}
    roots: dict[int, Node] = {}
    frames = []
    while trace is not None:
        frames.append(trace.tb_frame)
        trace = trace.tb_next
    for frame in reversed(frames):  # names of the innermost frame come first
        users = not is_own(frame.f_code.co_filename)
        for name, tensor in _tensors(frame.f_locals | frame.f_globals if users else frame.f_locals):
            node = tensor._node
            if node is not None:
                roots[id(node)] = node
            if users:
                where = lines(node[CODE], node[LASTI]) if node is not None and node[PLAN] is not None else []
                op = node[PLAN].op.name if node is not None and node[PLAN] is not None else ""
                line = where[0].brief if where else ""
                _add(found, tensor, Owner((name,), (f"a variable of {_called(frame)}",), (), line, op, tensor.shape))
    for node in _reached(roots):
        for saved in node[SAVED:]:
            if isinstance(saved, Tensor):
                _add(found, saved, Owner((), (), (node[PLAN].op.name,)))
    return found


class Model(NamedTuple):
    """The modules that are called in one scope.

    Attributes:
        written: expressions that stand for all of these modules in code, such as "net" or "*layers".
        kinds: for each scope of a module inside these modules, the name of that module's class.
    """

    written: tuple[str, ...]
    kinds: dict[str, str]


def models(trace: TracebackType | None) -> dict[str, Model]:
    """Return the modules in the user's variables in a traceback, by the scope in which the modules are called.

    If the modules of a scope are not all in variables of the same frame, the scope is left out.
    """
    from flnb.nn.recompute import scopes

    frames: list[dict[str, list[tuple[str, list[Any]]]]] = []  # see _modules_in
    while trace is not None:
        frame, trace = trace.tb_frame, trace.tb_next
        if not is_own(frame.f_code.co_filename):
            frames.append(_modules_in(frame.f_globals | frame.f_locals))
    found: dict[str, Model] = {}
    for scope in dict.fromkeys(scope for variables in frames for scope in variables):
        wanted = {id(one): one for variables in frames for _, held in variables.get(scope, ()) for one in held}
        for variables in frames:
            written, left = [], set(wanted)
            for text, held in sorted(variables.get(scope, ()), key=lambda variable: -len(variable[1])):
                if not left.isdisjoint(map(id, held)):
                    written.append(text)
                    left.difference_update(map(id, held))
            if not left:
                kinds = {path: type(part).__name__ for one in wanted.values() for path, part in scopes(one)}
                found[scope] = Model(tuple(written), kinds)
                break
    return found


def _modules_in(variables: dict[str, Any]) -> dict[str, list[tuple[str, list[Any]]]]:
    """Return the modules in variables, by the scope under which their ops are recorded.

    A variable may be a module, or a list, tuple or dict of modules. In the result, each scope has a list of pairs, one
    for each variable with modules of this scope: an expression for the variable's modules, such as "net" or "*layers",
    and those modules of the variable that have this scope.
    """
    found: dict[str, list[tuple[str, list[Any]]]] = {}
    for name, value in variables.items():
        if name != "self" and not name.startswith("_"):
            text, held = name, [value]
            if isinstance(value, (list, tuple)):
                text, held = f"*{name}", list(value)
            elif isinstance(value, dict):
                text, held = f"*{name}.values()", list(value.values())
            if held and all(hasattr(type(one), "named_modules") for one in held):
                for one in held:
                    list(one.named_modules())  # gives names to modules that were appended to a list
                for scope in dict.fromkeys(one._name for one in held):
                    found.setdefault(scope, []).append((text, [one for one in held if one._name == scope]))
    return found


def _called(frame: Any) -> str:
    """Return the name of a frame for reports: "train()", "the notebook" or a script's file name."""
    code = frame.f_code
    if not code.co_name.startswith("<"):
        return f"{code.co_name}()"
    return "the notebook" if "get_ipython" in frame.f_globals else os.path.basename(code.co_filename)


def _add(found: dict[int, Owner], tensor: Tensor, owner: Owner) -> None:
    """Add a reference from a variable to the record of a tensor's block; does nothing if NumPy allocated the memory."""
    block = block_of(tensor._data)
    if block is not None:
        before = found.get(block.id)
        found[block.id] = owner if before is None else before.joined(owner)


def _tensors(variables: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """Yield (expression, tensor) for each tensor in variables, and for its gradient.

    Tensors inside lists, tuples, dicts and modules are found, too.
    """
    shown = [(name, value) for name, value in variables.items() if not name.startswith("_")]
    for name, value in sorted(shown, key=lambda item: not isinstance(item[1], Tensor)):  # plain variables first
        for path, tensor in _inside(name, value):
            yield path, tensor
            gradient = getattr(tensor, "grad", None) if tensor._node is not None else None
            if isinstance(gradient, Tensor):
                yield f"{path}.grad", gradient


def _inside(name: str, value: Any) -> Iterable[tuple[str, Tensor]]:
    """Return (expression, tensor) for the tensors in the value of one variable."""
    if isinstance(value, Tensor):
        return [(name, value)]
    if isinstance(value, (list, tuple)):
        return [(f"{name}[{i}]", x) for i, x in enumerate(value) if isinstance(x, Tensor)]
    if isinstance(value, dict):
        return [(f"{name}[{key!r}]", x) for key, x in value.items() if isinstance(x, Tensor)]
    if hasattr(type(value), "named_parameters") and not isinstance(value, type):
        return [(f"{name}.{path}", x) for path, x in value.named_parameters()]
    return []


def _reached(roots: dict[int, Node]) -> Iterator[Node]:
    """Yield every op node on the tape that can be reached from the given nodes."""
    waiting, seen = list(roots.values()), set(roots)
    while waiting:
        node = waiting.pop()
        if node[PLAN] is None:
            continue
        yield node
        for parent in node[PARENTS] or ():
            if parent is not None and id(parent) not in seen:
                seen.add(id(parent))
                waiting.append(parent)
