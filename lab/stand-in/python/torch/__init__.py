"""A stand-in for PyTorch, for tests of the companion on machines without GPUs.

Its contract, each part as PyTorch 2 has it:

- `torch.cuda.is_initialized()` is False until the first allocation, and asking changes nothing;
- `torch.cuda.memory_stats(device)` is a flat dictionary with `allocated_bytes.all.current`, `.peak`,
  `reserved_bytes.all.current`, `.peak` and `inactive_split_bytes.all.current`;
- reserved memory grows in blocks of 2 MiB and is kept after a free; `empty_cache()` returns it;
- a request above the capacity frees the cache, is tried again, and only then is given up: the observer is called
  with (device, requested, allocated, free), and `torch.OutOfMemoryError` is raised;
- `torch._C._cuda_attach_out_of_memory_observer(f)` initialises CUDA, as older versions do (pytorch#107330);
- `torch.optim.optimizer.register_optimizer_step_post_hook(f)` calls f(optimizer, args, kwargs) after each step of
  every optimizer.

TORCH_STAND_IN_MIB is the capacity of the one device; without it, that of the attempt's slice, or 1024. `calls` records what a companion must not call.
"""

import os
import sys
import types

# Whoever measures something with it must be able to tell.
__version__ = "stand-in"

BLOCK = 2 * 1024 * 1024
calls = []


class OutOfMemoryError(RuntimeError):
    pass


class _Device:
    def __init__(self):
        mib, slice_bytes = os.environ.get("TORCH_STAND_IN_MIB"), os.environ.get("TESSERA_GPU_MEMORY_BYTES")
        self.capacity = int(mib) << 20 if mib else int(slice_bytes or 1 << 30)
        self.initialized = False
        self.allocated = self.allocated_peak = 0
        self.reserved = self.reserved_peak = 0
        self.observers = []

    def initialize(self):
        self.initialized = True

    def take(self, size):
        self.initialize()
        needed = self.allocated + size
        if needed > self.reserved:
            blocks = -(-needed // BLOCK) * BLOCK
            if blocks > self.capacity:
                # The cache holds nothing that would be enough: the second try fails, too.
                self.reserved = -(-self.allocated // BLOCK) * BLOCK
                free = self.capacity - self.reserved
                for observer in self.observers:
                    observer(0, size, self.allocated, free)
                raise OutOfMemoryError(
                    "CUDA out of memory. Tried to allocate %.2f MiB. GPU 0 has a total capacity of "
                    "%.2f GiB of which %.2f MiB is free." % (size / 2**20, self.capacity / 2**30, free / 2**20)
                )
            self.reserved = blocks
        self.allocated = needed
        self.allocated_peak = max(self.allocated_peak, self.allocated)
        self.reserved_peak = max(self.reserved_peak, self.reserved)

    def give(self, size):
        self.allocated -= size

    def empty_cache(self):
        self.reserved = -(-self.allocated // BLOCK) * BLOCK


_device = _Device()


class Tensor:
    """Bytes on the device."""

    def __init__(self, size):
        _device.take(size)
        self.size = size

    def __del__(self):
        if hasattr(self, "size"):
            _device.give(self.size)


def empty(size):
    """Allocates so many bytes."""
    return Tensor(size)


cuda = types.ModuleType("torch.cuda")
cuda.OutOfMemoryError = OutOfMemoryError
cuda.is_initialized = lambda: _device.initialized
cuda.is_available = lambda: True
cuda.device_count = lambda: 1


def _memory_stats(device=None):
    if not _device.initialized:
        _device.initialize()
        calls.append("memory_stats before the context")
    return {
        "allocated_bytes.all.current": _device.allocated,
        "allocated_bytes.all.peak": _device.allocated_peak,
        "reserved_bytes.all.current": _device.reserved,
        "reserved_bytes.all.peak": _device.reserved_peak,
        # It has no segments of which a part is free.
        "inactive_split_bytes.all.current": 0,
    }


def _forbidden(name, effect=lambda: None):
    def call(*_args, **_kwargs):
        calls.append(name)
        effect()

    return call


cuda.memory_stats = _memory_stats
cuda.empty_cache = _forbidden("empty_cache", _device.empty_cache)
cuda.reset_peak_memory_stats = _forbidden("reset_peak_memory_stats")
cuda.memory = types.ModuleType("torch.cuda.memory")
cuda.memory._record_memory_history = _forbidden("_record_memory_history")
sys.modules["torch.cuda"] = cuda

_C = types.ModuleType("torch._C")


def _attach(observer):
    if not _device.initialized:
        calls.append("observer before the context")
    _device.initialize()
    _device.observers.append(observer)


_C._cuda_attach_out_of_memory_observer = _attach
sys.modules["torch._C"] = _C

from . import optim  # noqa: E402
