"""Replay of traces: while a program repeats the ops of an earlier trace, an op costs one comparison.

A trace is what one thread records between two computations. Once a program computes a trace (`flnb.graph.repetition`),
the next such trace is logged (`trace_log`). A `Replay` of the log has all values and buffers of the trace, made before
they are needed. An op with the expected inputs gets the prepared buffer, with the prepared value. As values never
change, this value is right for every caller that wants this op of these inputs. If the whole trace was repeated, its
program computes the values to which the program of the user refers, and only these are made anew. Otherwise the replay
is *left*: the values that were given until then are like any others.
"""

from __future__ import annotations

from sys import getrefcount
from threading import get_ident
from typing import TYPE_CHECKING, Any
from weakref import ref

from flnb_telemetry import bus

from flnb.dispatch.table import OPS
from flnb.graph.repetition import run_again
from flnb.graph.running import running
from flnb.graph.values import Value
from flnb_backends.tensor.recorded_buffers import Buffer, Leaf
from flnb_backends.tensor.trace_log import traces, upcoming

if TYPE_CHECKING:
    from collections.abc import Sequence

    from flnb.dispatch.plan import Spec
    from flnb.graph.repetition import Known
    from flnb_backends.tensor.deferred import DeferredBackend
    from flnb_backends.tensor.trace_log import Row

__all__ = ["Entry", "Replay"]

FULL = OPS["full"]


class Entry:
    """The op that fills a prepared buffer.

    Attributes:
        row, code, category, manager: the row of the log, and what it says of the buffer.
        op: the op.
        a, b: its first two inputs, with which it is compared; `Entry` if there are less, or if a leaf is read for the
            first time, for which `Replay.value` chooses a value.
        given: what `DeferredBackend.empty` returns: the buffer, and 0.
        firsts: the positions (``~i``) of the leaves that are read here for the first time.
    """

    __slots__ = ("a", "b", "category", "code", "firsts", "given", "manager", "op", "row")

    given: tuple[Buffer, int]

    def __init__(self, at: int, row: Row, firsts: set[int]) -> None:
        self.row, self.op, self.firsts = at, row.op, firsts
        self.code, self.category, self.manager = row.code, row.category, row.manager
        self.a: Any = Entry
        self.b: Any = Entry


