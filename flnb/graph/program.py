"""Programs: recorded ops compiled to a list of calls on memory that is planned once; a program can run many times."""

from __future__ import annotations

import os
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
from flnb_telemetry import bus

from flnb.dispatch import source_lines
from flnb.dispatch.memory import holders
from flnb.dispatch.quiet import quiet
from flnb.dispatch.table import OPS
from flnb.graph.calls import Call, KernelCalls, call_of
from flnb.graph.joining import NestCall
from flnb.graph.launches import Launch, launches, routine_of
from flnb.graph.layouts import Layouts, is_view
from flnb.graph.lending import Lending, address_of
from flnb.graph.lowering import lowered
from flnb.graph.planning import plan_memory
from flnb.graph.pointers import Pointers
from flnb.graph.reporting import contexts, op_event
from flnb.graph.rewriting import EXACT, RULES, owned, rewritten
from flnb.graph.sites import Site
from flnb.graph.values import Recorded, Value, reachable
from flnb.graph.variants import least_variant

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from flnb.dispatch.state import State
    from flnb.graph.joining import Span
    from flnb.graph.planning import MemoryPlan

BYTES = np.dtype(np.uint8)
MOST_OPS = 20_000
"""The number of ops above which `flnb.jit` warns that planning takes long, and `deferred` makes no program."""
SETTLED = 3
"""The number of the run before which memory is planned again, with the scratch memory that methods have requested.

In the first run, methods request more than usual, because they time several ways to compute."""


