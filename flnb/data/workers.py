"""The workers of `PrefetchDataset`: threads, which run for one epoch, or processes, which stay for all epochs."""

from __future__ import annotations

import contextvars
import os
import pickle
import threading
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from flnb_telemetry.withblock import with_block

from flnb import ops
from flnb.dispatch.state import category
from flnb.tensor import Tensor

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Future, ProcessPoolExecutor
    from multiprocessing.shared_memory import SharedMemory

    from flnb.data.datasets import Dataset

ALIGN = 64
MPI = ("PMI_", "PMIX_", "HYDI_", "OMPI_")
"""The prefixes of the environment variables by which mpiexec makes a process one of its ranks."""


class Threads:
    """Load items in threads, with the backend and memory manager of the iterating thread."""

    def __init__(self, count: int) -> None:
        from concurrent.futures import ThreadPoolExecutor

        self.pool = ThreadPoolExecutor(count, "flnb-prefetch")

    def submit(self, dataset: Dataset, epoch: int, index: int) -> Future[Any]:
        """Start to load item ``index``; ``dataset`` already has the order of the epoch. Return a job for `collect`."""
        return self.pool.submit(contextvars.copy_context().run, dataset.__getitem__, index)

    def collect(self, job: Future[Any]) -> tuple[Any, ...]:
        """Wait for an item and return it, or raise its error."""
        return job.result()

    def finish(self, jobs: list[Future[Any]]) -> None:
        """End the threads; items that no thread has begun to load are cancelled."""
        self.pool.shutdown(wait=True, cancel_futures=True)


class Job(NamedTuple):
    """An item that a worker process loads, and the number of the shared block to which the worker may write, if any."""

    future: Future[Any]
    slot: int | None


class Array(NamedTuple):
    """An array that is stored in shared memory as a part of an item; ``tensor`` says whether it was a Tensor."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    offset: int
    tensor: bool


class Processes:
    """Load items in processes, which have a copy of the dataset each and return arrays through shared memory.

    Each job has a block of shared memory, the *slot* of the job. Only the job's worker writes to the slot until the
    item is collected. The first items are returned by pickling; their sizes show how large the blocks must be. All
    blocks are made and removed by the iterating process, so none is left over if a worker dies.

    Attributes:
        count: the number of processes.
        pool: the processes, None before the first item.
        need: the size in bytes of the largest item so far.
        free: the numbers of the blocks that no job uses.
        blocks: the blocks by number.
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.pool: ProcessPoolExecutor | None = None
        self.need = 0
        self.free: list[int] = []
        self.blocks: dict[int, SharedMemory] = {}
        weakref.finalize(self, _remove, self.blocks)

    def __reduce__(self) -> tuple[Any, ...]:
        return Processes, (self.count,)

    def submit(self, dataset: Dataset, epoch: int, index: int) -> Job:
        """Start to load the item ``index`` of an epoch; the first call starts the processes."""
        if self.pool is None:
            self.pool = self._start(dataset)
        slot = self._slot()
        where = None if slot is None else (slot, self.blocks[slot].name)
        with self._alive(), _no_rank():
            return Job(self.pool.submit(_load, epoch, index, where), slot)

    def collect(self, job: Job) -> tuple[Any, ...]:
        """Wait for an item and return it, or raise its error."""
        try:
            with self._alive():
                entries, size = job.future.result()
            self.need = max(self.need, size)
            with category("input"):
                return tuple(self._read(job.slot, entry) for entry in entries)
        finally:
            self._release(job.slot)

    def finish(self, jobs: list[Job]) -> None:
        """Cancel the jobs that have not begun, and wait for the others, which may still write to their blocks."""
        from concurrent.futures import wait

        wait([job.future for job in jobs if not job.future.cancel()])
        for job in jobs:
            self._release(job.slot)

    def close(self) -> None:
        """End the processes and free the blocks."""
        if self.pool is not None:
            self.pool.shutdown(wait=True, cancel_futures=True)
        self.pool = None
        self.free.clear()
        _remove(self.blocks)

    def _start(self, dataset: Dataset) -> ProcessPoolExecutor:
        """Start the processes with pickled copies of the dataset."""
        import multiprocessing
        from concurrent.futures import ProcessPoolExecutor

        try:
            pickled = pickle.dumps(dataset)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"flnb: PrefetchDataset sends worker processes a pickled copy of the {type(dataset).__name__}, and "
                f"pickling failed: {error}. Define its classes and functions at the top of a module (no lambdas), "
                f"or use threads (processes=False)"
            ) from error
        return ProcessPoolExecutor(self.count, multiprocessing.get_context("spawn"), _begin, (pickled,))

    @contextmanager
    def _alive(self) -> Iterator[None]:
        """Context manager that handles a dead worker process: ends the others, and raises an error with advice."""
        from concurrent.futures.process import BrokenProcessPool

        try:
            yield
        except BrokenProcessPool as error:
            self.close()
            raise RuntimeError(
                "flnb: a worker process of PrefetchDataset died: it was killed (out of memory, /dev/shm full?), it "
                'crashed, or, in a script without `if __name__ == "__main__":`, it could not start. The next epoch '
                "starts new workers"
            ) from error

    def _slot(self) -> int | None:
        """Reserve a block that is large enough and return its number; None while the size of items is unknown."""
        from multiprocessing.shared_memory import SharedMemory

        if not self.need:
            return None
        slot = self.free.pop() if self.free else len(self.blocks)
        block = self.blocks.get(slot)
        if block is None or block.size < self.need:
            if block is not None:
                _remove({slot: block})
            self.blocks[slot] = SharedMemory(create=True, size=self.need)
        return slot

    def _release(self, slot: int | None) -> None:
        """Make block number ``slot`` available for other jobs; None, for a job without a block, does nothing."""
        if slot in self.blocks:
            self.free.append(slot)

    def _read(self, slot: int | None, entry: Any) -> Any:
        """Copy an array out of block number ``slot``; an entry that is not in shared memory is returned unchanged."""
        if not isinstance(entry, Array) or slot is None:
            return entry
        values: Any = np.ndarray(entry.shape, entry.dtype, self.blocks[slot].buf, entry.offset)
        return ops.asarray(values) if entry.tensor else values.copy()


