"""CUDA devices: a thin binding of the documented driver API, the same for a GPU and for the emulated device."""
