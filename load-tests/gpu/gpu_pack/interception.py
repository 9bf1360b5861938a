"""Part 2: what the shim counts, against counts that it has no part in."""

import glob
import json
import os
import tempfile

from .part import Part, Skip
from .processes import Child, Queue


def trace_count(folder, pid):
    """Returns how many launch calls and kernels the stand-in's trace of a process has."""
    calls = kernels = 0
    for path in glob.glob(os.path.join(folder, "cuda-%d.jsonl" % pid)):
        with open(path) as file:
            for line in file:
                seen = json.loads(line)
                name = seen.get("call", "")
                calls += name.startswith("cuLaunchKernel") or name.startswith("cuGraphLaunch")
                kernels += seen.get("op") == "kernel"
    return calls, kernels


def by_driver(part, queue):
    """All ways to launch through the driver's interface."""
    with tempfile.TemporaryDirectory() as traces:
        attempt, environment = queue.admit("interception by driver", 0)
        if part.machine["stand_in"]:
            environment["TESSERA_SIM_CUDA_TRACE"] = traces
        with Child("launches", "100" if part.quick else "2000", env=environment) as child:
            report = child.report()
        calls, kernels = trace_count(traces, report["pid"])
    tally = queue.end(attempt)
    for way, seen in report["ways"].items():
        part.check("launches by " + way, seen["counted"] == seen["launched"], **seen)
    total = sum(way["launched"] for way in report["ways"].values())
    part.check("unhooked functions", report["unhooked"] == 0, unhooked=report["unhooked"], launches=total)
    part.check("lost records", report["lost"] == 0 and tally["lost"] == 0, shim=report["lost"], queue=tally["lost"])
    part.check("captured launches are recorded, not run", report["captured"]["counted_as_launches"] == 0,
               **report["captured"])
    if part.machine["stand_in"]:
        # In the stand-in's count there is the launch with which the session began as well.
        expected = total + report["captured"]["launched"] + report["before_session"]
        part.check("launch calls by the stand-in's own count", calls == expected, stand_in=calls, expected=expected)
        part.check("kernels by the stand-in's own count", kernels == report["kernels"], stand_in=kernels,
                   expected=report["kernels"])


def by_torch(part, queue):
    """Real operations of PyTorch, whose kernels CUPTI counts."""
    part.need_torch()
    attempt, environment = queue.admit("interception by torch", 0)
    with Child("torch_launches", "10" if part.quick else "50", env=environment) as child:
        report = child.report()
    queue.end(attempt)
    if not report["profiler"]:
        raise Skip("torch.profiler saw no kernel: CUPTI may not be allowed here (%s)" % report["versions"])
    part.check("kernels of torch by torch.profiler", report["profiler"] == report["shim"], **report)
    part.check("unhooked functions under torch", report["unhooked"] == 0, unhooked=report["unhooked"])


def main():
    part = Part("2-interception", "the shim's counts against others")
    with part.guarded("interception"):
        part.need_driver()
        with Queue(part.machine) as queue:
            with part.guarded("interception by driver"):
                by_driver(part, queue)
            with part.guarded("interception by torch"):
                by_torch(part, queue)
    part.done()


if __name__ == "__main__":
    main()
