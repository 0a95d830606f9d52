"""Recording with inputs: each op's real inputs are stored with its event, so that it can be opened in a cell."""

from __future__ import annotations

import weakref
import zipfile
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus, quantity, schema
from flnb_telemetry.safe_text import safe_lines

from flnb.dispatch import state
from flnb.dispatch.observe import Observer, observe
from flnb.dispatch.source_lines import lines, site
from flnb.explore.calls import OpCall, call_before, digest, run_op
from flnb.explore.layout import Kept
from flnb.explore.script import literal, save, where

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from flnb_telemetry.recording import Recording

    from flnb.dispatch.table import Op
    from flnb.tensor import Tensor

__all__ = ["Capture", "RecordedOp", "inputs_of", "keep_inputs"]

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False)
class RecordedOp:
    """One op of a recording with its real inputs.

    Attributes:
        run, index: the recording's number, and the op's place in it.
        call: inputs and attributes; ``bits`` the digest of its result's bits.
        scope, phase, line: where the program ran it.
        backend: the name of the backend that computed it.
    """

    run: int
    index: int
    call: OpCall
    bits: str
    scope: str
    phase: str
    line: str
    backend: str

    @property
    def op(self) -> str:
        """Its name in the op table."""
        return self.call.op

    def arrays(self) -> list[Array]:
        """Fresh copies of its inputs, with their layout in memory."""
        return [kept.array() for kept in self.call.inputs]

    def again(self) -> Tensor:
        """Run it again, on the active backend."""
        call = self.call
        made = call.result if not call.inputs or call.op == "from_numpy" else None
        return run_op(call.op, *self.arrays(), attributes=call.attributes, result=made)

    def to_code(self, path: str | os.PathLike[str] | None = None) -> str:
        """Python that runs it again with its real inputs and says whether the bits are the same.

        Args:
            path: an ``.npz`` file to write the inputs to, for another kernel; without it the code asks the recording,
                which must still be in this kernel.
        """
        call = self.call
        source = f"{self.run}, {self.index}"
        if path is not None:
            save(call.inputs, path)
            source = repr(str(path))
        names = [f"x{i}" for i in range(len(call.inputs))]
        place = where(self.scope, self.phase, self.line)
        code = [f"# {self.op}{place and f' of {place}'}, on backend {self.backend!r}", "import numpy as np, flnb"]
        if names:
            code.append(f"[{', '.join(names)}] = flnb.explore.inputs_of({source})  # {call}")
        options = f", attributes={literal(call.attributes)}" if call.attributes else ""
        if call.result is not None and (not names or self.op == "from_numpy"):
            options += f', result=({call.result[0]}, "{call.result[1].name}")'
        arguments = ", ".join([f'"{self.op}"', *names])
        code.append(f"y = flnb.explore.run_op({arguments}{options})")
        code.append(f'print("the same bits as recorded:", flnb.explore.digest(y) == "{self.bits}")')
        return "\n".join([*code, "y"])

    def open_in_cell(self, path: str | os.PathLike[str] | None = None) -> None:
        """Put its code into a new cell below this one. Needs to be called in a notebook's cell."""
        from flnb.show.cells import open_cell

        open_cell(self.to_code(path))

    def __repr__(self) -> str:
        return safe_lines(where(f"op {self.index}: {self.op}({self.call})", self.scope, self.phase, self.line))


