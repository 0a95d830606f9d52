"""Checkpointing: store a function's inputs instead of the values that its ops save, and run it again in backward.

T. Chen et al., "Training deep nets with sublinear memory cost", 2016. The function runs and its ops are recorded; then
one node replaces the nodes of its ops. The parents of this node are all earlier nodes whose results the function read,
either as arguments or through its closure.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import wraps
from typing import Any

from flnb_telemetry import bus
from flnb_telemetry.withblock import WithBlock

from flnb.autograd.batched import innermost, replaced
from flnb.autograd.bundle import join, split
from flnb.autograd.tape import LINKED, walk
from flnb.autograd.tree import leaves, rebuild
from flnb.autograd.variable import Variable, placed
from flnb.dispatch import crossing as dispatch
from flnb.dispatch import state
from flnb.dispatch.autocast import forget_casts, with_own_casts
from flnb.dispatch.effects import effects
from flnb.dispatch.plan import Plan
from flnb.interface.tape import PARENTS, PLAN, SAVED, SEQ, Node
from flnb.ops.composite import Composite
from flnb.random import Generator, current_generator
from flnb.tensor import Tensor

__all__ = ["checkpoint"]


class _Checkpoint(Composite):
    """The op of the nodes that replace checkpointed functions. Its gradient runs the function again."""

    traceable = decomposes = False

    def __init__(self) -> None:
        super().__init__("checkpoint", "memory", None, lambda g, plan, *saved: saved[-2].pulled(g))  # type: ignore[arg-type]

    def register(self) -> None:
        """Do nothing: the op need not be in the op table, because it is never called."""


_op = _Checkpoint()


class _Run:
    """One call of a checkpointed function, with everything that is needed to run it again with the same result.

    Attributes:
        generators: the random generators from which the function may draw, each with its state before the call.
        next_draw: in a step that `flnb.jit` captures, the position of its next random tensor before the call.
        parents: sequence numbers of the nodes to which the function's gradients flow.
        reads: tensors other than arguments that must not be written before the function runs again.
        specs: shapes and dtypes of the function's results.
        since: sequence number at the end of the call; later writes have larger numbers.
    """

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        self.function, self.arguments, self.keywords = function, arguments, keywords
        self.context = copy_context()  # backend, manager, vmaps: what holds now, also where backward runs
        self.path = bus.threads.here.path
        given = [x for x in leaves((arguments, keywords)) if isinstance(x, Generator)]
        self.generators = [(g, g.state) for g in (current_generator(), *given)]
        self.next_draw = getattr(effects.get(), "next_draw", 0)
        self.parents: list[int] = []
        self.reads: list[Any] = []
        self.specs: list[Any] = []
        self.since = 0

    def note_run(self, start: int) -> None:
        """Record which tensors the function's first run has read; ``start`` is the sequence number at its beginning."""
        self.since = dispatch.next_seq()
        cells = [x for x in _closed_over(self.function) if type(x) is Tensor]
        self.reads += [x for x in (*getattr(self.function, "reads", ()), *cells) if x._last_write <= start]

    def _check_unwritten(self) -> None:
        """Raise an error if a tensor that the function read was written in place afterwards."""
        for x in (*self.reads, *_variables(self.function, set(self.parents))):
            if x._last_write > self.since:
                what = repr(x.name) if getattr(x, "name", "") else "a value"
                raise RuntimeError(
                    f"backward: {what}, {x._spec!r}, was read by the checkpointed {_name(self.function)} and then "
                    f"written in place before backward ran the function again; write to a copy, or move the write "
                    f"after backward"
                )

    def _again(self) -> Any:
        """Run the function again, recording its ops; returns its results, joined into one tensor."""
        start = dispatch.next_seq()
        with state.use(grad=True, tape=LINKED, interpreters=with_own_casts()):
            found = [innermost(y) for y in _made_since(start, self.function(*self.arguments, **self.keywords))]
            specs = [y._spec for y in found]
            if specs != self.specs:
                raise RuntimeError(
                    f"checkpoint: {_name(self.function)} returned {specs} when backward ran it again, but "
                    f"{self.specs} the first time; a checkpointed function must compute the same each time"
                )
            return join(found)

    def pulled(self, g: Any) -> list[Any]:
        """Run the function again; return the gradients of ``parents``. ``g`` is the gradient of the joined results."""
        if dispatch.last_write > self.since:
            self._check_unwritten()
        with _Returned(self):
            result = self.context.copy().run(self._again)
        create_graph = state.current().grad
        stops = frozenset(self.parents)
        arrived = {n[SEQ]: c for n, c in walk(result._node, g, create_graph, create_graph, stops)}
        return [arrived.get(seq) for seq in self.parents]


class _Returned(WithBlock[None]):
    """Context manager that restores the scope and the random generators' states of the function's first call."""

    def __init__(self, run: _Run) -> None:
        self._run = run
        self._path: str | None = None

    def begin(self) -> None:
        here, run = bus.threads.here, self._run
        self._states = [g.state for g, _ in run.generators]
        self._path, here.path = here.path, run.path
        bus.set_phase(here.phase)  # events tell of the path from now on
        for g, before in run.generators:
            g.state = before
        if (captured := effects.get()) is not None:
            self._next_draw, captured.next_draw = captured.next_draw, run.next_draw

    def end(self, error: BaseException | None) -> None:
        here = bus.threads.here
        if self._path is not None:
            here.path = self._path
            bus.set_phase(here.phase)
            for (g, _), after in zip(self._run.generators, self._states, strict=True):
                g.state = after
            if (captured := effects.get()) is not None:
                captured.next_draw = self._next_draw


