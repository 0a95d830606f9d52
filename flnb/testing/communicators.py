"""`flnb.testing.check_communicator` compares a communicator's operations with NumPy, for many dtypes and sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from flnb import distributed
from flnb.dispatch import communication
from flnb.explore.report import Report, Result
from flnb.interface.communicator import Communicator

Wrap = Callable[[], Communicator]
Rule = Callable[[int, int, int, Any], Iterator[tuple[Any, Any]]]

COUNTS = (0, 1, 3, 1000)
"""The numbers of elements with which operations are tested."""
NAMES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64", "complex64", "complex128")
REDUCTIONS = {"sum": np.add, "max": np.maximum, "min": np.minimum}


def check_communicator(wrap: Wrap | None = None, ranks: tuple[int, ...] = (1, 2, 3, 4)) -> Report:
    """Test a communicator: every operation, reduction and dtype, with empty, single and odd numbers of elements.

    In a program that runs under mpiexec, call this function on every rank: the checks run on the ranks of the program.
    In a single process, they run on ranks that are threads.

    Args:
        wrap: a class or function that is called without arguments on each rank and returns the communicator to test,
            which may call the active one, `flnb.distributed.current()`. By default the active one itself is tested.
        ranks: the numbers of threads to test with, one after another; unused under mpiexec.

    Returns:
        A report, which is true if all results equal those of NumPy. If ranks are threads, it is the report of rank 0.

    >>> import flnb
    >>> bool(flnb.testing.check_communicator(ranks=(1, 2)))
    True
    """
    if distributed.size() > 1:
        name = getattr(wrap, "__name__", distributed.current().name)
        return Report(f"communicator {name}", tuple(_results(wrap)))
    found: list[Result] = []
    for count in ranks:
        by_rank = distributed.run_threads(count, lambda: list(_results(wrap)))
        found += [row for rows in by_rank[::-1] for row in rows]  # that of rank 0 is the last
    rows = [[row for row in found if row.check == title] for title in RULES]
    results = [next((r for r in same if not r.passed), same[-1]) for same in rows if same]
    return Report(f"communicator {getattr(wrap, '__name__', 'threads')}", tuple(results))


def _results(wrap: Wrap | None) -> Iterator[Result]:
    """Yield the results of all checks on this rank.

    ``wrap`` makes the communicator to check; None stands for the active communicator.
    """
    chosen = wrap() if wrap is not None else distributed.current()
    with distributed.use_communicator(chosen):
        for title, rule in RULES.items():
            yield _result(title, rule)


def _result(title: str, rule: Rule) -> Result:
    """Run the check ``rule`` on all dtypes and numbers of elements, up to the first failure."""
    rank, size, tried = distributed.rank(), distributed.size(), 0
    try:
        for dtype in _dtypes():
            for count in COUNTS:
                for got, expected in rule(rank, size, count, dtype):
                    tried += 1
                    if got.dtype != expected.dtype or not np.array_equal(got, expected):
                        reason = (
                            f"rank {rank} of {size}: {dtype.name}[{count}] gave {_few(got)}, expected {_few(expected)}"
                        )
                        return Result(title, False, tried, reason)
    except Exception as error:
        return Result(title, False, tried, f"rank {rank} of {size}: {type(error).__name__}: {error}")
    return Result(title, True, tried)


def _dtypes() -> list[np.dtype[Any]]:
    found = [np.dtype(name) for name in NAMES]
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        return found
    return [*found, np.dtype(ml_dtypes.bfloat16)]


def _few(array: Any) -> str:
    return str(array.reshape(-1)[:4].tolist()).replace("]", ", ...]" if array.size > 4 else "]")


def _data(rank: int, count: int, dtype: Any) -> Any:
    """Return the ``count`` elements of a rank's input: small whole numbers, so that sums are exact in every dtype."""
    return ((np.arange(count) * 7 + rank * 3) % 11).astype(dtype)


