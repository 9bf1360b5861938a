"""Waits until the queue has given this process a role."""

import time

SETTLE_S = 15.0


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
