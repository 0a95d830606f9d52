"""Proposals for fitting a recorded step into less memory, computed for the dashboard's memory view.

The search takes seconds, so it runs in a thread of its own, and only the newest request is answered. The step, which is
the user's code, runs in the main thread, after the notebook cell that may be running.
"""

from __future__ import annotations

import logging
import sys
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import quantity, schema
from flnb_telemetry.recorder import record

from flnb.dispatch.parts import use_memory_manager
from flnb.dispatch.state import current
from flnb.memory_lab.fitting import fit
from flnb.memory_lab.traces import trace
from flnb.widgets.newest import Newest

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry import Recording

    from flnb.memory_lab.fitting import Fit

KEPT = 8
"""The largest number of modules that keep their tensors in a proposal's list; the largest modules are listed."""

log = logging.getLogger("flnb")


class Proposals:
    """Answers the messages "fit" (propose) and "apply" (run the step as proposed) of one view of a recording.

    Args:
        run: a function that returns the recording that is shown, or None.
        send: a function that sends an answer to the browser; see `Proposal` in ``frontend/src/protocol.ts``.
        model: the module that was recorded, or several in a list.
        step: a function without arguments that runs the recorded step again.
    """

    def __init__(
        self,
        run: Callable[[], Recording | None],
        send: Callable[[dict[str, Any]], None],
        model: Any = None,
        step: Callable[[], object] | None = None,
    ) -> None:
        self._run, self._send, self._model, self._step = run, send, model, step
        self._manager = current().manager  # the thread of the search has another context
        self._newest: Newest[int] = Newest(self._search, "flnb-fit")
        self._plan: Fit | None = None

    def receive(self, message: dict[str, Any]) -> None:
        """Handle a browser message by starting the search that it requests; returns at once."""
        capacity = message.get("capacity")
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            return
        if message.get("type") == "apply":
            plan = self._plan
            if plan is not None and plan.capacity == capacity and self._runs:
                self._send(self._message(plan) | {"state": "running"})
                _between_cells(lambda: self._send(self._applied(plan)))
            return
        self._newest.ask(capacity)

    def wait(self, timeout: float = 60.0) -> None:
        """Wait until no search is running, or ``timeout`` seconds have passed."""
        self._newest.wait(timeout)

    @property
    def _runs(self) -> bool:
        """Return whether a model and a step were given, so that a proposal can be run."""
        return self._step is not None and self._model is not None

    def _search(self, capacity: int) -> None:
        """Look for a way to run the step within ``capacity`` bytes; send the browser the way, or why there is none."""
        self._send({"type": "fit", "capacity": capacity, "state": "working"})
        try:
            answer = self._fitted(capacity)
        except Exception as error:  # shown in the view
            log.debug("flnb: no plan for %d bytes", capacity, exc_info=True)
            answer = {"type": "fit", "capacity": capacity, "state": "", "error": str(error)}
        self._send(answer)

    def _fitted(self, capacity: int) -> dict[str, Any]:
        """Search for a memory plan that fits a capacity in bytes; returns it as a message to the browser."""
        run = self._run()
        if run is None or run.state == "recording":
            raise ValueError("a proposal needs a recording that has ended; there is none, or it is still running")
        recorded = run.meta.get("manager")
        manager = self._manager if self._manager.name == recorded or recorded is None else recorded
        self._plan = fit(run, capacity, manager)
        return self._message(self._plan)

    def _message(self, plan: Fit) -> dict[str, Any]:
        """Return the browser's message about a proposal."""
        run = self._run()
        assert run is not None
        return {
            "type": "fit", "capacity": plan.capacity, "state": "", "runs": self._runs,
            "fits": plan.fits, "peak": plan.peak, "peak_live": plan.peak_live, "seconds": plan.seconds + plan.moving,
            "before": {"peak": plan.before[0], "live": plan.before[1]},
            "choices": choices(run, plan), "code": code(plan),
        }  # fmt: skip

    def _applied(self, plan: Fit) -> dict[str, Any]:
        """Run the step as proposed; returns the proposal's message with the measured memory and time, or an error."""
        message = self._message(plan)
        assert self._step is not None
        try:
            with use_memory_manager(self._manager):
                self._manager.release_cached()
                began = perf_counter()
                with record(f"within {quantity.size(plan.capacity)}") as after, plan.apply(self._model):
                    self._step()
                seconds = perf_counter() - began
        except Exception as error:
            return message | {"error": f"{type(error).__name__}: {error}"}
        reserved = int(after.memory.timeline().reserved.max(initial=0))
        live = trace(after).peak_live
        return message | {"measured": {"peak": reserved, "live": live, "seconds": seconds}}