@with_block
def _no_rank() -> Iterator[None]:
    """Hide MPI's environment variables from child processes, which would otherwise pose as this MPI rank and crash."""
    hidden = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith(MPI)}
    try:
        yield
    finally:
        os.environ.update(hidden)


def _remove(blocks: dict[int, SharedMemory]) -> None:
    """Free blocks of shared memory."""
    for block in blocks.values():
        block.close()
        block.unlink()
    blocks.clear()


# In the worker ----------------------------------------------------------------------------------------------------

_pickled = b""
_copies: list[Dataset] = []
"""A list of two datasets: the unpickled one, and a copy of it in the order of the latest epoch."""
_epoch = -1
_attached: dict[int, SharedMemory] = {}


def _begin(pickled: bytes) -> None:
    """Prepare a new process; store the pickled dataset, which `_at` unpickles when the first item is requested.

    An error in unpickling is then an error of that item, which is reported to the iterating process.
    """
    import signal

    global _pickled
    _pickled = pickled
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the iterating process
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process when its parent process ends, even if the parent was killed and could not end its workers."""
    import multiprocessing

    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _at(epoch: int) -> Dataset:
    """Return this process's copy of the dataset in the order of an epoch."""
    global _epoch, _pickled
    if not _copies:
        try:
            dataset = pickle.loads(_pickled)
        except Exception as error:
            raise RuntimeError(
                f"flnb: a worker process of PrefetchDataset could not unpickle the dataset: {error}. Classes and "
                f"functions must be importable from a module (those of a notebook's cells are not), or use threads"
            ) from error
        _copies[:], _pickled = [dataset, dataset], b""
    if epoch != _epoch:
        _copies[1], _epoch = _copies[0]._at_epoch(epoch), epoch
    return _copies[1]


def _load(epoch: int, index: int, where: tuple[int, str] | None) -> tuple[list[Any], int]:
    """Load an item; its arrays are written to shared memory if they fit.

    Args:
        epoch, index: the epoch, and the item's number in it.
        where: number and name of the block of shared memory that may be used.

    Returns:
        The item's entries, with an `Array` for each array that was written to the block, and the arrays' size in bytes.
    """
    try:
        item = _at(epoch)[index]
    except Exception as error:
        raise _sendable(error)  # noqa: B904 - it is the same error, or stands for it
    size = sum(-(-entry.nbytes // ALIGN) * ALIGN for entry in item if _is_array(entry))
    block = _attach(*where) if where else None
    if block is None or block.size < size:
        return list(item), size
    entries: list[Any] = []
    offset = 0
    for entry in item:
        if not _is_array(entry):
            entries.append(entry)
            continue
        values = entry.numpy() if isinstance(entry, Tensor) else entry
        np.ndarray(values.shape, values.dtype, block.buf, offset)[...] = values
        entries.append(Array(values.dtype, values.shape, offset, isinstance(entry, Tensor)))
        offset += -(-values.nbytes // ALIGN) * ALIGN
    return entries, size


def _is_array(entry: Any) -> bool:
    """Return whether an entry can be written to shared memory."""
    return isinstance(entry, Tensor) or (isinstance(entry, np.ndarray) and not entry.dtype.hasobject)


def _attach(slot: int, name: str) -> SharedMemory:
    """Open the block of shared memory called ``name`` in this process, or return it if it is open.

    A block that was open for the number ``slot`` under another name is closed.
    """
    from multiprocessing.shared_memory import SharedMemory

    block = _attached.get(slot)
    if block is None or block.name != name:
        if block is not None:
            block.close()
        block = _attached[slot] = SharedMemory(name)
    return block


def _sendable(error: Exception) -> Exception:
    """Return the error itself, or a RuntimeError with its type and text if it cannot be pickled and unpickled."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}").with_traceback(error.__traceback__)
    return error
