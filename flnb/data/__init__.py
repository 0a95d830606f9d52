"""Datasets that wrap one another, scikit-learn's digits, CIFAR-10's files, and a progress bar."""

from typing import NoReturn

from flnb.data.batch import BatchDataset, padded
from flnb.data.blob import BlobDataset, FileBlobDataset
from flnb.data.cifar import CIFAR10_CLASSES, cifar10
from flnb.data.combine import ConcatDataset, MergeDataset, TransformDataset
from flnb.data.datasets import Dataset, TensorDataset, stacked
from flnb.data.digits import digits
from flnb.data.order import ResampleDataset, ShuffleDataset, SpanDataset, round_robin
from flnb.data.prefetch import PrefetchDataset
from flnb.data.progress import progress
from flnb.dispatch.spelling import unknown
from flnb.ops.documentation import readable

__all__ = [
    "CIFAR10_CLASSES", "BatchDataset", "BlobDataset", "ConcatDataset", "Dataset", "FileBlobDataset", "MergeDataset",
    "PrefetchDataset", "ResampleDataset", "ShuffleDataset", "SpanDataset", "TensorDataset", "TransformDataset",
    "cifar10", "digits", "padded", "progress", "round_robin", "stacked",
]  # fmt: skip


def __getattr__(name: str) -> NoReturn:
    raise unknown("module 'flnb.data'", name, __all__)


for _name in __all__:
    readable(globals()[_name])
