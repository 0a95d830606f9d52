"""Datasets that wrap one another, scikit-learn's digits, and a progress bar."""

from flnb.data.datasets import BatchDataset, Dataset, ShuffleDataset, TensorDataset
from flnb.data.digits import digits
from flnb.data.progress import progress

__all__ = ["BatchDataset", "Dataset", "ShuffleDataset", "TensorDataset", "digits", "progress"]
