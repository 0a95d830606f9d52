"""File formats of other programs: PyTorch's memory snapshots and profiler traces, read and written without PyTorch."""
