"""Distribution of a dataset's samples among ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from flnb.data import ResampleDataset, round_robin
from flnb.dispatch.groups import current

if TYPE_CHECKING:
    from flnb.data import Dataset


def shard(dataset: Dataset, batch: int = 1, last: str = "keep") -> ResampleDataset:
    """Return this rank's share of a dataset: batches of neighbouring samples are assigned to the ranks in turn.

    Each sample is in the share of exactly one rank. To shuffle, do so first: ``shard(ShuffleDataset(dataset, seed))``
    uses a new order in each epoch, which is the same on all ranks.

    Args:
        dataset: the whole dataset, the same on every rank.
        batch: the number of neighbouring samples that are dealt to a rank at once; pass the size of the batches that
            are made of the result. Samples left at the end are dealt evenly: of 10 samples in batches of 2, three
            ranks get 4, 3 and 3.
        last: what to do with samples at the end that cannot be dealt evenly. "keep" deals them, so that some ranks have
            one more sample (train inside ``DataParallel.uneven``); "pad" also deals some of the first samples again;
            "drop" leaves them out.

    Raises:
        ValueError: ``last`` is not "keep", "pad" or "drop".

    >>> import flnb
    >>> numbers = flnb.data.TensorDataset(flnb.arange(5))
    >>> def mine(last):
    ...     return [int(x) for (x,) in flnb.distributed.shard(numbers, last=last)]
    >>> for last in ("keep", "pad", "drop"):
    ...     flnb.distributed.run_threads(2, mine, last)
    [[0, 2, 4], [1, 3]]
    [[0, 2, 4], [1, 3, 0]]
    [[0, 2], [1, 3]]
    """
    here, count = current(), len(dataset)
    if last not in ("keep", "pad", "drop"):
        raise ValueError(f"shard: got last={last!r}, expected 'keep', 'pad' or 'drop'")
    rest = count % here.size
    dealt = count + (here.size - rest if rest and count and last == "pad" else 0) - (rest if last == "drop" else 0)
    mine = round_robin(dealt, here.rank, here.size, batch, allow_empty=True)
    return ResampleDataset(dataset, mine % max(count, 1) if count else np.empty(0, np.int64))
