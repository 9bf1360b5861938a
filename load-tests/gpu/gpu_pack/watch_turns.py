"""A process whose one thread on the device writes down when it had the device. `watch_turns.py MILLISECONDS`."""

import json
import os
import sys

from . import driver as cuda

LEAST_NS = 20_000
MOST = 20_000


def main():
    length = int(float(sys.argv[1]) * 1e6)
    driver = cuda.Driver().open()
    function = driver.function(driver.load(cuda.TURNS_PTX), "tessera_turns")
    out = driver.allocate(8 * (3 + 2 * MOST))
    # The first launch loads the code.
    cuda.Launch(driver, function, (1, LEAST_NS, 0, out)).go()
    driver.synchronize()
    launch = cuda.Launch(driver, function, (length, LEAST_NS, MOST, out))
    print("ready", flush=True)
    sys.stdin.readline()
    launch.go()
    driver.synchronize()
    count, began, ended = driver.read(out, 3)
    breaks = driver.read(out + 24, 2 * count) if count else []
    starts = [began] + breaks[1::2]
    ends = breaks[0::2] + [ended]
    print(json.dumps({"pid": os.getpid(), "turns": list(zip(starts, ends))}), flush=True)


if __name__ == "__main__":
    main()