def _reduced(size: int, count: int, dtype: Any, op: str) -> Any:
    total = _data(0, count, dtype)
    for rank in range(1, size):
        total = REDUCTIONS[op](total, _data(rank, count, dtype)).astype(dtype)
    return total


def _reductions(dtype: Any) -> list[str]:
    return ["sum"] if dtype.kind == "c" else list(REDUCTIONS)


def _all_reduce(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    for op in _reductions(dtype):
        buffer = _data(rank, count, dtype)
        communication.run("all_reduce", buffer, op)
        yield buffer, _reduced(size, count, dtype, op)


def _several_at_once(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    buffers = [_data(rank + i, count, dtype) for i in range(3)]
    pending = [communication.start("all_reduce", buffer, "sum") for buffer in buffers]
    for one in pending[::-1]:
        one.wait()
    for i, buffer in enumerate(buffers):
        expected = _data(i, count, dtype)
        for other in range(1, size):
            expected = (expected + _data(other + i, count, dtype)).astype(dtype)
        yield buffer, expected


def _multiple(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    for op in _reductions(dtype):
        buffers = [_data(rank, count, dtype), _data(rank, 7, np.dtype(np.int32)), _data(rank, 0, dtype)]
        communication.start_multiple(buffers, op).wait()
        for buffer in buffers:
            yield buffer, _reduced(size, buffer.size, buffer.dtype, op)


def _all_gather(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    out = np.zeros((size, count), dtype)
    communication.run("all_gather", _data(rank, count, dtype), out)
    yield out, np.stack([_data(other, count, dtype) for other in range(size)])


def _reduce_scatter(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    for op in _reductions(dtype):
        out = np.zeros(count, dtype)
        communication.run("reduce_scatter", _data(rank, size * count, dtype), out, op)
        yield out, _reduced(size, size * count, dtype, op)[rank * count : (rank + 1) * count]


def _broadcast(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    for root in range(size):
        buffer = _data(rank, count, dtype)
        communication.run("broadcast", buffer, root)
        yield buffer, _data(root, count, dtype)


def _ring(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    if size == 1:
        return
    before, after = (rank - 1) % size, (rank + 1) % size
    got = np.zeros(count, dtype)
    sent = communication.start("send", _data(rank, count, dtype), after, 5)
    communication.run("recv", got, before, 5)
    sent.wait()
    yield got, _data(before, count, dtype)
    sent_both = [communication.start("send", _data(rank + i, count, dtype), after, 5) for i in range(2)]
    both = [np.zeros(count, dtype) for _ in range(2)]
    for one in [communication.start("recv", each, before, 5) for each in both][::-1] + sent_both:
        one.wait()
    for i, each in enumerate(both):
        yield each, _data(before + i, count, dtype)


def _barrier(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    communication.run("barrier")
    yield np.zeros(1), np.zeros(1)


def _split(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    if count != COUNTS[-1] or dtype != np.float32:
        return
    half = distributed.current().split(rank % 2, -rank)
    members = [other for other in range(size)[::-1] if other % 2 == rank % 2]
    out = np.zeros((half.size, count), dtype)
    communication.run("all_gather", _data(rank, count, dtype), out, on=half)
    yield out, np.stack([_data(other, count, dtype) for other in members])
    half.close()


def _board(rank: int, size: int, count: int, dtype: Any) -> Iterator[tuple[Any, Any]]:
    here = distributed.current()
    yield np.array(here.size == 1 or here.board is not None), np.array(True)


RULES: dict[str, Rule] = {
    "ranks see each other's calls on a board": _board,
    "all_reduce gives every rank the reduction": _all_reduce,
    "several all_reduce at once do not mix": _several_at_once,
    "all_reduce_multiple reduces each": _multiple,
    "all_gather keeps the order of ranks": _all_gather,
    "reduce_scatter gives each rank its part": _reduce_scatter,
    "broadcast gives the root's values": _broadcast,
    "send and recv carry a ring": _ring,
    "barrier returns": _barrier,
    "split makes groups in the order of keys": _split,
}
