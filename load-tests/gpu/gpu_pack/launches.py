"""A process that launches in every way of the driver's interface, and compares with the shim's counters."""

import json
import os
import sys

from . import driver as cuda
from .settle import attach, iterations_per_ms


def main():
    count = int(sys.argv[1])
    driver = cuda.Driver().open()
    kernel = cuda.work(driver, "tessera_counted", 0.002, iterations_per_ms(), 1, 32)
    before_session = attach(driver, kernel)
    stream = driver.stream()
    kernels = before_session

    def counted():
        counters = driver.counters()
        return counters["launches"] + counters["passed"]

    ways = {}

    def way(name, launch, each=1):
        nonlocal kernels
        before = counted()
        for _ in range(count):
            launch()
        driver.synchronize()
        kernels += count * each
        ways[name] = {"launched": count, "counted": counted() - before}

    def exists(symbol):
        return hasattr(driver.library, symbol)

    way("cuLaunchKernel", lambda: kernel.go())
    way("cuLaunchKernel on a stream", lambda: kernel.go(stream))
    way("cuLaunchKernel_ptsz", lambda: kernel.go(symbol="cuLaunchKernel_ptsz"))
    if exists("cuLaunchKernelEx") and driver.version() >= 12000:
        way("cuLaunchKernelEx", lambda: kernel.go_ex(stream))
    captured, before = 3, driver.counters()
    graph = driver.capture(stream, lambda: [kernel.go(stream) for _ in range(captured)])
    after = driver.counters()
    way("cuGraphLaunch", lambda: driver.call("cuGraphLaunch", graph, stream), captured)
    end = driver.counters()
    print(json.dumps({
        "pid": os.getpid(),
        "ways": ways,
        "kernels": kernels,
        "captured": {
            "launched": captured,
            "counted_as_passed": after["passed"] - before["passed"],
            "counted_as_launches": after["launches"] - before["launches"],
        },
        "before_session": before_session,
        "unhooked": end["unhooked"],
        "lost": end["lost"],
        "role": driver.role(),
    }), flush=True)


if __name__ == "__main__":
    main()
