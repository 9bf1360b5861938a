"""Gives this process the role that it shall have, as far as that depends on itself."""

import os
import time

from . import driver as cuda

SETTLE_S = 15.0


def iterations_per_ms():
    """Returns the work kernel's speed on this device, which `machine.py` measured."""
    return float(os.environ.get("TESSERA_PACK_ITERATIONS_PER_MS", "1"))


def settle(driver, wanted, work, within=SETTLE_S):
    """Works until the role is the wanted one. Returns how long that took, in seconds.

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
    launches it now and then, its task is not measured. Only for the role of measuring; otherwise nothing."""

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
