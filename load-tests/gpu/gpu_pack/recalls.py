"""A process that pauses and then launches, as a holder does: `recalls.py COUNT LEAD_MS`.

It writes how long each launch with its wait took. With a lead it launches an empty kernel so long before, on another
stream: the device then changes to its context within the pause.
"""

import json
import sys
import time

from . import driver as cuda
from .settle import iterations_per_ms

PAUSE_S = 0.015
EMPTY_PTX = """.version 6.0
.target sm_50
.address_size 64
.visible .entry tessera_recall()
{
  ret;
}
"""


def empty(driver):
    """Returns a launch of the kernel with which a shim recalls the device."""
    image = "FKCU1\nkernel tessera_recall dur=2us\n" if driver.is_stand_in else EMPTY_PTX
    return cuda.Launch(driver, driver.function(driver.load(image), "tessera_recall"), (), 1, 1)


def main():
    count, lead_s = int(sys.argv[1]), float(sys.argv[2]) / 1e3
    driver = cuda.Driver().open()
    short = cuda.work(driver, "short", 0.02, iterations_per_ms(), 1, 32)
    recall = empty(driver)
    stream, other = driver.stream(), driver.stream()
    # The first launches load the code.
    short.go(stream)
    recall.go(other)
    driver.synchronize()
    print("ready", flush=True)
    sys.stdin.readline()
    took = []
    for _ in range(count):
        time.sleep(PAUSE_S)
        if lead_s:
            recall.go(other)
            time.sleep(lead_s)
        begun = time.monotonic_ns()
        short.go(stream)
        driver.synchronize(stream)
        took.append((time.monotonic_ns() - begun) / 1e6)
    print(json.dumps({"tasks_ms": took}), flush=True)
    driver.close()


if __name__ == "__main__":
    main()
