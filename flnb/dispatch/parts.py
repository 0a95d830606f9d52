"""Exchange of parts (backend, memory manager, ...) for a ``with`` block or for the session.

The new part is given by name, class or instance.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry import bus
from flnb_telemetry.parts import emit_parts
from flnb_telemetry.withblock import with_block

from flnb.dispatch import memory, registry
from flnb.dispatch import state as states
from flnb.dispatch.announcing import announce
from flnb.interface.part import CONTRACTS, redefined

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager

    from flnb.interface import MemoryDevice, MemoryManager, Tape, TensorBackend


def active_facts() -> dict[str, Any]:
    """Return the names of the active parts, and facts such as versions, as recordings store them in ``run.meta``."""
    here = states.current()
    device = here.manager.device
    return {
        "backend": here.backend.name,
        "libraries": here.backend.libraries(),
        "manager": here.manager.name,
        "device": device.name,
        "capacity": device.capacity,
        "granularity": device.granularity,
        "min_block": here.min_block,
    }


def _record(everywhere: bool = False) -> None:
    """Emit which parts this thread (or every thread, with ``everywhere``) uses from now on."""
    if bus.lanes is not None:
        emit_parts(active_facts(), everywhere)


class _Using(states.use):
    """Like `flnb.dispatch.state.use`, but also emits the change to recordings."""

    def begin(self) -> states.State:
        state = super().begin()
        _record()
        return state

    def end(self, error: BaseException | None) -> None:
        super().end(error)
        _record()


@with_block
def use_part(kind: str, what: Any) -> Iterator[Any]:
    """Make a part of any kind, such as ``"backend"`` or ``"memory manager"``, active until the block ends.

    Args:
        kind: the kind of the part, see `flnb.interface.Part`.
        what: the part's name (settings may follow), its class or an instance.

    >>> import flnb
    >>> with flnb.dispatch.parts.use_part("tape", "arena") as tape:
    ...     tape.name
    'arena'
    """
    chosen = registry.make(kind, what)
    try:
        with _Using(**{CONTRACTS[kind].slot: chosen}):
            yield chosen
    finally:
        if kind == "memory manager" and chosen is not what:
            memory.end(chosen)


def set_part(kind: str, what: Any) -> Any:
    """Make a part of any kind active for the rest of the session; see `use_part`. Returns the instance.

    Inside ``with`` blocks that have chosen a part of this kind, nothing changes.
    """
    chosen, slot = registry.make(kind, what), CONTRACTS[kind].slot
    for state in list(states.live):
        if state is states.session or slot not in state.scoped:
            state.change(**{slot: chosen})
    _record(everywhere=True)
    return chosen


def use_backend(backend: str | type[TensorBackend] | TensorBackend) -> AbstractContextManager[TensorBackend]:
    """Compute with another backend, given by name, class or instance, until the block ends.

    Raises:
        ValueError: no backend has this name.

    >>> import flnb
    >>> with flnb.use_backend("numpy") as backend:
    ...     backend.name
    'numpy'
    """
    return use_part("backend", backend)


def set_backend(backend: str | type[TensorBackend] | TensorBackend) -> TensorBackend:
    """Compute with another backend, given by name, class or instance, for the rest of the session; returns it.

    Raises:
        ValueError: no backend has this name.

    >>> import flnb
    >>> flnb.set_backend("numpy").name
    'numpy'
    """
    return set_part("backend", backend)


def use_memory_manager(manager: str | type[MemoryManager] | MemoryManager) -> AbstractContextManager[MemoryManager]:
    """Allocate from another manager, given by name, class or instance, until the block ends.

    A name may contain settings: ``"caching:split_limit=64MiB"``. Tensors allocated inside the block stay valid after
    it; their blocks are freed by the manager that allocated them.

    Raises:
        ValueError: no memory manager has this name.

    >>> import flnb
    >>> with flnb.use_memory_manager("exact") as manager:
    ...     x = flnb.ones((1000, 1000))
    >>> manager.stats()["live"]
    1
    """
    return use_part("memory manager", manager)


def set_memory_manager(manager: str | type[MemoryManager] | MemoryManager) -> MemoryManager:
    """Allocate from another manager, given by name, class or instance, for the rest of the session; returns it.

    Raises:
        ValueError: no memory manager has this name.

    >>> import flnb
    >>> flnb.set_memory_manager("caching").name
    'caching'
    """
    return set_part("memory manager", manager)


def use_memory_device(device: str | type[MemoryDevice] | MemoryDevice) -> AbstractContextManager[MemoryDevice]:
    """Set the device from which managers that are created inside the ``with`` block reserve their segments.

    Args:
        device: the device's name (``"simulated:capacity=8GiB"``), its class or an instance.

    Raises:
        ValueError: no memory device has this name.

    >>> import flnb
    >>> with flnb.use_memory_device("host:capacity=64MiB"), flnb.use_memory_manager("caching") as manager:
    ...     manager.device.capacity
    67108864
    """
    return use_part("memory device", device)


def set_memory_device(device: str | type[MemoryDevice] | MemoryDevice) -> MemoryDevice:
    """Let managers that are created from now on in the session take segments from another device; returns the device.

    Raises:
        ValueError: no memory device has this name.

    >>> import flnb
    >>> flnb.set_memory_device("host").name
    'host'
    """
    return set_part("memory device", device)


def use_tape(tape: str | type[Tape] | Tape) -> AbstractContextManager[Tape]:
    """Record on another tape, given by name, class or instance, until the block ends.

    Nodes refer to their tape: a ``backward`` after the block uses the tape that recorded the nodes.

    Raises:
        ValueError: no tape has this name.

    >>> import flnb
    >>> with flnb.use_tape("arena") as tape:
    ...     y = flnb.Variable([3.0]) * 2.0
    >>> tape
    <Arena tape 'arena', 1 node>
    """
    return use_part("tape", tape)


def set_tape(tape: str | type[Tape] | Tape) -> Tape:
    """Record on another tape, given by name, class or instance, for the rest of the session; returns it.

    Raises:
        ValueError: no tape has this name.

    >>> import flnb
    >>> flnb.set_tape("linked").name
    'linked'
    """
    return set_part("tape", tape)


def _replace_redefined(cls: type) -> None:
    """Change active instances of a part's class to the new class, after a notebook cell defined the class again.

    Recordings contain the same event as after `set_part`.
    """
    for state in list(states.live):
        for slot, instance in state.parts.items():
            old = type(instance)
            if (old.__module__, old.__qualname__) == (cls.__module__, cls.__qualname__):
                instance.__class__ = cls
                state.change(**{slot: instance})
                if state is states.session:
                    _record(everywhere=True)


redefined.append(_replace_redefined)
bus.announcers.append(announce)
