"""A process that times programs of PyTorch: `torch_costs.py ROLE ROUNDS [NAME]`, all programs without a name."""

import json
import os
import sys
import time

import torch

from . import driver as cuda
from . import models
from .part import spread
from .settle import Unsteady, settle


def inference():
    net, data = models.network("resnet50")

    def task():
        with torch.inference_mode():
            net(data)
        torch.cuda.synchronize()

    return task


def training():
    net, _ = models.network("resnet50")
    net.train()
    batch = torch.rand(8, 3, 128, 128, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def task():
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()
        torch.cuda.synchronize()

    return task


PROGRAMS = {"resnet50 inference": inference, "resnet50 training": training}


def main():
    wanted, rounds, names = sys.argv[1], int(sys.argv[2]), sys.argv[3:] or list(PROGRAMS)
    result, roles, settled = {}, set(), 0.0
    torch.zeros(1, device="cuda")
    driver = cuda.Driver().open()
    unsteady = Unsteady(driver, wanted)
    for name in names:
        task = PROGRAMS[name]()
        for _ in range(5):
            task()
        if wanted != "none":
            settled = settle(driver, wanted, task)
        times = []
        for _ in range(rounds):
            # Outside of what is timed.
            unsteady.go()
            driver.synchronize()
            begun = time.perf_counter()
            task()
            times.append((time.perf_counter() - begun) * 1e3)
            roles.add(driver.role())
        result[name] = spread(times)
    role = roles.pop() if len(roles) == 1 else "changing: %s" % sorted(roles)
    print(json.dumps({"programs": result, "role": role, "settled_s": settled}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
