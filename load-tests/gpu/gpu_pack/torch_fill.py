"""A program that fills the device until the driver refuses, or COUNT times 2 GiB: `torch_fill.py COUNT`."""

import json
import os
import sys

import torch

from . import driver as cuda


def main():
    kept, ended = [], "done"
    try:
        for _ in range(int(sys.argv[1])):
            kept.append(torch.empty(2 << 30, dtype=torch.uint8, device="cuda"))
            kept[-1][:1024].fill_(1)
    except torch.cuda.OutOfMemoryError:
        ended = "out of memory"
    torch.cuda.synchronize()
    counters = cuda.Driver().counters()
    print(json.dumps({
        "pid": os.getpid(), "ended": ended, "reserved_peak": torch.cuda.memory_stats(0)["reserved_bytes.all.peak"],
        "unhooked": counters["unhooked"] if counters else None,
    }), flush=True)


if __name__ == "__main__":
    main()
