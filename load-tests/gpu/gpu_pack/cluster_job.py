"""A job of part 9, by the CUDA driver alone: `cluster_job.py hold MIB SECONDS` or `cluster_job.py fill`.

It writes what it saw as JSON. `fill` takes a GiB at a time until the driver refuses, and ends as programs do then.
"""

import ctypes
import json
import os
import sys
import time

from . import driver as cuda
from .settle import iterations_per_ms

OUT_OF_MEMORY = 2


def memory(driver):
    """Returns what the driver calls free and total, in MiB."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return {"free_mib": free.value >> 20, "total_mib": total.value >> 20}


def fill(driver):
    """Takes memory until there is none; returns how much that was, in GiB."""
    taken = 0
    pointer = ctypes.c_uint64()
    while True:
        code = driver.library.cuMemAlloc_v2(ctypes.byref(pointer), ctypes.c_size_t(1 << 30))
        if code == OUT_OF_MEMORY:
            return taken
        if code != 0:
            raise cuda.CudaError("cuMemAlloc_v2 returned %d" % code)
        taken += 1


def main():
    driver = cuda.Driver().open()
    report = {
        "multiprocessors": driver.attribute(16), "device": driver.name(), "uuid": driver.uuid(), "uid": os.getuid(),
        "began": time.time(), **memory(driver),
        "environment": {name: value for name, value in os.environ.items() if name.startswith(("TESSERA_", "CUDA_"))
                        and "TOKEN" not in name},
    }
    if sys.argv[1] == "fill":
        report["taken_gib"] = fill(driver)
        print(json.dumps(report), flush=True)
        print("RuntimeError: CUDA error: out of memory (CUDA_ERROR_OUT_OF_MEMORY)", file=sys.stderr, flush=True)
        sys.exit(1)
    if int(sys.argv[2]):
        driver.allocate(int(sys.argv[2]) << 20)
    # Thirds of the time on the device.
    kernel, tasks = cuda.work(driver, "tessera_job", 1, iterations_per_ms(), 32, 128), []
    until = time.monotonic() + float(sys.argv[3])
    while time.monotonic() < until:
        begun = time.monotonic()
        kernel.go()
        driver.synchronize()
        tasks.append((time.monotonic() - begun) * 1e3)
        time.sleep(0.002)
    counters = driver.counters()
    report.update(ended=time.time(), tasks=len(tasks), task_ms=round(sorted(tasks)[len(tasks) // 2], 3), shim=counters)
    print(json.dumps(report), flush=True)
    driver.close()


if __name__ == "__main__":
    main()
