"""File formats of other programs: PyTorch's memory snapshots, read and written without PyTorch."""