def checkpoint(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make a function save only its inputs for backward, which runs the function again; saves memory, takes more time.

    Random numbers are the same in both runs. The function may close over Variables (such as the parameters of a
    module), take and return dicts, lists and tuples of tensors, and call other checkpointed functions. It must compute
    the same when it runs again; its side effects, such as updating a running mean or printing, happen twice.

    >>> import flnb
    >>> w = flnb.Variable([1.0, 2.0])
    >>> block = flnb.checkpoint(lambda x: flnb.tanh(x * w) * x)
    >>> y = block(flnb.asarray([0.5, 0.5])).sum()
    >>> y.backward()
    >>> w.grad.tolist() == flnb.grad(lambda w: (flnb.tanh(0.5 * w) * 0.5).sum())(w.data).tolist()
    True

    Raises:
        RuntimeError: in backward, if the function returns other shapes or dtypes than in its first run.
    """

    @wraps(function, updated=())
    def checkpointed(*arguments: Any, **keywords: Any) -> Any:
        if not state.current().grad:
            return function(*arguments, **keywords)
        start = dispatch.next_seq()
        with state.use(tape=LINKED, interpreters=with_own_casts()):
            run = _Run(
                function, arguments, keywords
            )  # here: the context that it copies must not refer to a tape of nodes
            result = function(*arguments, **keywords)
            forget_casts()  # `run` refers to the state that would keep them
            made = _made_since(start, result)
            if not made:
                return result
            inner = [innermost(y) for y in made]
            run.specs = [y._spec for y in inner]
            joined = join(inner)
        whole = _collapse(joined, start, run)
        run.note_run(start)
        del joined
        ids = {id(y): part for y, part in zip(made, split(whole, inner), strict=True)}
        return rebuild(result, [replaced(y, ids[id(y)]) if id(y) in ids else y for y in leaves(result)])

    return checkpointed


def _made_since(start: int, result: Any) -> list[Any]:
    """Return the tensors in a function's result that were recorded after the sequence number ``start``."""
    return [y for y in leaves(result) if getattr(y, "_node", None) is not None and y._node[SEQ] > start]


def _name(function: Any) -> str:
    """Return the name of a function or of a recomputed module, for error messages."""
    return str(getattr(function, "__name__", None) or "function")


def _variables(function: Any, reached: set[int]) -> list[Any]:
    """Return the Variables to which a function refers and whose nodes have sequence numbers in ``reached``.

    The search covers the function's closure variables, the globals that the function names, and the parameters of
    modules among these.
    """
    code, known = getattr(function, "__code__", None), getattr(function, "__globals__", {})
    named = [known[name] for name in (code.co_names if code is not None else ()) if name in known]
    about = [*_closed_over(function), *named, function, getattr(function, "__self__", None)]
    inside = [x for one in about if hasattr(type(one), "named_parameters") for x in one.parameters()]
    return [x for x in (*about, *inside) if isinstance(x, Variable) and x._node is not None and x._node[SEQ] in reached]


def _closed_over(function: Any) -> list[Any]:
    """Return the values of a function's closure, leaving out variables that are not set yet."""
    found = []
    for cell in getattr(function, "__closure__", None) or ():
        with suppress(ValueError):
            found.append(cell.cell_contents)
    return found


def _collapse(result: Any, start: int, run: _Run) -> Variable:
    """Replace the nodes recorded after sequence number ``start`` by one whose gradient rule runs the function again."""
    outside, read = _edges(result._node, start)
    run.parents, run.reads = list(outside), read
    specs = tuple(spec for _, spec in outside.values())
    key = (specs, result._spec)
    plan = _op.plans.get(key) or _op.plans.setdefault(key, Plan(_op, specs, (), result._spec))
    inputs = [innermost(x) for x in leaves((run.arguments, run.keywords)) if isinstance(x, Tensor)]
    node = dispatch.node(plan, tuple(node for node, _ in outside.values()), (*inputs, run, None))
    root = getattr(result, "_root", result)  # whose memory the result shares, where in-place writes are noted
    if root._node is not None and root._node[SEQ] > start:
        root = dispatch.detached(root._data, root._spec)
    return placed(result, node, root)


def _edges(root: Node, start: int) -> tuple[dict[int, tuple[Node, Any]], list[Variable]]:
    """Follow the graph from ``root`` back to the nodes that were recorded before the sequence number ``start``.

    Returns:
        (1) A dict from the sequence number of each node from before ``start`` to a pair: the node, and its result's
        shape and dtype. (2) A list of the Variables from before ``start`` that nodes of the graph saved; they must not
        be written until the function runs again.
    """
    found: dict[int, tuple[Node, Any]] = {}
    read: dict[int, Variable] = {}
    seen, stack = {root[SEQ]}, [root]
    while stack:
        node = stack.pop()
        saved = [x for x in node[SAVED:] if isinstance(x, Variable) and x._node is not None]
        owners = [getattr(x, "_root", x) for x in saved]  # of views that were made inside
        read.update((id(x), x) for x in (*saved, *owners) if x._node is not None and x._node[SEQ] <= start)
        for parent, spec in zip(node[PARENTS], node[PLAN].specs, strict=False):
            if parent is None or parent[SEQ] in seen:
                continue
            seen.add(parent[SEQ])
            if parent[SEQ] <= start:
                found[parent[SEQ]] = (parent, spec)
            else:
                stack.append(parent)
    return found, list(read.values())
