"""The work of devices as events of a Chrome trace in the form of Kineto: kernels, copies, stream events, waits.

A device is a process of the trace, and each of its streams is a thread. An arrow leads from the host's call to the
task. The times of an emulated device have no meaning: from the host's first call on, its tasks are slices of 1 µs in
the order in which they ran, with the argument "emulated": 1.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from flnb_telemetry import device_words, schema

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flnb_telemetry.recording import Recording

FIRST = 1000
"""The number of the process that stands for the first device."""
CALLS = {False: "cudaLaunchKernel", True: "cudaMemcpyAsync"}


def properties(run: Recording) -> list[dict[str, Any]]:
    """Return the devices of a recording as JSON objects, with Kineto's keys id and name, and further keys of flnb."""
    if not len(run.table("device")["info"]):
        return []
    found = run.devices
    return [{"id": found.places.index(place)} | info._asdict() for place, info in found.infos.items()]


def events(run: Recording, process: int, us: Callable[[int], str]) -> Iterator[list[str]]:
    """Yield the events of devices in batches of JSON texts.

    Args:
        run: the recording.
        process: the number of the host's process.
        us: writes a time in ns as µs.
    """
    if not any(len(run.table(kind)["lane"]) for kind in ("launch", "copy", "event_recorded", "event_awaited")):
        return
    found = run.devices
    begin = run.start if not len(found.task["t0"]) else int(found.task["t0"].min())
    yield [_named(FIRST + at, f"device {place}") for at, place in enumerate(found.places)]
    names = ("seq", "lane", "route", "device", "stream", "context", "plan", "t0", "t1", "ran0", "ran1", "slot")
    rows: list[str] = []
    for at, row in enumerate(schema.tuples(found.task, *names)):
        seq, lane, route, device, stream, context, plan, t0, t1, ran0, ran1, slot = row
        where = run.catalog.contexts.items[context]
        host = {"correlation": seq, "op": run.catalog.plans.items[plan].op, "stream": stream, "device": device}
        host |= {"scope": where.scope, "phase": schema.PHASES[where.phase], "line": where.line}
        name, about = _task(run, at)
        ran = slot >= 0 or ran1  # else it is not known to have run, and all about it stands at the host's call
        call = host if ran else host | about | {"task": name} | ({"copy": 1} if route else {})
        rows.append(_slice("cuda_runtime", CALLS[bool(route)], process, lane, us(t0 - run.start), us(t1 - t0), call))
        if not ran:
            continue
        start, length = (begin + 1000 * slot, 1000) if slot >= 0 else (ran0, ran1 - ran0)
        when = us(start - run.start)
        category = "gpu_memcpy" if route else "kernel"
        rows.append(_slice(category, name, FIRST + device, stream, when, us(length), host | about))
        flow = '"cat":"ac2g","name":"ac2g"'
        rows.append(f'{{"ph":"s","id":{seq},"pid":{process},"tid":{lane},"ts":{us(t0 - run.start)},{flow}}}')
        rows.append(f'{{"ph":"f","id":{seq},"pid":{FIRST + device},"tid":{stream},"ts":{when},{flow},"bp":"e"}}')
    yield rows
    yield [*_events_and_waits(run, process, us)]


def _task(run: Recording, row: int) -> tuple[str, dict[str, Any]]:
    """Return the name of a task and its facts other than times and place; ``row`` is its row of `Devices.task`."""
    task = run.devices.task
    kernel, route, nbytes, pinned, bound, slot = (
        int(task[name][row]) for name in ("kernel", "route", "nbytes", "pinned", "bound", "slot")
    )
    about: dict[str, Any] = {"emulated": 1} if slot >= 0 else {"bound": max(0, bound)}
    if route:
        words = device_words.ROUTES[route]
        return f"Memcpy {words}", about | {"bytes": nbytes, "route": words, "pinned": pinned}
    what = run.catalog.kernels.items[kernel]
    return what.name, about | {"grid": list(what.grid), "block": list(what.block), "shared memory": what.shared}


def _events_and_waits(run: Recording, process: int, us: Callable[[int], str]) -> Iterator[str]:
    """Yield the host's calls about stream events: as slices if the host waited, otherwise as instants.

    `process` is the id of the host's process in the trace; `us` converts ns to the trace's text for a time.
    """
    found = run.devices
    names = ("t", "seq", "event", "awaited", "device", "stream")
    for t, seq, event, awaited, device, stream in schema.tuples(found.event, *names):
        name = "cudaStreamWaitEvent" if awaited else "cudaEventRecord"
        told = json.dumps({"seq": seq, "event": event, "stream": stream, "device": device})
        yield (
            f'{{"ph":"i","cat":"cuda_event","s":"t","name":"{name}","pid":{FIRST + device},"tid":{stream},'
            f'"ts":{us(t - run.start)},"args":{told}}}'
        )
    for t0, t1, event, device, stream, lane in schema.tuples(
        found.wait, "t0", "t1", "event", "device", "stream", "lane"
    ):
        about = {"event": event, "device": device, "stream": stream}
        yield _slice("cuda_runtime", "cudaSynchronize", process, lane, us(t0 - run.start), us(t1 - t0), about)


def _slice(category: str, name: str, process: int, thread: int, t: str, length: str, about: dict[str, Any]) -> str:
    return (
        f'{{"ph":"X","cat":"{category}","name":{json.dumps(name)},"pid":{process},"tid":{thread},"ts":{t},'
        f'"dur":{length},"args":{json.dumps(about)}}}'
    )


def _named(process: int, name: str) -> str:
    return f'{{"ph":"M","pid":{process},"tid":0,"ts":0,"name":"process_name","args":{{"name":{json.dumps(name)}}}}}'
