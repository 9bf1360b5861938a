"""Gives this process the role that it is to have, as far as that depends on itself."""

import os
import time

from . import driver as cuda

ATTACH_WITHIN_S = 10.0
SETTLE_S = 15.0
FIRST_SAMPLES = 10


def iterations_per_ms():
    """Returns the work kernel's speed on this device, which `machine.py` measured."""
    return float(os.environ.get("GPU_PACK_ITERATIONS_PER_MS", "1"))


def attach(driver, launch, stream=None):
    """Launches until the process has a session with the queue. Returns how many launches that took."""
    launches = 0
    if "TESSERA_KERNEL_ENDPOINT" not in os.environ:
        # The shim only watches it.
        return launches
    until = time.monotonic() + ATTACH_WITHIN_S
    while driver.counters() is not None and driver.counters()["state"] != cuda.ACTIVE:
        if time.monotonic() > until:
            raise RuntimeError("no session with the queue: the shim's state is %d" % driver.counters()["state"])
        if launches == 0:
            launch.go(stream)
            driver.synchronize()
            launches += 1
        time.sleep(0.002)
    return launches


def settle(driver, wanted, work, within=SETTLE_S):
    """Works until the role is the expected one. Returns how long that took, in seconds.

    A task must be measured before it is free or holds, and that needs some launches of each of its kernels.
    Whether the role was reached the caller sees at the end.
    """
    begun = time.monotonic()
    while driver.role() != wanted and time.monotonic() - begun < within:
        work()
        time.sleep(0.001)
    return round(time.monotonic() - begun, 2)


class Unsteady:
    """A kernel whose times spread so far that its mean stays uncertain for a thousand launches: while a program
    launches it now and then, its task is not measured. Only for the role of measuring; otherwise nothing.

    A kernel counts as rare, and is not waited for, while it has less than a sample for a thousand launches. So its
    first samples come before the program's other launches.
    """

    def __init__(self, driver, wanted):
        self.driver, self.launches = driver, 0
        self.kernel = None
        if wanted != "measure":
            return
        if driver.is_stand_in:
            module = driver.load("FKCU1\nkernel tessera_unsteady params=8,8 dur=lognormal(30us,1.5)\n")
            function = driver.function(module, "tessera_unsteady")
            self.kernel = cuda.Launch(driver, function, (1, 0), 1, 32)
        else:
            self.kernel = cuda.work(driver, "tessera_unsteady", 0.01, iterations_per_ms(), 1, 32)
        attach(driver, self.kernel)
        for _ in range(FIRST_SAMPLES):
            self.go()
            driver.synchronize()

    def go(self):
        """Launches it once."""
        if self.kernel is None:
            return
        self.launches += 1
        if not self.driver.is_stand_in:
            # 10 µs, and every fifth time 300 µs.
            milliseconds = 0.3 if self.launches % 5 == 0 else 0.01
            self.kernel.values[0].value = max(1, round(milliseconds * iterations_per_ms()))
        self.kernel.go()
