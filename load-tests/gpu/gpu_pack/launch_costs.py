"""A process that measures the time of launch calls: through the shim and past it, by turns."""

import json
import os
import sys
import time

from . import driver as cuda
from .part import spread
from .settle import Unsteady, attach, iterations_per_ms, settle

LAUNCHES = 250


def real_driver():
    """Returns the driver that lies behind the shim in this process."""
    with open("/proc/self/maps") as file:
        paths = {line.split(None, 5)[5].strip() for line in file if "libcuda.so" in line}
    for path in paths:
        driver = cuda.Driver(path)
        if driver.counters() is None:
            return driver
    raise RuntimeError("the driver behind the shim is not among %s" % sorted(paths))


def main():
    wanted, blocks = sys.argv[1], int(sys.argv[2])
    driver = cuda.Driver().open()
    kernel = cuda.work(driver, "tessera_empty", 0.002, iterations_per_ms(), 1, 32)
    attach(driver, kernel)
    unsteady = Unsteady(driver, wanted)
    report = {"settled_s": settle(driver, wanted, lambda: (kernel.go(), driver.synchronize()))}

    def block(launch):
        unsteady.go()
        driver.synchronize()
        begun = time.perf_counter_ns()
        for _ in range(LAUNCHES):
            launch.go()
        took = (time.perf_counter_ns() - begun) / LAUNCHES
        driver.synchronize()
        return took

    through, past = [], []
    if driver.counters() is None:
        through = [block(kernel) for _ in range(blocks)]
        report["launch_ns"] = spread(through, 0)
    else:
        # The same launch with the driver's own function.
        direct = cuda.Launch(real_driver(), kernel.function, [value.value for value in kernel.values], 1, 32)
        before = driver.counters()
        for _ in range(blocks):
            past.append(block(direct))
            through.append(block(kernel))
        after = driver.counters()
        report["launch_ns"], report["past_the_shim_ns"] = spread(through, 0), spread(past, 0)
        differences = [one - other for one, other in zip(through, past)]
        report["shim_ns"] = spread(differences, 0)
        own = LAUNCHES + 2 * bool(unsteady.kernel)
        report["launched"], report["counted"] = blocks * own, after["launches"] - before["launches"]
        report["lost"] = after["lost"] - before["lost"]
    report["role"] = driver.role()
    print(json.dumps(report), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
