"""What each rank runs in a trial: all ranks make a call, then one does what the command line says."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import flnb
from flnb import distributed

TIMEOUT = 2.0
kind, hosts, faulty = sys.argv[1], sys.argv[2] == "hosts", int(sys.argv[3])
receiver = (faulty + 1) % 3


def misbehave(x: flnb.Tensor) -> flnb.Tensor:
    """Note the time, and do it; a call of the others follows, with what is returned."""
    Path("fault").write_text(str(time.monotonic()))
    match kind:
        case "killed" | "killed in a group":
            os.kill(os.getpid(), signal.SIGKILL)
        case "stopped":
            os.kill(os.getpid(), signal.SIGSTOP)
        case "raises":
            raise ValueError("a mistake of the user")
        case "ends" | "ends in a group" | "ends before a message":
            sys.exit()
        case "late":
            time.sleep(30)
        case "other count":
            return flnb.ones(1 << 15)
        case "other dtype" | "other dtype at the end":
            return flnb.ones(1 << 16, dtype=flnb.int32)
        case "other op":
            distributed.broadcast(x, root=0)
        case "message of other dtype":
            distributed.send(flnb.ones(1 << 16, dtype=flnb.int32), to=receiver)
        case "message of other count":
            distributed.send(flnb.ones(1 << 15), to=receiver)
    return x


def main() -> None:
    """One good call, and one with the fault."""
    communicator = distributed.current()
    communicator.timeout = TIMEOUT
    rank = distributed.rank()
    x = flnb.ones(1 << 16)
    if "in a group" in kind:
        communicator = distributed.set_communicator(communicator.split(0, -rank))  # rank 2 is number 0 of the group
        communicator.timeout = TIMEOUT
    assert distributed.all_reduce(x)[0].item() == distributed.size()
    if kind == "mpiexec killed":
        Path(f"ready_{rank}").touch()
        while True:
            distributed.barrier()
    if rank == faulty:  # of all, not of the group
        x = misbehave(x)
    if rank == receiver and "message" in kind:
        distributed.recv(x, source=faulty)
    distributed.all_reduce(x)
    for _ in range(40 if hosts and "at the end" not in kind else 0):  # other hosts are heard of now and then only
        time.sleep(0.05)
        distributed.all_reduce(x)


if hosts:  # ranks 0 and 1 on one, rank 2 on another
    os.environ["FLNB_HOST"] = f"host {int(os.environ['FLNB_RANK']) // 2}"
distributed.init()
try:
    main()
except distributed.CollectiveError as error:
    Path(f"said_{os.environ['FLNB_RANK']}").write_text(json.dumps([time.monotonic(), str(error)]))
    raise