class Capture(Observer):
    """Stores the inputs of ops that run, as long as they fit into ``limit`` bytes; equal memory is stored once."""

    def __init__(self, run: Recording, limit: int) -> None:
        self.number, self.limit = run.number, limit
        self.nbytes = self.missed = 0
        self._run = weakref.ref(run)
        self._memory: dict[bytes, bytes] = {}
        self._kept: list[tuple[int, float, RecordedOp]] = []
        self._call: OpCall | None = None
        self._rows: tuple[int, dict[int, RecordedOp]] = (-1, {})

    def before(self, op: Op, arguments: tuple[Any, ...]) -> None:
        """Copy the inputs before the op can write to them."""
        call = call_before(op, arguments, state.current().backend)
        fresh = sum(len(kept.memory) for kept in call.inputs if kept.memory not in self._memory)
        if self.nbytes + fresh > self.limit:
            self._call = None
            self.missed += 1
            return
        self.nbytes += fresh
        shared = tuple(replace(k, memory=self._memory.setdefault(k.memory, k.memory)) for k in call.inputs)
        self._call = replace(call, inputs=shared)

    def after(self, op: Op, arguments: tuple[Any, ...], result: Any) -> None:
        """Note the result's bits and the place."""
        here, lanes = bus.threads.here, bus.lanes
        if self._call is None or lanes is None:
            return
        backend = state.current().backend
        line = next((line.brief for line in lines(*site())), "")
        bits = digest(np.asarray(backend.to_numpy(result)))
        made = RecordedOp(self.number, -1, self._call, bits, here.path, schema.PHASES[here.phase], line, backend.name)
        self._kept.append((lanes.lane.number, perf_counter(), made))

    def __len__(self) -> int:
        return len(self._kept)

    def rows(self) -> dict[int, RecordedOp]:
        """The stored ops by their place among the recording's op events, in order of time."""
        run = self._run()
        if run is None:
            raise RuntimeError(f"recording {self.number} is gone; keep it in a variable, or open ops from files")
        if self._rows[0] != len(self._kept):
            events = run.table("op")
            found = {}
            for lane in {lane for lane, _, _ in self._kept}:
                own = np.flatnonzero(events["lane"] == lane)
                mine = [(t, op) for number, t, op in self._kept if number == lane]
                at = np.searchsorted(events["t0"][own], [round(t * 1e9) for t, _ in mine], "right") - 1
                for place, (_, op) in zip(at.tolist(), mine, strict=True):
                    index = int(own[place]) if place >= 0 else -1
                    name = run.catalog.plans.items[events["plan"][index]].op if place >= 0 else ""
                    if name == op.op and index not in found:  # else its event was dropped
                        found[index] = replace(op, index=index)
            self._rows = len(self._kept), dict(sorted(found.items()))
        return self._rows[1]

    def __getitem__(self, index: int) -> RecordedOp:
        rows, run = self.rows(), self._run()
        if index < 0 and run is not None:
            index += len(run.table("op")["t0"])
        if index not in rows:
            why = (
                f"the inputs of {self.missed} ops did not fit into {quantity.size(self.limit)}"
                if self.missed
                else ("its inputs were not kept, or there is no such op")
            )
            raise IndexError(f"op {index} cannot be opened: {why}; kept are the inputs of {len(rows)} ops")
        return rows[index]

    def __iter__(self) -> Iterator[RecordedOp]:
        return iter(self.rows().values())

    def last(self, op: str, scope: str | None = None) -> RecordedOp | None:
        """The op of this name, and in this scope where that is given, that ran last."""
        chosen = [one for one in self if one.op == op and scope in (None, one.scope)]
        return chosen[-1] if chosen else None

    def summary(self) -> str:
        """How much was stored, and what was not."""
        text = f"inputs of {len(self)} ops kept ({quantity.size(self.nbytes)})"
        return f"{text}, of {self.missed} not: beyond {quantity.size(self.limit)}" if self.missed else text


_captures: weakref.WeakValueDictionary[int, Capture] = weakref.WeakValueDictionary()


def keep_inputs(run: Recording, limit: int) -> AbstractContextManager[None]:
    """A block in which the inputs of this thread's ops are kept as ``run.captured``, in at most ``limit`` bytes."""
    run.captured = capture = Capture(run, limit)
    _captures[run.number] = capture
    return observe(capture)


def inputs_of(source: int | str | os.PathLike[str], index: int = -1) -> list[Array]:
    """The inputs of a recorded op: from recording number ``source`` in this kernel and the op's place, or from a file.

    Raises:
        LookupError: a recording that is not, or no longer, in this kernel.
        IndexError: an op whose inputs were not stored.
        ValueError: a file that is incomplete, or something else. Nothing in a file is executed.
    """
    if isinstance(source, int):
        capture = _captures.get(source)
        if capture is None:
            raise LookupError(
                f"inputs_of: recording {source} is not in this kernel (any more); where it is, write the op's inputs "
                f'to a file with run.calls[{index}].to_code("op.npz")'
            )
        return capture[index].arrays()
    try:
        with Path(source).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return [_read(file, i) for i in range(len(file.files) // 3)]
    except (zipfile.BadZipFile, EOFError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"inputs_of: {source} does not hold the inputs of an op, or not all of them ({error}); "
            f"write it again with run.calls[i].to_code({str(source)!r})"
        ) from error


def _read(file: Any, i: int) -> Array:
    """One array of a file that `save` wrote. NumPy refuses a layout that leaves the memory beside it."""
    offset, start, *rest = file[f"layout{i}"].tolist()
    shape, strides = tuple(rest[: len(rest) // 2]), tuple(rest[len(rest) // 2 :])
    memory, dtype = file[f"memory{i}"].tobytes(), np.dtype(str(file[f"dtype{i}"]))
    return Kept(memory, dtype, shape, strides, offset, start).array()
