"""Part 6: what a change between the contexts of two processes costs, and how long each has the device.

Each of two processes has one thread on the device that watches the device's clock and writes down when it could
not. The clock is one for all, so the turns of both lie side by side: a turn is the time between two breaks, and a
change lasts from one's last look to the other's first. The stand-in has no such kernels; there the turns are read
from its own trace.
"""

import contextlib
import glob
import json
import os
import tempfile
import time

from .part import Part, spread
from .processes import Child, know, workload

LEAST_BREAK_NS = 20_000


def turns_by_trace(folder, pid):
    """Returns when a process had the device, from the stand-in's trace."""
    turns = []
    for path in glob.glob(os.path.join(folder, "cuda-%d.jsonl" % pid)):
        with open(path) as file:
            for line in file:
                seen = json.loads(line)
                if seen.get("op") == "kernel":
                    turns += [tuple(span) for span in seen["spans"]]
    return join(turns)


def join(turns):
    """Joins what a process did without a break."""
    joined = []
    for start, end in sorted(turns):
        if joined and start - joined[-1][1] <= LEAST_BREAK_NS:
            joined[-1][1] = max(joined[-1][1], end)
        else:
            joined.append([start, end])
    return [tuple(turn) for turn in joined]


def analyse(one, other):
    """Returns the lengths of turns and of changes, in milliseconds and microseconds.

    Only the time in which both needed the device counts, and of that neither the first nor the last turn.
    """
    begin = max(one[0][0], other[0][0])
    end = min(one[-1][1], other[-1][1])
    all_turns = sorted([(start, until, 0) for start, until in one] + [(start, until, 1) for start, until in other])
    inside = [turn for turn in all_turns if turn[0] > begin and turn[1] < end]
    lengths = [(until - start) / 1e6 for start, until, _ in inside]
    changes = [
        (after[0] - before[1]) / 1e3 for before, after in zip(inside, inside[1:]) if before[2] != after[2]
    ]
    return {
        "turn_ms": spread(lengths), "change_us": spread([change for change in changes if change >= 0], 1),
        "at_once": sum(change < 0 for change in changes), "changes": len(changes),
    }


def watch(part, milliseconds):
    """Two processes that need the device at the same time."""
    if part.machine["stand_in"]:
        with tempfile.TemporaryDirectory() as traces:
            spec = {"steps": [{"run": "busy", "ms": milliseconds}], "iterations": 1}
            with contextlib.ExitStack() as stack:
                both = [
                    stack.enter_context(workload(spec, {"TESSERA_SIM_CUDA_TRACE": traces})).ready() for _ in range(2)
                ]
                pids = [child.go().process.pid for child in both]
                for child in both:
                    child.report()
            return [turns_by_trace(traces, pid) for pid in pids]
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(Child("watch_turns", str(milliseconds))).ready() for _ in range(2)]
        for child in both:
            child.go()
        return [[tuple(turn) for turn in child.report()["turns"]] for child in both]


def round_trips(part):
    """How long a launch with its wait takes, alone and next to a process that always has work."""
    count = 20 if part.quick else 300
    short = {"steps": [{"run": "short", "ms": 0.02, "grid": 1, "block": 32}], "iterations": count}
    with workload(short) as child:
        alone = child.ready().go().report()
    part.measured("a kernel of 20 µs and its wait, alone", task_ms=spread(alone["tasks_ms"]))
    busy = {"steps": [{"run": "busy", "ms": 1, "times": 20}, {"sync": True}]}
    with workload(busy) as other, workload(short) as child:
        other.ready().go()
        time.sleep(0.1)
        beside = child.ready().go().report()
        other.stop()
    part.measured("a kernel of 20 µs and its wait, next to a busy process", task_ms=spread(beside["tasks_ms"]))


def returns(part):
    """How long a launch takes after a pause in which another process used the device, with and without a recall."""
    count = 20 if part.quick else 200

    def took(lead_ms):
        with Child("recalls", str(count), str(lead_ms)) as child:
            return spread(child.ready().go().report()["tasks_ms"])

    part.measured("a launch after a pause, alone", task_ms=took(0))
    with workload({"steps": [{"run": "busy", "ms": 0.1}, {"gap_ms": 10}]}) as other:
        other.ready().go()
        part.measured("a launch after a pause, next to a process that used it", task_ms=took(0))
        part.measured("the same, after a recall 1 ms before", task_ms=took(1))
        other.stop()


def main():
    part = Part("6-switches", "context switch and time slice")
    know(part.machine)
    with part.guarded("switches"):
        part.need_sharing()
        with part.guarded("turns of two processes"):
            one, other = watch(part, 300 if part.quick else 1500)
            if not one or not other:
                raise RuntimeError("a process had no turn: %d and %d" % (len(one), len(other)))
            found = analyse(one, other)
            part.measured("turns of two processes", how="trace" if part.machine["stand_in"] else "globaltimer", **found)
        with part.guarded("round trips"):
            round_trips(part)
        with part.guarded("returns"):
            returns(part)
    part.done()


if __name__ == "__main__":
    main()
