"""Recordings that also store the inputs of every op, so that an op can be run again in a notebook cell."""

from __future__ import annotations

import sys
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
from flnb.explore.script import literal, result_code, save, where

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from flnb_telemetry.recording import Recording

    from flnb.dispatch.table import Op
    from flnb.tensor import Tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, repr=False)
class RecordedOp:
    """One op of a recording, with its inputs.

    Attributes:
        run: the number of the recording in this process.
        index: the position of the op among the recording's ops.
        call: the op's inputs and attributes, from which it can be run again.
        bits: a hash of the result, made by `flnb.explore.digest`.
        scope: the path of the module that called the op, such as "net.0".
        phase: "forward", "backward", "optimizer" or "other".
        line: the file and the line of the user's program that called the op.
        backend: the name of the backend that computed the op.
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
        """Return the op's name in the op table."""
        return self.call.op

    def arrays(self) -> list[Array]:
        """Return copies of the inputs with their original layout in memory."""
        return [kept.array() for kept in self.call.inputs]

    def again(self) -> Tensor:
        """Run the op again on the active backend and return its result."""
        call = self.call
        made = call.result if not call.inputs or call.op == "from_numpy" else None
        return run_op(call.op, *self.arrays(), attributes=call.attributes, result=made)

    def to_code(self, path: str | os.PathLike[str] | None = None) -> str:
        """Return Python code that runs the op again with its inputs and prints whether the result has the same bits.

        Args:
            path: an ``.npz`` file to which the inputs are written, so that the code also runs in another process.
                Without a path, the code takes the inputs from the recording, which must still exist in this process.
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
        if not names or self.op == "from_numpy":
            options += result_code(call)
        arguments = ", ".join([f'"{self.op}"', *names])
        code.append(f"y = flnb.explore.run_op({arguments}{options})")
        code.append(f'print("the same bits as recorded:", flnb.explore.digest(y) == "{self.bits}")')
        return "\n".join([*code, "y"])

    def open_in_cell(self, path: str | os.PathLike[str] | None = None) -> None:
        """Put the code of `to_code` into a new notebook cell below the cell that calls this method.

        Raises:
            RuntimeError: the program is not running in a notebook; the message contains the code.
        """
        code, ipython = self.to_code(path), sys.modules.get("IPython")
        shell = ipython and ipython.get_ipython()
        if shell is None:
            raise RuntimeError(f"open_in_cell: this program is not running in a notebook; the code is\n\n{code}")
        shell.set_next_input(code)

    def __repr__(self) -> str:
        return safe_lines(where(f"op {self.index}: {self.op}({self.call})", self.scope, self.phase, self.line))


class Capture(Observer):
    """Stores the inputs of a recording's ops as long as they fit into ``limit`` bytes; equal arrays are stored once.

    During the recording, this object observes every op. Later it is available as ``run.calls``; ``run.calls[i]`` is op
    i.
    """

    def __init__(self, run: Recording, limit: int) -> None:
        self.number, self.limit = run.number, limit
        self.nbytes = self.missed = 0
        self._run = weakref.ref(run)
        self._memory: dict[bytes, bytes] = {}
        self._kept: list[tuple[int, float, RecordedOp]] = []
        self._call: OpCall | None = None
        self._rows: tuple[int, dict[int, RecordedOp]] = (-1, {})

    def before(self, op: Op, arguments: tuple[Any, ...]) -> None:
        """Copy the op's inputs before it can overwrite them."""
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
        """Store the op with a hash of its result and the line of the program."""
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
        """Return the stored ops by their position among the recording's op events, in order of time.

        Raises:
            RuntimeError: the recording was deleted.
        """
        run = self._run()
        if run is None:
            raise RuntimeError(
                f"recording {self.number} was deleted; keep it in a variable, or save ops by to_code(path)"
            )
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
            full = f"the inputs of {self.missed} ops did not fit into {quantity.size(self.limit)}"
            why = full if self.missed else "there is no such op, or its inputs were not stored"
            raise IndexError(f"op {index} cannot be opened: {why}; the inputs of {len(rows)} ops were stored")
        return rows[index]

    def __iter__(self) -> Iterator[RecordedOp]:
        return iter(self.rows().values())

    def last(self, op: str, scope: str | None = None) -> RecordedOp | None:
        """Return the last stored op called ``op``, or None; with ``scope``, only ops of that module path count."""
        chosen = [one for one in self if one.op == op and scope in (None, one.scope)]
        return chosen[-1] if chosen else None

    def summary(self) -> str:
        """Return one line on how many ops' inputs were stored, and how many did not fit."""
        text = f"inputs of {len(self)} ops kept ({quantity.size(self.nbytes)})"
        return f"{text}, of {self.missed} not: beyond {quantity.size(self.limit)}" if self.missed else text


_captures: weakref.WeakValueDictionary[int, Capture] = weakref.WeakValueDictionary()


def keep_inputs(run: Recording, limit: int) -> AbstractContextManager[None]:
    """Return a context that stores the inputs of this thread's ops in ``run.captured``, up to ``limit`` bytes."""
    run.captured = capture = Capture(run, limit)
    _captures[run.number] = capture
    return observe(capture)


def inputs_of(source: int | str | os.PathLike[str], index: int = -1) -> list[Array]:
    """Return the inputs of a recorded op, as arrays with their original layout in memory.

    Args:
        source: the number of a recording of this process, or the path of a file that `RecordedOp.to_code` wrote.
        index: the position of the op among the recording's ops; ignored for a file.

    >>> import flnb
    >>> with flnb.record(inputs=True) as run:
    ...     y = flnb.exp(flnb.asarray([0.0, 1.0]))
    >>> flnb.explore.inputs_of(run.number, 1)
    [array([0., 1.], dtype=float32)]

    Raises:
        LookupError: the recording is not in this process, or was deleted.
        IndexError: the inputs of the op were not stored.
        ValueError: the file is incomplete, or `RecordedOp.to_code` did not write it. No code in a file is executed.
    """
    if isinstance(source, int):
        capture = _captures.get(source)
        if capture is None:
            raise LookupError(
                f"inputs_of: recording {source} is not in this process (or was deleted); where it exists, write "
                f'the op\'s inputs to a file with run.calls[{index}].to_code("op.npz")'
            )
        return capture[index].arrays()
    try:
        with Path(source).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            return [_read(file, i) for i in range(len(file.files) // 3)]
    except (zipfile.BadZipFile, EOFError, KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"inputs_of: {source} does not contain the inputs of an op, or is incomplete ({error}); "
            f"write it again with run.calls[i].to_code({str(source)!r})"
        ) from error


def _read(file: Any, i: int) -> Array:
    """Return array ``i`` of a file that `save` wrote; NumPy raises an error for strides beyond the stored memory."""
    offset, start, *rest = file[f"layout{i}"].tolist()
    shape, strides = tuple(rest[: len(rest) // 2]), tuple(rest[len(rest) // 2 :])
    memory, dtype = file[f"memory{i}"].tobytes(), np.dtype(str(file[f"dtype{i}"]))
    return Kept(memory, dtype, shape, strides, offset, start).array()