def choices(run: Recording, plan: Fit) -> list[dict[str, Any]]:
    """List what a proposal does with each module's saved tensors: "recompute", "offload" or "keep", as dictionaries.

    Modules that recompute or offload come first, then the largest of the modules that keep their tensors. In each
    dictionary ``bytes`` is the size of the module's blocks at the recorded peak, and ``seconds`` the time that
    recomputing or moving them takes.
    """
    held, time = _held(run), _forward_seconds(run)

    def total(of: dict[str, float], scope: str) -> float:
        """Add up the values in the dict ``of`` for the module ``scope`` and for the modules inside it."""
        return sum(value for name, value in of.items() if name == scope or name.startswith(scope + "."))

    moved = sum(total(held, scope) for scope in plan.offload)
    rows: list[tuple[str, str, float | None]] = [(scope, "recompute", total(time, scope)) for scope in plan.recompute]
    rows += [(scope, "offload", plan.moving * total(held, scope) / (moved or 1)) for scope in plan.offload]
    rows.sort(key=lambda row: -total(held, row[0]))  # modules without memory at the peak come last
    done = {scope for scope, _, _ in rows}
    rest = [name for name in held if name and not any(name == scope or name.startswith(scope + ".") for scope in done)]
    rows += [(scope, "keep", None) for scope in sorted(rest, key=lambda name: -held[name])[:KEPT]]
    sizes = [held[scope] if what == "keep" else total(held, scope) for scope, what, _ in rows]
    return [
        {"scope": scope, "what": what, "bytes": int(size), "seconds": seconds}
        for (scope, what, seconds), size in zip(rows, sizes, strict=True)
    ]


def _held(run: Recording) -> dict[str, float]:
    """Return the bytes of activations at the recorded peak, by the path of the module that made them."""
    blocks, contexts = run.memory.peak.block, run.catalog.contexts.items
    found: dict[str, float] = {}
    rows = schema.tuples(blocks, "context", "size", "category")
    steady = [schema.CATEGORIES.index(name) for name in ("parameter", "optimizer_state", "gradient")]
    for context, size, category in rows:
        if category not in steady:
            scope = contexts[context].scope
            found[scope] = found.get(scope, 0) + size
    return found


def _forward_seconds(run: Recording) -> dict[str, float]:
    """Return the time of forward ops in seconds, by the path of the module that called them."""
    op, contexts = run.table("op"), run.catalog.contexts.items
    took = np.bincount(op["context"], (op["t1"] - op["t0"]) / 1e9) if len(op["t0"]) else np.empty(0)
    found: dict[str, float] = {}
    for number in np.flatnonzero(took).tolist():
        context = contexts[number]
        if context.phase not in (schema.BACKWARD, schema.OPTIMIZER):
            found[context.scope] = found.get(context.scope, 0) + float(took[number])
    return found


def code(plan: Fit) -> str:
    """Return code for a notebook cell that runs the user's ``step`` with modules recomputed or offloaded as planned."""
    parts = [f"{name}={list(scopes)!r}" for name in ("recompute", "offload") if (scopes := getattr(plan, name))]
    return f"with flnb.memory.lean({', '.join(['model', *parts])}):\n    step()  # forward and backward"


def _between_cells(act: Callable[[], None]) -> None:
    """Call a function in the main thread when no notebook cell is running; at once outside of notebooks."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    loop = getattr(getattr(shell, "kernel", None), "io_loop", None)
    if loop is None:
        act()
    else:
        loop.add_callback(act)