class Replay:
    """A log with values and buffers, which are used in each repetition of its trace.

    Attributes:
        after: the history of the trace that was computed before this one, as a weak reference.
        rest: the buffers that have not been used in this repetition.
        leaves: the values that stand for the inputs of the trace.
        strayed: whether the replay was left for the second time, so that another trace is expected the next time.
        values, entries, buffers: by row, the values, and their buffers with the ops that fill them.
        references: for each value, leaf and buffer the number of references to it before a repetition.
    """

    def __init__(self, backend: DeferredBackend, known: Known) -> None:
        log: Any = known.log
        self.backend: Any = backend
        self.log, self.program, self.after = log, known.program, ref(known)
        self.known: Any = None  # the history of the trace during a repetition
        self.strayed, self.thread = False, 0
        self.rest: Any = iter(())
        self.leaves = [Leaf(*each) for each in log.leaves]
        self.values: list[Value] = []
        self.entries: list[Entry] = []
        self.users: list[list[int]] = [[] for _ in log.rows]
        read = set[int]()
        for at, row in enumerate(log.rows):
            self.entries.append(Entry(at, row, {x for x in row.inputs if x < 0} - read))
            read.update(row.inputs)
            for x in row.inputs:
                if x >= 0:
                    self.users[x].append(at)
            self.values.append(self._prepared(at))
            self._set_inputs(at)
        self.buffers = [self._buffer(at) for at in range(len(log.rows))]
        self.references = self._count()
        for at in log.asked or ():  # `DeferredBackend.eval` has a list of them
            self.references[at] += 1
        traces.add(self)

    def _prepared(self, at: int) -> Value:
        """Return a new value for a row."""
        row = self.log.rows[at]
        return Value(row.op, self._at(row.inputs), row.attributes, row.spec, row.place)

    def _at(self, positions: Sequence[int]) -> tuple[Value, ...]:
        """Return the values at positions, see `Row.inputs`."""
        return tuple([self.values[x] if x >= 0 else self.leaves[~x] for x in positions])

    def _set_inputs(self, at: int) -> None:
        """Set the inputs of a row's value, and what its entry compares with, to the present values of other rows."""
        positions, entry = self.log.rows[at].inputs, self.entries[at]
        self.values[at].inputs = inputs = self._at(positions)
        marks = [Entry if x in entry.firsts else value for x, value in zip(positions, inputs, strict=True)]
        entry.a, entry.b, *_ = *marks, Entry, Entry

    def _buffer(self, at: int) -> Buffer:
        """Return a new buffer for a row."""
        value, entry = self.values[at], self.entries[at]
        made = Buffer(value.spec, value.place)
        made.put(value)
        made.entry, entry.given = entry, (made, 0)
        return made

    def _count(self) -> list[int]:
        """Return the numbers of references to all values, leaves and buffers."""
        return [*map(getrefcount, self.values), *map(getrefcount, self.leaves), *map(getrefcount, self.buffers)]

    def begin(self, known: Known, after: Known) -> None:
        """Expect the first op of the trace, in this thread."""
        self.known, self.after, self.thread, self.rest = known, ref(after), get_ident(), iter(self.buffers)

    def put_back(self) -> None:
        """Have the prepared buffer that was taken last be the next one again: it was made for another call."""
        self.rest.__setstate__(len(self.buffers) - self.rest.__length_hint__() - 1)

    def another(self, spec: Spec, manager: Any, code: Any, category: int) -> Buffer:
        """Return a new buffer for a call that gets no prepared one, such as for random numbers."""
        return Buffer(spec, self.backend._place(manager, category))

    def value(self, op: Any, inputs: tuple[Value, ...], attributes: Any, out: Buffer) -> Value:
        """Return the prepared value of ``out`` if this is its op; else leave the replay, and make a value."""
        with running:
            entry = out.entry
            mine = entry is not None and entry.row < len(self.entries) and self.entries[entry.row] is entry
            if entry is not None and mine and self._fits(entry.row, op, inputs, attributes):
                return self.values[entry.row]
            self.leave()
        return Value(op, inputs, attributes, out.spec, out.place)

    def _fits(self, at: int, op: Any, inputs: tuple[Value, ...], attributes: Any) -> bool:
        """Return whether a row has this op, these inputs, and these attributes; choose values for leaves."""
        row, expected = self.log.rows[at], self.values[at].inputs
        if row.op is not op or row.attributes != attributes or len(expected) != len(inputs):
            return False
        if op is FULL and repr(row.attributes) != repr(attributes):  # 0.0 == -0.0
            return False
        for x, value in zip(expected, inputs, strict=True):
            if x is not value and not (type(x) is Leaf and x.stands_for(value)):
                return False
        return True

    def mark(self, buffers: Sequence[Buffer], value: Value) -> None:
        """Mark the buffers that an op reads, so that later ops that read them are compared quickly."""
        for x, leaf in zip(buffers, value.inputs, strict=True):
            if type(leaf) is Leaf and leaf.marked is None and leaf.source is x.value:
                x.mark, leaf.marked = leaf, ref(x)

    def is_begun(self) -> bool:
        """Return whether any buffer was used in this repetition."""
        return self.known is not None and self.rest.__length_hint__() < len(self.buffers)

    def finish(self, asked: list[Value] | None) -> Known | None:
        """Compute the values that are needed, if the whole trace was repeated; else leave the replay.

        Args:
            asked: the values that must be computed; None for all to which there are references.

        Returns:
            The history of the trace; None if nothing was computed.
        """
        with running:
            if not self.is_begun():
                return None
            known, made, log = self.known, None, self.log
            try:
                if self._is_whole(asked):
                    tensors = [self.leaves[~at].tensor for at in log.inputs]
                    made = run_again(known, self.values[0].place, tensors, len(self.values))
                if made is not None:
                    tensor = self.program.lending.tensor  # type: ignore[union-attr]
                    for at, array, spec in zip(log.outputs, made, known.specs, strict=True):
                        if at in log.given:
                            self.values[at].tensor = tensor(array, spec)
            finally:  # also after Ctrl-C
                if made is None:
                    self.leave()
            if made is None:
                return None
            upcoming.set(None)
            self._renew()
            log.misses = max(log.misses - 1, 0)
            self.known, known.replay = None, self  # not if Ctrl-C came before
            return known

    def _is_whole(self, asked: list[Value] | None) -> bool:
        """Return whether the whole trace was repeated, and the same values are needed as when it was logged."""
        if self.thread != get_ident() or bus.lanes is not None or self.known.program is not self.program:
            return False
        known = self.log.asked
        if self.rest.__length_hint__() or (asked is None) != (known is None):
            return False
        if asked is not None and asked != list(self._at(known)):
            return False
        self._unmark()
        count, begin = self._count(), len(self.values) + len(self.leaves)
        for at in self.log.given:
            if count[begin + at] == self.references[begin + at]:
                return False
            count[begin + at] = self.references[begin + at]
        return count == self.references and all(leaf.source is not None for leaf in self.leaves)

    def _unmark(self) -> None:
        """Remove the marks of all leaves, which are references to them; so would be a variable of `_is_whole`."""
        for leaf in self.leaves:
            leaf.unmark()

    def _renew(self) -> None:
        """Replace the values and buffers to which the program of the user refers, and release the inputs."""
        users = set(self.log.given)
        for at in self.log.given:
            old = self.values[at]
            self.values[at] = made = self._prepared(at)
            made.number, old.inputs = old.number, ()
            users.update(self.users[at])
        for at in users:
            self._set_inputs(at)
        for at in self.log.given:
            self.buffers[at].entry = None
            self.buffers[at] = self._buffer(at)
        for leaf in self.leaves:
            leaf.source = leaf.tensor = None

    def stop(self) -> None:
        """Have the next op of the thread leave the replay; may be called from any thread and waits for nothing."""
        list(self.rest)

    def leave(self) -> None:
        """End the replay: its values and buffers are used by the program of the user from now on, or freed."""
        with running:
            if upcoming.get() is self:
                upcoming.set(None)
            if self.known is None:
                return
            self.log.misses += 1
            self.strayed = self.log.misses > 1
            taken = self.values[: len(self.buffers) - len(list(self.rest))]  # nobody gets another one from now on
            # a buffer may wait for its op, which Ctrl-C or an error prevented: it has an input without a source
            used = [x for x in taken if all(type(each) is not Leaf or each.source for each in x.inputs)]
            for value in used:
                value.users = 0
            for value in used:
                value.inputs = tuple([x.source or x if type(x) is Leaf else x for x in value.inputs])
                for x in value.inputs:
                    x.users += 1
            held = [value.holder for value in used]
            self.backend.waiting[self.thread] += [each for each in held if each is not None]
            for buffer in self.buffers:
                buffer.entry = None
            self.log = self.known = self.program = None
            # A traceback may refer to this object for a while: its buffers would seem to be needed.
            self.values, self.buffers, self.entries, self.leaves = [], [], [], []
