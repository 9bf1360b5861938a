"""A process whose result shows the order of all of its launches: single ones, graphs, and streams that wait for each
other. `driver_results.py ROLE ROUNDS`."""

import ctypes
import hashlib
import json
import os
import sys

from . import driver as cuda
from .settle import Unsteady, attach, settle

MERSENNE = 2**61 - 1


def main():
    wanted, rounds = sys.argv[1], int(sys.argv[2])
    driver = cuda.Driver().open()
    if driver.is_stand_in:
        module = driver.load("FKCU1\nkernel tessera_step params=8,8,8 dur=10us op=affine\n")
        modulus = MERSENNE
    else:
        module = driver.load(cuda.STEP_PTX)
        modulus = 2**64
    function = driver.function(module, "tessera_step")
    place, aside = driver.allocate(8), driver.allocate(8)
    warm = cuda.Launch(driver, function, (aside, 3, 5))
    attach(driver, warm)
    unsteady = Unsteady(driver, wanted)
    settled = settle(driver, wanted, lambda: (warm.go(), driver.synchronize()))
    expected = [1]

    def step(a, b):
        expected[0] = (a * expected[0] + b) % modulus
        return cuda.Launch(driver, function, (place, a, b))

    driver.write(place, 1)
    one, other = driver.stream(), driver.stream()
    event = ctypes.c_void_p()
    driver.call("cuEventCreate", ctypes.byref(event), 2)
    graph_step = cuda.Launch(driver, function, (place, 7, 11))
    graph = driver.capture(one, lambda: [graph_step.go(one) for _ in range(5)])
    kept = []
    roles = set()
    for number in range(rounds):
        for at, (stream, following) in enumerate(((one, other), (other, one))):
            launch = step(2 * number + 3, number + at)
            # The driver has read the arguments when the call returns, but Python may free them before.
            kept.append(launch)
            launch.go(stream)
            driver.call("cuEventRecord", event, stream)
            driver.call("cuStreamWaitEvent", following, event, 0)
        if number % 10 == 0:
            driver.call("cuGraphLaunch", graph, one)
            for _ in range(5):
                expected[0] = (7 * expected[0] + 11) % modulus
            unsteady.go()
            roles.add(driver.role())
        if number % 50 == 0:
            driver.synchronize()
            kept.clear()
    driver.synchronize()
    found = driver.read(place, 1)[0]
    role = roles.pop() if len(roles) == 1 else "changing: %s" % sorted(roles)
    result = {"role": role, "settled_s": settled}
    if found == expected[0]:
        result["hash"] = hashlib.sha256(b"%d" % found).hexdigest()
    else:
        result["error"] = "the device computed %d, the host %d" % (found, expected[0])
    print(json.dumps({"results": {"ordered steps": result}}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
