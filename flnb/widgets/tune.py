"""`flnb.memory.tune`: sliders for the settings of a memory manager; a trace is replayed whenever one is moved."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flnb_telemetry.extras import require

from flnb.dispatch import registry
from flnb.interface.memory import MemoryManager
from flnb.memory_lab.traces import trace
from flnb.memory_lab.tunables import tunables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from flnb.widgets.tuner import Tuner


def tune(
    source: Any, manager: Any = "caching", capacity: int | str | None = None, seconds: float = 1.0,
    **choices: Iterable[Any],
) -> Tuner:  # fmt: skip
    """Return a widget with a slider or menu for each setting of a memory manager; each change replays a trace.

    The widget draws reserved and live bytes, the two lower bounds, and the native calls (which reserve, resize or
    release a segment), for the chosen and the default settings. It also shows a line of code that activates the manager
    with the chosen settings.

    Args:
        source: a recording, the path of a saved one, or a `Trace`, as for `flnb.memory.trace`.
        manager: a class, also one written in a cell, or a name. Its settings are the arguments of its constructor.
        capacity: the capacity of the simulated device, in bytes or as a string with a unit; None for no limit.
        seconds: the time limit for the search of an offline packing, whose height is one of the bounds.
        choices: values to choose from, by setting; by default they follow from the setting's annotation and default.

    Returns:
        A `Tuner`, a box of ipywidgets, which is shown where it is the last line of a notebook cell.

    Raises:
        ImportError: the extra "lab" is not installed.
        TypeError: ``manager`` is not a class of memory managers, or has no setting of a name in ``choices``.
        ValueError: there is no manager of that name.

    >>> import flnb
    >>> calls = flnb.memory.Trace.of_calls([1, 2, -1, 3], [3 << 20, 1 << 20, 4 << 20])
    >>> tuner = flnb.memory.tune(calls, "best-fit", step=["2MiB", "16MiB"])
    >>> tuner.set(step="16MiB")
    >>> tuner.current.manager, tuner.line
    ('best-fit(step=16MiB)', 'flnb.set_memory_manager("best-fit:step=16MiB")')
    >>> tuner.close()
    """
    require("ipywidgets", extra="lab", purpose="flnb.memory.tune")
    require("plotly.graph_objects", extra="lab", purpose="flnb.memory.tune")
    kind = registry.find("memory manager", manager) if isinstance(manager, str) else manager
    if not (isinstance(kind, type) and issubclass(kind, MemoryManager)):
        raise TypeError(
            f"flnb.memory.tune: expected the class of a memory manager, such as flnb.memory.Caching, or its name, got "
            f"{manager!r}"
        )
    asked = trace(source)
    found = tunables(kind, asked.peak_live, choices)
    from flnb.widgets.tuner import Tuner

    return Tuner(asked, kind, found, capacity, seconds)
