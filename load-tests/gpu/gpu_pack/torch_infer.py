"""A network of PyTorch as a program, with the protocol of `workload.py`: `torch_infer.py SPEC`."""

import json
import os
import sys
import threading
import time

import torch

from . import driver as cuda
from . import models
from .settle import ATTACH_WITHIN_S
from .workload import now_ns


def main():
    spec = json.loads(sys.argv[1])
    net, data = models.network(spec["network"])
    driver = cuda.Driver().open()
    tasks, calls = [], 0
    with torch.inference_mode():
        def task():
            net(data)
            torch.cuda.synchronize()

        # The first tasks load code; of a filler they may wait long.
        task()
        until = time.monotonic() + ATTACH_WITHIN_S
        while spec["attach"] and driver.counters()["state"] != cuda.ACTIVE:
            if time.monotonic() > until:
                raise RuntimeError("no session with the queue: the shim's state is %d" % driver.counters()["state"])
            task()
        if not spec["attach"]:
            task()
        before = driver.counters()
        print("ready", flush=True)
        sys.stdin.readline()
        stopped = threading.Event()
        if spec["iterations"] is None:
            threading.Thread(target=lambda: (sys.stdin.readline(), stopped.set()), daemon=True).start()
        begun = now_ns()
        while not stopped.is_set() and (spec["iterations"] is None or calls < spec["iterations"]):
            start = now_ns()
            task()
            tasks.append((now_ns() - start) / 1e6)
            calls += 1
        ended = now_ns()
    after = driver.counters()
    launched = after["launches"] - before["launches"] if after else None
    print(json.dumps({
        "pid": os.getpid(), "began_ns": begun, "ended_ns": ended, "tasks_ms": [round(took, 4) for took in tasks],
        "calls": calls, "kernels": launched, "errors": [], "role": driver.role(), "before": before, "after": after,
    }), flush=True)


if __name__ == "__main__":
    main()
