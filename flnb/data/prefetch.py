"""A dataset whose next items are loaded in advance, by threads or processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from itertools import islice
from typing import Any

from flnb.data.datasets import Dataset, Indices
from flnb.data.workers import Processes, Threads


class PrefetchDataset(Dataset):
    """Load the next items in worker threads or processes while one is used; items and their order stay the same.

    Items are loaded in advance only by iterating, not by indexing, so this should be the outermost dataset. An error in
    a worker is raised, with the worker's stack, when the iteration reaches the item; then the epoch ends.

    Threads suffice if loading waits for files or spends its time in NumPy. Processes are new Python processes (started
    by *spawn*), each with a pickled copy of the dataset, made when the first epoch begins; they return arrays through
    shared memory and run until `close` or the end of the program. They can only import classes and functions from
    modules, not from the cells of a notebook, and a script needs ``if __name__ == "__main__":`` around its main
    program.

    Args:
        dataset: the dataset whose items are loaded.
        workers: the number of threads or processes.
        ahead: the largest number of items that are loaded or ready at a time; twice the number of workers by default.
        processes: use processes rather than threads.

    >>> import flnb
    >>> pairs = flnb.data.BatchDataset(flnb.data.TensorDataset(flnb.arange(5)), 2)
    >>> batches = flnb.data.PrefetchDataset(pairs, workers=2)
    >>> [x.tolist() for (x,) in batches]
    [[0, 1], [2, 3], [4]]

    Raises:
        ValueError: ``workers`` or ``ahead`` is below 1.
        RuntimeError: a worker process died (raised while iterating).
        TypeError: the dataset cannot be pickled for processes (raised while iterating).
    """

    def __init__(self, dataset: Dataset, workers: int = 2, ahead: int | None = None, processes: bool = False) -> None:
        ahead = 2 * workers if ahead is None else ahead
        if workers < 1 or ahead < 1:
            raise ValueError(f"flnb: PrefetchDataset takes workers >= 1 and ahead >= 1, got {workers} and {ahead}")
        self.dataset, self.workers, self.ahead = dataset, workers, ahead
        self._processes = Processes(workers) if processes else None

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.dataset[self._check(index)]

    def take(self, indices: Indices) -> tuple[Any, ...]:
        return self.dataset.take(indices)

    def close(self) -> None:
        """End the worker processes and free their memory; the next epoch starts new ones, with a new copy."""
        if self._processes is not None:
            self._processes.close()

    def _items(self, epoch: int, start: int) -> Generator[tuple[Any, ...], None, None]:
        loader = self._processes or Threads(self.workers)
        numbers = iter(range(start, len(self)))
        pending: deque[tuple[int, Any]] = deque()
        try:
            for number in islice(numbers, self.ahead):
                pending.append((number, loader.submit(self.dataset, epoch, number)))
            while pending:
                number, job = pending.popleft()
                try:
                    item = loader.collect(job)
                except SystemExit as error:  # raised in a worker: must not end the whole program
                    raise RuntimeError(
                        f"flnb: SystemExit({error.code!r}) in a worker of PrefetchDataset "
                        f"at item {number} of {len(self)}"
                    ) from error
                except Exception as error:
                    error.add_note(f"flnb: while a worker of PrefetchDataset loaded item {number} of {len(self)}")
                    raise
                for following in islice(numbers, 1):
                    pending.append((following, loader.submit(self.dataset, epoch, following)))
                yield item
        finally:
            loader.finish([job for _, job in pending])
