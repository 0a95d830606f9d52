"""What the memory view's capacity line asks: what would make the recorded step fit, and that step run so.

Searching takes seconds, so it has a thread of its own and only the newest question is answered. The step is the user's
code: it runs where cells do, after the one that may be running.
"""

from __future__ import annotations

import logging
import sys
import threading
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import quantity, schema
from flnb_telemetry.recording import record

from flnb.dispatch.parts import use_memory_manager
from flnb.dispatch.state import current
from flnb.memory_lab.fitting import fit
from flnb.memory_lab.traces import trace

if TYPE_CHECKING:
    from collections.abc import Callable

    from flnb_telemetry import Recording

    from flnb.memory_lab.fitting import Fit

__all__ = ["Proposals"]

KEPT = 8
"""Modules that are kept as they are, of which the proposal tells, the largest."""

log = logging.getLogger("flnb")


class Proposals:
    """Answers the messages "fit" and "apply" of one view.

    Args:
        run: gives the recording that is looked at; None where there is none.
        send: takes the answers, see `Proposal` in ``frontend/src/protocol.ts``.
        model: the module that was recorded, or several in a list; step: makes the recorded step once more.
    """

    def __init__(
        self,
        run: Callable[[], Recording | None],
        send: Callable[[dict[str, Any]], None],
        model: Any = None,
        step: Callable[[], object] | None = None,
    ) -> None:
        self._run, self._send, self._model, self._step = run, send, model, step
        self._manager = current().manager  # a thread of its own would see the session's
        self._lock = threading.Lock()
        self._asked: int | None = None
        self._searching: threading.Thread | None = None
        self._plan: Fit | None = None

    def receive(self, message: dict[str, Any]) -> None:
        """Take one question; returns at once."""
        capacity = message.get("capacity")
        if isinstance(capacity, bool) or not isinstance(capacity, int) or capacity < 1:
            return
        if message.get("type") == "apply":
            plan = self._plan
            if plan is not None and plan.capacity == capacity and self._runs:
                self._send(self._told(plan) | {"state": "running"})
                _between_cells(lambda: self._send(self._applied(plan)))
            return
        with self._lock:
            self._asked = capacity
            if self._searching is None:
                self._searching = threading.Thread(target=self._search, name="flnb-fit", daemon=True)
                self._searching.start()

    def wait(self, timeout: float = 60.0) -> None:
        """Wait until nothing is being searched."""
        if (thread := self._searching) is not None:
            thread.join(timeout)

    @property
    def _runs(self) -> bool:
        return self._step is not None and self._model is not None

    def _search(self) -> None:
        while True:
            with self._lock:
                capacity, self._asked = self._asked, None
                if capacity is None:
                    self._searching = None
                    return
            self._send({"type": "fit", "capacity": capacity, "state": "working"})
            try:
                answer = self._fitted(capacity)
            except Exception as error:  # what cannot be answered is said where it was asked
                log.debug("flnb: no plan for %d bytes", capacity, exc_info=True)
                answer = {"type": "fit", "capacity": capacity, "state": "", "error": str(error)}
            self._send(answer)

    def _fitted(self, capacity: int) -> dict[str, Any]:
        run = self._run()
        if run is None or run.state == "recording":
            raise ValueError("A proposal needs a recording that has ended.")
        recorded = run.meta.get("manager")
        manager = self._manager if self._manager.name == recorded or recorded is None else recorded
        self._plan = fit(run, capacity, manager)
        return self._told(self._plan)

    def _told(self, plan: Fit) -> dict[str, Any]:
        run = self._run()
        assert run is not None
        return {
            "type": "fit",
            "capacity": plan.capacity,
            "state": "",
            "fits": plan.fits,
            "peak": plan.peak,
            "peak_live": plan.peak_live,
            "before": {"peak": plan.before[0], "live": plan.before[1]},
            "seconds": plan.seconds + plan.moving,
            "choices": choices(run, plan),
            "code": code(plan),
            "runs": self._runs,
        }

    def _applied(self, plan: Fit) -> dict[str, Any]:
        """The plan, and what the step took under it."""
        told = self._told(plan)
        assert self._step is not None
        try:
            with use_memory_manager(self._manager):
                self._manager.release_cached()
                began = perf_counter()
                with record(f"within {quantity.size(plan.capacity)}") as after, plan.apply(self._model):
                    self._step()
                seconds = perf_counter() - began
        except Exception as error:
            return told | {"error": f"{type(error).__name__}: {error}"}
        reserved = int(after.memory.timeline().reserved.max(initial=0))
        live = trace(after).peak_live
        return told | {"measured": {"peak": reserved, "live": live, "seconds": seconds}}


def choices(run: Recording, plan: Fit) -> list[dict[str, Any]]:
    """The choice for each module: those of the plan by size, then the largest modules that keep their saved tensors.

    ``bytes``: of its blocks that live at the recorded peak; ``seconds``: of running its forward ops again.
    """
    held, time = _held(run), _forward_seconds(run)

    def total(of: dict[str, float], scope: str) -> float:
        return sum(value for name, value in of.items() if name == scope or name.startswith(scope + "."))

    moved = sum(total(held, scope) for scope in plan.offload)
    rows: list[tuple[str, str, float | None]] = [(scope, "recompute", total(time, scope)) for scope in plan.recompute]
    rows += [(scope, "offload", plan.moving * total(held, scope) / (moved or 1)) for scope in plan.offload]
    rows.sort(key=lambda row: -total(held, row[0]))  # what holds nothing at the peak comes last
    done = {scope for scope, _, _ in rows}
    rest = [name for name in held if name and not any(name == scope or name.startswith(scope + ".") for scope in done)]
    rows += [(scope, "keep", None) for scope in sorted(rest, key=lambda name: -held[name])[:KEPT]]
    return [
        {
            "scope": scope,
            "what": what,
            "bytes": int(held[scope] if what == "keep" else total(held, scope)),
            "seconds": s,
        }
        for scope, what, s in rows
    ]


def _held(run: Recording) -> dict[str, float]:
    """Bytes of activations at the peak by the module that made them."""
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
    op, contexts = run.table("op"), run.catalog.contexts.items
    took = np.bincount(op["context"], (op["t1"] - op["t0"]) / 1e9) if len(op["t0"]) else np.empty(0)
    found: dict[str, float] = {}
    for number in np.flatnonzero(took).tolist():
        context = contexts[number]
        if context.phase not in (schema.BACKWARD, schema.OPTIMIZER):
            found[context.scope] = found.get(context.scope, 0) + float(took[number])
    return found


def code(plan: Fit) -> str:
    """Code that applies the plan in a cell, for the reader's own ``model`` and ``step``."""
    parts = [f"{name}={list(scopes)!r}" for name in ("recompute", "offload") if (scopes := getattr(plan, name))]
    return f"with flnb.memory.lean({', '.join(['model', *parts])}):\n    step()  # forward and backward"


def _between_cells(act: Callable[[], None]) -> None:
    """Do something where cells run and none does; at once where there are no cells."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    loop = getattr(getattr(shell, "kernel", None), "io_loop", None)
    if loop is None:
        act()
    else:
        loop.add_callback(act)
