"""Capture of streams: work becomes a graph instead of running, and is launched as a whole, as often as wanted."""

from __future__ import annotations

from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any

from flnb.dispatch import devices
from flnb_backends.tensor.cuda.api import CAPTURE

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Capture"]

THREAD_LOCAL, RELAXED = 1, 2


class Capture:
    """The methods of `Driver` for graphs. Unmeasured: no GPU has run them, and flnb's backend does not use them yet.

    Attributes:
        capturing: streams whose capture is under way; meanwhile telemetry emits no launches and asks for no times.
    """

    _calls: dict[str, Any]
    _run: Callable[..., None]
    _get: Callable[..., Any]
    capturing: set[int]

    @property
    def captures(self) -> bool:
        """Whether the library that was opened has all calls for graphs."""
        return self._calls.keys() >= CAPTURE.keys()

    def begin_capture(self, stream: int, relaxed: bool = False) -> None:
        """Make further work in a stream, and in those that wait for its events, part of a graph until `end_capture`.

        Meanwhile no call may wait for that work; unless ``relaxed``, this thread may not allocate on the device either.

        Raises:
            NotImplementedError: the library has no calls for graphs.
        """
        if not self.captures:
            missing = ", ".join(sorted(CAPTURE.keys() - self._calls.keys()))
            raise NotImplementedError(
                f"stream capture: the driver's library lacks {missing}; it is older than CUDA 11.4"
            )
        self._run("cuStreamBeginCapture_v2", stream, RELAXED if relaxed else THREAD_LOCAL)
        self.capturing.add(stream)

    def end_capture(self, stream: int) -> int:
        """Return the graph of what was queued since `begin_capture`; all streams in it must have been joined."""
        graph = c_void_p()
        self.capturing.discard(stream)
        self._run("cuStreamEndCapture", stream, byref(graph))
        return int(graph.value or 0)

    def instantiate(self, graph: int) -> int:
        """Return a graph in the form in which `launch_graph` takes it."""
        return int(self._get("cuGraphInstantiateWithFlags", graph, 0))

    def launch_graph(self, instance: int, stream: int = 0) -> None:
        """Queue all work of an instantiated graph in a stream, on the addresses with which it was captured."""
        task = devices.begin(self, stream)  # type: ignore[arg-type]
        self._run("cuGraphLaunch", instance, stream)
        if task is not None:
            task.launched("graph")

    def destroy_instance(self, instance: int) -> None:
        """Destroy what `instantiate` returned; what was launched still runs."""
        self._run("cuGraphExecDestroy", instance)

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph; what was instantiated of it stays."""
        self._run("cuGraphDestroy", graph)
