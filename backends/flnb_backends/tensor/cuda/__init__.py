"""The CUDA backend: a thin binding of the driver API, for GPUs and the emulated device, and the ops built on it."""
