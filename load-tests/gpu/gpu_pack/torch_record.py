"""A process that records some tasks of a network by torch.profiler: `torch_record.py NAME TASKS FILE`."""

import json
import os
import sys

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from . import models

MARK = "tessera task"


def main():
    name, tasks, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    net, data = models.network(name)
    with torch.inference_mode():
        for _ in range(5):
            net(data)
        torch.cuda.synchronize()
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as seen:
            for _ in range(tasks):
                with record_function(MARK):
                    net(data)
                    torch.cuda.synchronize()
    seen.export_chrome_trace(path)
    print(json.dumps({"recorded": path}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