class Program:
    """Recorded ops compiled to calls on preplanned memory; `run` executes them.

    Args:
        recorded: the recorded ops.
        here: the state with the backend that computes and the memory manager that provides memory.
        fuse: whether elementwise ops and reductions are computed by loop nests, if the backend compiles these;
            otherwise a backend method computes each value.
        lends: whether a run may write its outputs to the output arrays of an earlier run, once the caller has no
            reference to those arrays.

    Attributes:
        recorded: the recorded ops, before rewriting.
        rules: the rewrite rules that were applied.
        now: a dict from each recorded value to the value that replaces it in the rewritten graph.
        sites: for each backend that computes values of the program, its `Site`.
        groups: the fusion groups, each computed by one call, in order.
        stored: for each group, the values that it writes to memory.
        memory: the memory plan of the values.
    """

    def __init__(self, recorded: Recorded, here: State, fuse: bool = True, lends: bool = False) -> None:
        self.here, self.inputs, self.recorded = here.lasting(), list(recorded.inputs), recorded
        self.layouts = Layouts()
        wanted = recorded.wanted
        self.sites = {here.backend: Site(self.here, fuse)}
        self._add_sites(wanted, fuse)
        overridden = frozenset().union(*[backend.overridden() for backend in self.sites])
        compilers = [site.kernels for site in self.sites.values()]
        self.kernels: Any = None if None in compilers else min(compilers, key=lambda each: each.mixes)
        self.rules = EXACT if self.kernels is None else RULES
        now = self.now = rewritten(wanted, overridden, self.rules)
        taken: set[Value] = set()
        self.outputs = [owned(now.get(x, x), taken) for x in recorded.outputs]
        self.updates = [(old, owned(now.get(new, new), taken)) for old, new in recorded.updates]
        self.effects = [now.get(x, x) for x in recorded.effects]
        kept_apart = self.kept_apart = OPS if self.kernels is None else overridden
        self._add_sites([*self.outputs, *[new for _, new in self.updates], *self.effects], fuse)
        self._routines: dict[int, Any] = {}
        chosen = least_variant(self, kept_apart)
        self.groups, self.outputs, self.updates = chosen.groups, chosen.outputs, chosen.updates
        self.memory, self.stored = self.placed(self.groups, self.updates, self.outputs, chosen.scratch)
        self.contexts = contexts(chosen.values)
        own = {*chosen.values}
        self.layouts = Layouts({x: at for x, at in self.layouts.items() if x.op is None or x in own})
        self.fresh = [x for x in self.outputs if x not in self.memory.home]
        self.moving = {*self.inputs, *self.fresh}
        self.lending, self.lends = Lending(), lends
        self.generators, self.manager = recorded.generators, here.manager
        self.bound, self.runs, self.in_use = False, 0, Lock()
        with self.in_use:
            self._bind()
        holders.add(self)

    def _add_sites(self, wanted: Sequence[Value], fuse: bool) -> None:
        """Create a `Site` for every backend on which the values ``wanted`` and their inputs are computed.

        ``fuse`` says whether ops may be computed by loop nests.
        """
        for backend in dict.fromkeys([x.place.backend for x in reachable(wanted) if x.op is not None]):
            if backend not in self.sites:
                there = self.here.copy()
                there.change(backend=backend)
                self.sites[backend] = Site(there, fuse)

    def placed(
        self, groups: Any, updates: Any, outputs: Sequence[Value], scratch: Mapping[int, int], draft: bool = False
    ) -> tuple[MemoryPlan, list[list[Value]]]:
        """Plan the memory of fusion groups of this program; arguments and result are those of `plan_memory`."""
        careful = {op for op in OPS.values() if op.name == "copy" or isinstance(self.here.table[op.index], np.ufunc)}
        donated = self.recorded.donated
        return plan_memory(groups, self.layouts, updates, dict.fromkeys(outputs), donated, careful, scratch, draft)

    def _settle(self) -> None:
        """After the second run, replace methods by library routines where possible, and plan the memory again.

        In the first runs, backend methods have shown how much scratch memory they request. In the new plan, scratch
        memory is in parts of the block that hold no value at that time. The plan is used if it needs less memory.
        """
        calls = self._calls()
        known = {i: size for i, (_, size) in self.memory.scratch.items()}
        asked = {call.group: call.asked for call in calls if call.asked > known.get(call.group, 0)}
        saves, plan = False, self.memory
        if asked:
            plan, _ = self.placed(self.groups, self.updates, self.outputs, known | asked)
            saves = plan.size < self.memory.size + max(asked.values())
        found = {
            call.group: routine_of(call.value, self.site(call.value), self.layouts, self.kept_apart) for call in calls
        }
        self._routines = {i: routine for i, routine in found.items() if routine is not None}
        if saves or self._routines:
            self._unbind()
        if saves:
            self.memory = plan

    def _calls(self) -> list[Call]:
        """Return the calls of backend methods that compute fusion groups."""
        return [step for step in self.steps if isinstance(step, Call) and step.group >= 0]

    def _bind(self) -> None:
        """Allocate the program's memory, and build its calls."""
        self._process = os.getpid()
        self.arrays: dict[Value, Any] = {}
        self.patches: list[tuple[list[Any], int, Value, Value]] = []
        self.drawn: list[tuple[list[Any], int, Any]] = []
        self.pointers = Pointers(self.moving)
        self.placed_by: Any = None
        for backend, size in self.memory.sizes.items():
            self.sites[backend].block = self.sites[backend].new((size,), BYTES)
        self.steps: list[Any] = []
        for i in range(len(self.groups)):
            self._add(i)
        for old, new in self.memory.copies:
            self._add_call(Call(self.site(new).method(OPS["copy"]), [new], (), old))
        self.steps = [
            launches(step, self._span, self._site_of(step[0]), self.contexts) if isinstance(step, list) else step
            for step in self.steps
        ]
        made = [launch for step in self.steps if isinstance(step, list) for launch in step]
        self.scratch_bytes = 64 + max([launch.kernel.scratch for launch in made if launch.scratch < 0], default=0)
        for site in self.sites.values():
            site.scratch = site.new((self.scratch_bytes,), BYTES)
        self.steps = [self._segment(step) if isinstance(step, list) else step for step in self.steps]
        for call in self._calls():
            if call.group in self.memory.scratch:
                begin, size = self.memory.scratch[call.group]
                call.scratch = self.site(call.value).block[begin : begin + size]
        self.bound = True

    def _unbind(self) -> None:
        """Free the program's memory, except for output arrays that later runs use again."""
        self.bound = False
        self.arrays, self.steps, self.patches, self.drawn, self.pointers = {}, [], [], [], Pointers()
        for site in self.sites.values():
            site.block = site.scratch = None

    def release(self) -> bool:
        """Free the program's memory until its next run; returns False if nothing was freed.

        Nothing is freed if the program has no memory at present, or is running.
        """
        if not self.in_use.acquire(blocking=False):  # perhaps by this thread, whose allocation found no memory
            return False
        try:
            found = self.bound
            self._unbind()
            self.lending.clear()
            return found
        finally:
            self.in_use.release()

    def site(self, value: Value) -> Site:
        """Return the `Site` (backend and memory) on which a value is computed."""
        return self.sites[value.place.backend]

    def _add(self, i: int) -> None:
        """Append the calls that compute fusion group number ``i``."""
        group, value = self.groups[i], self.groups[i].members[0]
        if group.shape is not None:
            self._append(NestCall(*lowered(group, self.stored[i], self.layouts), group.members))
        elif i in self._routines:
            places = [self.layouts[x][:2] for x in (*value.inputs, value)]
            event = op_event(value), (0, 0, self.contexts.get(value, 0), 0, 0)
            begin, size = self.memory.scratch.get(i, (-1, 0))
            scratch = begin if size >= self._routines[i].scratch else -1  # the method may have run in another way
            self._append(Launch(self._routines[i], self.site(value), places, event, scratch))
        else:
            call = call_of(group.members, self.site(value).method, self._in_place)
            for at, argument in enumerate(call.arguments):
                if id(argument) in self.generators:
                    self.drawn.append((call.arguments, at, self.generators[id(argument)]))
            self._add_call(call, i)

    def _append(self, item: NestCall | Launch) -> None:
        """Append a call of machine code, ``item``, to the last segment of consecutive calls.

        A new segment begins if the last one runs on another `Site`.
        """
        last = self.steps[-1] if self.steps else None
        if not isinstance(last, list) or self._site_of(last[-1]) is not self._site_of(item):
            self.steps.append([])
        self.steps[-1].append(item)

    def _site_of(self, item: NestCall | Launch) -> Site:
        return item.site if isinstance(item, Launch) else self.site(item.members[0])

    def _add_call(self, call: Call, group: int = -1) -> None:
        """Append a call; arguments whose array changes from run to run are set when a run begins.

        ``group`` is the number of the fusion group that the call computes, -1 for a copy.
        """
        for i, value in enumerate(call.values):
            if value is not None:
                if self._root(value) in self.moving:
                    self.patches.append((call.arguments, i, value, self._root(value)))
                    call.arguments[i] = None
                else:
                    call.arguments[i] = self.array(value)
        made: Any = call.value if call.value.op is not None else call.values[0]  # what exists gets another's elements
        call.event, call.group = (op_event(call.value), self.contexts.get(made, 0)), group
        self.steps.append(call)

    def _span(self, value: Value) -> Span:
        """Return the range of a value's bytes in the program's block; for other memory, a range that identifies it."""
        root = self._root(value)
        begin = self.memory.offset.get(root)
        return (root, 0, 1) if begin is None else (None, begin, begin + max(root.spec.nbytes, 1))

    def _segment(self, calls: list[Launch]) -> KernelCalls:
        """Return one call that runs consecutive kernels and routines."""
        made, moving = [], []
        site = calls[0].site
        shared = address_of(site.scratch)
        for i, launch in enumerate(calls):
            pointers = []
            for j, (value, offset) in enumerate(launch.places):
                root = self._root(value)
                if root in self.moving:
                    moving.append((i, j, root, offset))
                    pointers.append(0)
                else:
                    pointers.append(address_of(self.array(root)) + offset)
            scratch = shared if launch.scratch < 0 else address_of(site.block) + launch.scratch
            made.append((launch.kernel, pointers, scratch))
        segment = site.kernels.Segment(made)
        self.pointers.add(segment.pointers, [(root, segment.place(i, j), offset) for i, j, root, offset in moving])
        return KernelCalls(segment, [launch.event for launch in calls])

    def _root(self, value: Value) -> Value:
        """Return the value that owns the memory of ``value``: itself, the base of a view, or an overwritten value."""
        root = self.layouts[value].root
        return self.memory.home.get(root, root)

    def _in_place(self, value: Value) -> bool:
        """Return whether a write to a view (`PUT`) goes directly to the memory of the viewed tensor."""
        base = self.layouts[value.inputs[0]].root
        a, b, offset = self._root(value), self._root(base), self.memory.offset
        return a is b or (a in offset and offset[a] == offset.get(b, -1))

    def output(self, value: Value) -> Any:
        """Allocate a new array for an output."""
        return self.site(value).new(value.spec.shape, value.spec.dtype)

    def array(self, value: Value) -> Any:
        """Return the array of a value; for a view, a view of the array of its base."""
        found = self.arrays.get(value)
        if found is None:
            found = self._array(value)
            if self._root(value) not in self.moving:
                self.arrays[value] = found
        return found

    def _array(self, value: Value) -> Any:
        if is_view(value):
            assert value.op is not None
            return self.site(value).method(value.op)(self.array(value.inputs[0]), *value.attributes)
        if value in self.memory.home:
            return self.array(self.memory.home[value])
        if value.op is None:
            return value.tensor._data
        spec, begin = value.spec, self.memory.offset[value]
        return self.site(value).block[begin : begin + spec.nbytes].view(spec.dtype).reshape(spec.shape)

    def __str__(self) -> str:
        """Return the calls as text, one line each: the ops, their operands, and where results are stored."""
        from flnb.graph.describing import program_text

        return program_text(self)

    @property
    def is_settled(self) -> bool:
        """Return whether the program has memory, and will not be planned again."""
        return self.bound and self.runs >= SETTLED

    @property
    def peak(self) -> int:
        """Return the bytes that a run needs besides inputs and parameters: for values, scratch memory and outputs.

        From the third run on this includes the scratch memory of backend methods.
        """
        scratch = self.scratch_bytes * len(self.sites)
        return self.memory.size + scratch + sum(x.spec.nbytes for x in self.fresh)

    # Runs -------------------------------------------------------------------------------------------------------------

    @quiet
    def run(self, inputs: Sequence[Any]) -> list[Any]:
        """Run the program; returns the output arrays.

        Args:
            inputs: the arrays of the inputs, with the shapes, dtypes and strides that the recorded inputs had.
        """
        with self.in_use:
            try:
                return self._computed(inputs)
            finally:
                for value in self.moving:
                    self.arrays.pop(value, None)
                for arguments, i, *_ in self.patches:
                    arguments[i] = None

    def _computed(self, inputs: Sequence[Any]) -> list[Any]:
        """Set the arrays that differ from run to run, run all calls, and return the output arrays."""
        if self._process != os.getpid():  # a forked child has none of a library's other threads
            self._routines, self.runs = {}, 0
            self._unbind()
            for site in self.sites.values():
                site.renew()
        self.runs += 1
        if self.runs == SETTLED:
            self._settle()
        if not self.bound:
            self._bind()
        arrays = self.arrays
        arrays.update(zip(self.inputs, inputs, strict=True))
        known = self.lending.known
        for value in self.fresh:
            arrays[value] = self.lending.take(value, self.output).array if self.lends else self.output(value)
        for arguments, i, value, root in self.patches:
            lent = known.get(id(arrays[root]))
            arguments[i] = self.array(value) if lent is None else lent.view(value, self.array)
        self.placed_by = None
        moving = [arrays[value] for value in self.pointers.values]
        lents = [known.get(id(array)) for array in moving]
        addresses = [address_of(x) if lent is None else lent.address for x, lent in zip(moving, lents, strict=True)]
        self.pointers.set_all(addresses)
        for arguments, i, owner in self.drawn:
            arguments[i] = owner.numpy
        for backend in self.sites:
            backend.uses(arrays.values())
        self.run_steps()
        return [arrays[value] if value in arrays else self.array(value) for value in self.outputs]

    def run_steps(self) -> None:
        """Run all calls; emit their events if telemetry records."""
        lanes, step = bus.lanes, None
        try:
            if lanes is None:
                for step in self.steps:
                    step.run()
            else:
                for step in self.steps:
                    step.run_recorded(lanes.lane)
        except Exception as error:
            if isinstance(step, Call):
                inputs = ", ".join(repr(x.spec) for x in step.value.inputs)
                name = step.value.op.name if step.value.op else "copy"
                line = source_lines.where(*step.value.site)
                error.add_note(
                    f"flnb: in a program of flnb.jit, in {name} of {inputs}, giving {step.value.spec!r}, made at {line}"
                )
            raise
