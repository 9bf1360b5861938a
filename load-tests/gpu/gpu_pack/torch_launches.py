"""A process that counts kernels of PyTorch by its profiler (CUPTI) and by the shim."""

import json
import os
import sys
import tempfile
import time

from . import driver as cuda


def main():
    import torch
    from torch.profiler import ProfilerActivity, profile

    rounds = int(sys.argv[1])
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3), torch.nn.BatchNorm2d(16), torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(8),
        torch.nn.Flatten(), torch.nn.Linear(1024, 1024), torch.nn.LayerNorm(1024), torch.nn.Softmax(-1),
    ).cuda()
    data = torch.randn(8, 3, 64, 64, device="cuda")
    driver = cuda.Driver()

    def once():
        loss = net(data).square().sum()
        loss.backward()
        net.zero_grad()

    until = time.monotonic() + 20
    while driver.counters()["state"] != cuda.ACTIVE and time.monotonic() < until:
        once()
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]):
        # The first profile loads CUPTI and may launch by itself.
        once()
        torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA, ProfilerActivity.CPU]) as seen:
        torch.cuda.synchronize()
        before = driver.counters()
        for _ in range(rounds):
            once()
        torch.cuda.synchronize()
        after = driver.counters()
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "trace.json")
        seen.export_chrome_trace(path)
        with open(path) as file:
            events = json.load(file)["traceEvents"]
    kernels = sum(event.get("cat") == "kernel" for event in events)
    print(json.dumps({
        "profiler": kernels,
        "shim": sum(after[name] - before[name] for name in ("launches", "passed")),
        "rounds": rounds,
        "unhooked": after["unhooked"],
        "lost": after["lost"],
        "role": driver.role(),
        "versions": "torch %s, CUDA %s" % (torch.__version__, torch.version.cuda),
    }), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
