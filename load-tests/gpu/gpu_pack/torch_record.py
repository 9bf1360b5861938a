"""A process that records some tasks of networks by torch.profiler: `torch_record.py TASKS FOLDER NAME...`.

It answers with a line for each network, in their order.
"""

import json
import os
import sys
import traceback

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from . import models

MARK = "tessera task"


def record(name, tasks, path):
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


def main():
    tasks, folder, names = int(sys.argv[1]), sys.argv[2], sys.argv[3:]
    for name in names:
        path = os.path.join(folder, name + ".json")
        try:
            record(name, tasks, path)
            print(json.dumps({"recorded": path}), flush=True)
        except Exception as error:  # One that fails proves nothing about the others.
            print(json.dumps({"errors": ["%s: %s: %s" % (type(error).__name__, error, traceback.format_exc())]}), flush=True)
        torch.cuda.empty_cache()
    os._exit(0)


if __name__ == "__main__":
    main()
