"""Exploration of backends: comparing them op by op, finding the first op that differs, re-running a recorded op."""

from flnb.dispatch.recording import record
from flnb.explore.calls import OpCall, digest, generator, run_op, tensor
from flnb.explore.capture import RecordedOp, inputs_of
from flnb.explore.compare import compare_backends
from flnb.explore.difference import Difference, compare_op
from flnb.explore.divergence import Divergence, bisect
from flnb.explore.runs import compare_runs

__all__ = [
    "Difference", "Divergence", "OpCall", "RecordedOp", "bisect", "compare_backends", "compare_op",
    "compare_runs", "digest",
    "generator", "inputs_of", "record", "run_op", "tensor",
]  # fmt: skip
