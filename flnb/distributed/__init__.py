"""Distributed programs: several ranks run the same code and exchange tensors by collective calls.

A rank is a process that ``flnb launch``, ``mpiexec``, Slurm or ipyparallel started and that has called `init`, or a
thread of `run_threads`. Without either there is one rank, and every function here works as well.

>>> import flnb
>>> flnb.distributed.rank(), flnb.distributed.size()
(0, 1)

To find out which rank is late and why, make a recording ``run`` on every rank and save it by
``run.save(f"run-{flnb.distributed.rank()}.flnb")``. ``flnb merge run.flnb run-*.flnb`` merges the files, and
``flnb.load_run("run.flnb").collectives`` has the answer.
"""

from typing import NoReturn

from flnb_backends.comm.forwarding import Forwarding
from flnb_backends.comm.topology import Topology

from flnb.dispatch.groups import current
from flnb.dispatch.spelling import unknown
from flnb.distributed.asynchronous import ASGD, EASGD
from flnb.distributed.batch_norm import SyncBatchNorm
from flnb.distributed.checkpoint import save_checkpoint
from flnb.distributed.clocks import sync_clocks
from flnb.distributed.cluster import Cluster
from flnb.distributed.collectives import (
    all_gather,
    all_reduce,
    barrier,
    broadcast,
    recv,
    reduce_scatter,
    send,
)
from flnb.distributed.data_parallel import DataParallel
from flnb.distributed.failures import RankError
from flnb.distributed.pipeline import Pipeline
from flnb.distributed.ranks import init, rank, run_threads, set_communicator, size, use_communicator
from flnb.distributed.sampler import shard
from flnb.distributed.sharded import Sharded
from flnb.distributed.simulation import simulate
from flnb.distributed.started import Started, all_reduce_multiple, start_all_reduce, sync
from flnb.distributed.tensor_parallel import ColumnLinear, RowLinear
from flnb.distributed.zero_memory import zero_memory
from flnb.interface.communicator import CollectiveError, Communicator

__all__ = [
    "ASGD", "Cluster", "CollectiveError", "ColumnLinear", "Communicator", "DataParallel", "EASGD", "Forwarding",
    "Pipeline", "RankError", "RowLinear", "Sharded", "Started", "SyncBatchNorm", "Topology", "all_gather",
    "all_reduce", "all_reduce_multiple", "barrier", "broadcast", "current", "init", "rank", "recv", "reduce_scatter",
    "run_threads", "save_checkpoint", "send", "set_communicator", "shard", "simulate", "size", "start_all_reduce",
    "sync", "sync_clocks", "use_communicator", "zero_memory",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    raise unknown("module 'flnb.distributed'", name, __all__)
