"""CUDA graphs by stream capture: work is recorded instead of run, and then launched as a whole, any number of times."""

from __future__ import annotations

from ctypes import byref, c_void_p

from flnb.dispatch import devices
from flnb_backends.tensor.cuda.api import CAPTURE
from flnb_backends.tensor.cuda.calls import Calls

THREAD_LOCAL, RELAXED = 1, 2


class Capture(Calls):
    """The methods of `Driver` for CUDA graphs. Unmeasured: these never ran on a GPU; the backend does not use them yet.

    Attributes:
        capturing: streams that are being captured; meanwhile telemetry emits no launches and queues no timed events.
    """

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.capturing: set[int] = set()

    @property
    def captures(self) -> bool:
        """Return whether the loaded library has all functions for graphs."""
        return self._calls.keys() >= CAPTURE.keys()

    def begin_capture(self, stream: int, relaxed: bool = False) -> None:
        """Begin a capture: until `end_capture`, work in a stream, and in streams that wait for its events, is recorded.

        Until then no call may wait for that work, and this thread may not allocate on the device unless ``relaxed``.

        Raises:
            NotImplementedError: the library has no functions for graphs.
        """
        if not self.captures:
            missing = ", ".join(sorted(CAPTURE.keys() - self._calls.keys()))
            raise NotImplementedError(
                f"stream capture: the driver's library lacks {missing}; it is older than CUDA 11.4; update the driver"
            )
        self._run("cuStreamBeginCapture_v2", stream, RELAXED if relaxed else THREAD_LOCAL)
        self.capturing.add(stream)

    def end_capture(self, stream: int) -> int:
        """End a capture; returns the graph. The other captured streams must have been joined to this one by events."""
        graph = c_void_p()
        self.capturing.discard(stream)
        self._run("cuStreamEndCapture", stream, byref(graph))
        return int(graph.value or 0)

    def instantiate(self, graph: int) -> int:
        """Make a graph executable; returns the instance, which `launch_graph` takes."""
        return int(self._get("cuGraphInstantiateWithFlags", graph, 0))

    def launch_graph(self, instance: int, stream: int = 0) -> None:
        """Launch an instance in a stream; its kernels read and write the addresses with which they were captured."""
        task = devices.begin(self, stream)  # type: ignore[arg-type]
        self._run("cuGraphLaunch", instance, stream)
        if task is not None:
            task.launched("graph")

    def destroy_instance(self, instance: int) -> None:
        """Destroy an instance made by `instantiate`; launches already queued still run."""
        self._run("cuGraphExecDestroy", instance)

    def destroy_graph(self, graph: int) -> None:
        """Destroy a graph; its instances remain valid."""
        self._run("cuGraphDestroy", graph)
