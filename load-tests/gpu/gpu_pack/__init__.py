"""What `run.sh` measures on a machine with a GPU: Python's standard library, the driver by ctypes, and PyTorch
where it is installed."""
