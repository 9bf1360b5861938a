"""What the companion costs a training step of ResNet-50: `companion_cost.py ROUNDS`, with the companion in PYTHONPATH.

Blocks of ten steps with and without its hook alternate in one process. The two costs that it has are timed as well: a
step without a report, and a report.
"""

import json
import os
import statistics
import sys
import time

import torch

from . import models


def companion(hooks):
    """Returns the key of the companion's hook, and the companion: the hook is a method of it."""
    (found,) = [
        (key, hook.__self__) for key, hook in hooks.items()
        if type(getattr(hook, "__self__", None)).__name__ == "_Companion"
    ]
    return found


def main():
    rounds = int(sys.argv[1])
    hooks = torch.optim.optimizer._global_optimizer_post_hooks
    key, of_process = companion(hooks)
    net, _ = models.network("resnet50")
    net.train()
    batch = torch.rand(8, 3, 128, 128, device="cuda")
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        net(batch).square().mean().backward()
        optimizer.step()

    def block():
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(10):
            step()
        torch.cuda.synchronize()
        return (time.perf_counter() - begun) * 100

    for _ in range(3):
        block()
    with_it, without = [], []
    for _ in range(rounds):
        with_it.append(block())
        kept = hooks.pop(key)
        without.append(block())
        hooks[key] = kept
    of_process.last_report = time.monotonic() + 3600
    begun = time.perf_counter()
    for _ in range(100_000):
        of_process.stepped()
    step_us = (time.perf_counter() - begun) * 10
    reports = []
    for _ in range(300):
        of_process.last_report = 0.0
        begun = time.perf_counter()
        of_process.report(time.monotonic())
        reports.append((time.perf_counter() - begun) * 1e6)
    iteration_ms = statistics.median(without)
    print(json.dumps({
        "iteration_ms": round(iteration_ms, 3), "with_companion_ms": round(statistics.median(with_it), 3),
        "difference_percent": round(100 * statistics.median(
            one / other - 1 for one, other in zip(with_it, without)), 3),
        "step_us": round(step_us, 2), "report_us": round(statistics.median(reports), 1),
        # Ten reports a second.
        "of_an_iteration_percent": round(100 * (step_us / 1e3 / iteration_ms + statistics.median(reports) * 10 / 1e6), 3),
        "rounds": rounds,
    }), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
