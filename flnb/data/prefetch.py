"""Items made ahead of their use, in order, by threads or by processes."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from itertools import islice
from typing import Any

from flnb.data.datasets import Dataset, Indices
from flnb.data.workers import Processes, Threads

__all__ = ["PrefetchDataset"]


class PrefetchDataset(Dataset):
    """Prepare up to `ahead` of the next items in `workers` while one is used; items and order stay the same.

    It is the outermost dataset: only iterating prefetches, indexing asks `dataset` itself. Threads suffice if loading
    waits for files or spends its time in NumPy. With `processes=True` each worker is a new Python process (started by
    *spawn*) with a pickled copy of `dataset`, made when the first epoch begins, until `close()` or the end; arrays are
    returned through shared memory. Classes and functions must then be importable, which those of a notebook's cells are
    not, and a script needs `if __name__ == "__main__":` around its main program.

    An error in a worker is raised here, in its item's turn and with the worker's stack. The epoch then ends.

    >>> import flnb
    >>> pairs = flnb.data.BatchDataset(flnb.data.TensorDataset(flnb.arange(5)), 2)
    >>> batches = flnb.data.PrefetchDataset(pairs, workers=2)
    >>> [x.tolist() for (x,) in batches]
    [[0, 1], [2, 3], [4]]

    Raises:
        RuntimeError: when iterated, if a worker process died.
        TypeError: when iterated with processes, a dataset that cannot be pickled.
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
        """End the worker processes and free their memory; the next epoch starts new ones with a new copy."""
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
                except SystemExit as error:  # of one worker: it must not end the program, and silently
                    raise RuntimeError(
                        f"flnb: SystemExit({error.code!r}) in a worker of PrefetchDataset "
                        f"at item {number} of {len(self)}"
                    ) from error
                except Exception as error:
                    error.add_note(f"flnb: while a worker of PrefetchDataset made item {number} of {len(self)}")
                    raise
                for following in islice(numbers, 1):
                    pending.append((following, loader.submit(self.dataset, epoch, following)))
                yield item
        finally:
            loader.finish([job for _, job in pending])
