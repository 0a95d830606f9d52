"""Replay of traces: while a program repeats the ops of an earlier trace, an op costs one comparison.

A trace is what one thread records between two computations. Once a program computes a trace (`flnb.graph.repetition`),
the next such trace is logged (`trace_log`). A `Replay` of the log has all values and buffers of the trace, made before
they are needed. An op with the expected inputs returns a prepared buffer, whose value is prepared, too. As values never
change, this value is right for every caller that wants this op of these inputs. If the whole trace was repeated, its
program computes the values to which the user's program refers, and only these are replaced for the next repetition.
Otherwise the replay is *left*: the values that ops have returned until then become ordinary recorded values.
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

FULL = OPS["full"]


class Entry:
    """The op that is expected to write to a prepared buffer, and the inputs with which a call is compared.

    Attributes:
        row: the position of the op's row in the log.
        code, category, manager: the same as in the op's `Row`.
        op: the op.
        a, b: the marks (`Buffer.mark`) that the buffers of the first two inputs must have. If the op has no such input,
            or the input is a leaf in ``firsts``, the attribute is the class `Entry`, which is no buffer's mark.
        given: the result of `DeferredBackend.empty` for the call: the prepared buffer, and 0.
        firsts: the positions (``~i``) of the leaves that this op is the first to read; `Replay.value` compares them.
    """

    __slots__ = ("a", "b", "category", "code", "firsts", "given", "manager", "op", "row")

    given: tuple[Buffer, int]

    def __init__(self, at: int, row: Row, firsts: set[int]) -> None:
        self.row, self.op, self.firsts = at, row.op, firsts
        self.code, self.category, self.manager = row.code, row.category, row.manager
        self.a: Any = Entry
        self.b: Any = Entry


class Replay:
    """The values and buffers of a logged trace, made in advance and used in each repetition of the trace.

    Attributes:
        after: a weak reference to the history of the trace that was computed before this one.
        rest: an iterator over the buffers that have not been used in this repetition.
        leaves: the values that stand for the inputs of the trace.
        strayed: whether the replays of the log were left at least twice more often than finished; then `expect_next`
            no longer expects this trace after the one before it, but the trace that was recorded instead.
        values, entries, buffers: for each row of the log, the prepared value, the `Entry`, and the prepared buffer.
        users: for each row, the positions of the rows that read its value.
        references: the reference counts of all values, leaves and buffers before a repetition.
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
        """Return a new value for row ``at`` of the log."""
        row = self.log.rows[at]
        return Value(row.op, self._at(row.inputs), row.attributes, row.spec, row.place)

    def _at(self, positions: Sequence[int]) -> tuple[Value, ...]:
        """Return the values at these positions, which are those of rows or leaves as in `Row.inputs`."""
        return tuple([self.values[x] if x >= 0 else self.leaves[~x] for x in positions])

    def _set_inputs(self, at: int) -> None:
        """Set the inputs of row ``at``'s value, and the marks in its entry, to the values that those rows have now."""
        positions, entry = self.log.rows[at].inputs, self.entries[at]
        self.values[at].inputs = inputs = self._at(positions)
        marks = [Entry if x in entry.firsts else value for x, value in zip(positions, inputs, strict=True)]
        entry.a, entry.b, *_ = *marks, Entry, Entry

    def _buffer(self, at: int) -> Buffer:
        """Return a new buffer with the value and the entry of row ``at``."""
        value, entry = self.values[at], self.entries[at]
        made = Buffer(value.spec, value.place)
        made.put(value)
        made.entry, entry.given = entry, (made, 0)
        return made

    def _count(self) -> list[int]:
        """Return the reference counts of all values, then of all leaves, then of all buffers."""
        return [*map(getrefcount, self.values), *map(getrefcount, self.leaves), *map(getrefcount, self.buffers)]

    def begin(self, known: Known, after: Known) -> None:
        """Begin a repetition in this thread: the next op is compared with the first op of the trace.

        ``known`` is the history of the trace, ``after`` that of the trace which was computed before.
        """
        self.known, self.after, self.thread, self.rest = known, ref(after), get_ident(), iter(self.buffers)

    def put_back(self) -> None:
        """Put the buffer that was last taken from ``rest`` back into ``rest``: it was prepared for another call."""
        self.rest.__setstate__(len(self.buffers) - self.rest.__length_hint__() - 1)

    def another(self, spec: Spec, manager: Any, code: Any, category: int) -> Buffer:
        """Return a new buffer for a call for which none is prepared, such as one that draws random numbers."""
        return Buffer(spec, self.backend._place(manager, category))

    def value(self, op: Any, inputs: tuple[Value, ...], attributes: Any, out: Buffer) -> Value:
        """Return the prepared value of ``out`` if this call is the expected one.

        Otherwise leave the replay and return a new value.
        """
        with running:
            entry = out.entry
            mine = entry is not None and entry.row < len(self.entries) and self.entries[entry.row] is entry
            if entry is not None and mine and self._fits(entry.row, op, inputs, attributes):
                return self.values[entry.row]
            self.leave()
        return Value(op, inputs, attributes, out.spec, out.place)

    def _fits(self, at: int, op: Any, inputs: tuple[Value, ...], attributes: Any) -> bool:
        """Return whether row ``at`` has this op, these inputs and these attributes.

        If the row is the first to read a leaf, the leaf stands for the corresponding input from now on.
        """
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
        """Make leaves the marks of the buffers that an op reads, so that later ops on these are compared quickly.

        ``value`` is the op's prepared value. Each leaf among its inputs becomes the mark of the corresponding buffer.
        """
        for x, leaf in zip(buffers, value.inputs, strict=True):
            if type(leaf) is Leaf and leaf.marked is None and leaf.source is x.value:
                x.mark, leaf.marked = leaf, ref(x)

    def is_begun(self) -> bool:
        """Return whether any buffer was used in this repetition."""
        return self.known is not None and self.rest.__length_hint__() < len(self.buffers)

    def finish(self, asked: list[Value] | None) -> Known | None:
        """Compute the needed values by the trace's program if the whole trace was repeated; else leave the replay.

        Args:
            asked: the values that must be computed; None for all that are still referenced.

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
        """Remove the leaves from the marks of buffers, because `_is_whole` counts the references to leaves.

        This is a separate method because a loop variable of `_is_whole` would be a reference to a leaf, too.
        """
        for leaf in self.leaves:
            leaf.unmark()

    def _renew(self) -> None:
        """Replace the values and buffers to which the user's program refers, and release the inputs."""
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
        """Use up ``rest``, so that the thread's next op leaves the replay; any thread may call this; it never waits."""
        list(self.rest)

    def leave(self) -> None:
        """End the replay: values that ops have returned become ordinary recorded values, all others are freed."""
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
