"""Part 7: a program of high priority next to others: alone, as the driver shares by default, under Tessera, and with MPS.

The first scenes are those in which a filler once went past every valve (findings 1) or a holder counted as idle
(findings 2). Then come FIKIT's pairs A, F and J: their networks where PyTorch is, and otherwise proxies of their
kernels and gaps.
"""

import contextlib
import json
import math
import os

from .mps import daemon
from .part import Part, Skip, spread
from .processes import Child, Queue, know, workload

# What a run of a network lasts at least, and a network alone under the queue, for which its task is measured: a hundred
# tasks of a small network are over before that.
SECONDS_MIN = 3
# The same of plain kernels by tasks: their task is measured after a hundred launches.
PRIMING_TASKS = 150

HOLDER = {"steps": [{"run": "step", "ms": 2}, {"gap_ms": 8}]}


def filler(milliseconds, threads=1):
    return {
        "steps": [{"run": "piece", "ms": milliseconds, "grid": 8, "block": 128}, {"sync": True}], "threads": threads,
        "weight": milliseconds * threads / 10,
    }


def scenes():
    """Returns the scenes of the findings: names, the high and the low program, and what is measured of the high one."""
    graph = {"steps": [{"graph": "piece", "kernels": 20, "ms": 10, "grid": 8, "block": 128}, {"sync": True}], "weight": 20}
    bursts = {"steps": [{"run": "step", "ms": 1, "times": 50}, {"gap_ms": 8}], "new_shapes": True, "weight": 6}
    long = {"steps": [{"run": "step", "ms": 30}, {"gap_ms": 8}], "weight": 4}
    return [
        ("finding 1: low with kernels of 50 ms", HOLDER, filler(50), HOLDER),
        ("finding 1: low with 8 threads of 5 ms kernels", HOLDER, filler(5, 8), HOLDER),
        ("finding 1: low with graphs of 200 ms", HOLDER, graph, HOLDER),
        ("finding 2: high in bursts of 50 kernels, each of a new shape", bursts, filler(1), HOLDER),
        ("finding 2: high with kernels of 30 ms and a profile of 2 ms", long, filler(1), HOLDER),
    ]


# Name in torchvision; a task alone and its time on the device in ms; launches; gaps. The pairs are published, and of
# pair A these times are; the other figures are the same proxies as in lab/simulator.
NETWORKS = {
    "A": (("keypointrcnn_resnet50_fpn", 32.32, 9.69, 320, 60), ("fcn_resnet50", 12.97, 12.97, 160, 0)),
    "F": (("alexnet", 1.6, 0.6, 24, 6), ("vgg16", 3.2, 3.2, 45, 0)),
    "J": (("deeplabv3_resnet50", 16.0, 13.6, 190, 12), ("resnet101", 13.0, 11.0, 320, 8)),
}


def proxy(name, alone, busy, launches, gaps):
    """Returns a workload with as many launches and gaps."""
    bursts = max(1, gaps)
    steps = []
    for burst in range(bursts):
        times = launches * (burst + 1) // bursts - launches * burst // bursts
        steps.append({"run": "%s_%d" % (name, burst % 8), "ms": busy / launches, "times": times})
        steps.append({"gap_ms": (alone - busy) / gaps} if gaps else {"sync": True})
    return {"steps": steps, "weight": alone / 10}


# Counters of the queue that a row has.
COUNTED = (
    "launches", "measuring_launches", "samples", "drifts", "gaps_seen", "gaps_filled", "early_stops", "grants",
    "filled_kernels", "colocated", "aged", "probes",
)


class Network:
    """A network of PyTorch as a program."""

    def __init__(self, name):
        self.name = name

    def tasks(self, iterations):
        """Returns how many tasks are played where a program is played so often."""
        return iterations

    def start(self, env, iterations, attach):
        spec = {"network": self.name, "iterations": iterations, "attach": attach}
        return Child("torch_infer", json.dumps(spec), env=env)


class Work:
    """A workload of plain kernels as a program."""

    def __init__(self, spec):
        self.spec = dict(spec)
        self.weight = self.spec.pop("weight", 1)

    def tasks(self, iterations):
        """Returns how many tasks are played where a program is played so often: longer ones are fewer."""
        return max(3, round(iterations / self.weight))

    def start(self, env, iterations, attach):
        return workload(self.spec, env, iterations=iterations, attach=attach)


def play(high, low, iterations, of_high, of_low, attach):
    """Plays so many tasks of the high one, next to the low one if there is one. Returns the reports."""
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(high.start(of_high, iterations, attach))
        second = stack.enter_context(low.start(of_low, None, attach)) if low is not None else None
        first.ready(120)
        if second:
            second.ready(120).go()
        report = first.go().report(150)
        # Its process ends by itself, so that the queue sees it leave.
        return report, second.stop() if second else None


def figures(report, other, alone):
    """Returns the figures of one run."""
    times = report["tasks_ms"]
    facts = {"task_ms": spread(times)}
    if alone is not None:
        sorted_alone = sorted(alone["tasks_ms"])
        facts["times_alone"] = round(sum(times) / len(times) / (sum(sorted_alone) / len(sorted_alone)), 3)
        facts["p99_times_alone"] = round(facts["task_ms"]["p99"] / spread(sorted_alone)["p99"], 3)
    if other is not None:
        seconds = (other["ended_ns"] - other["began_ns"]) / 1e9
        facts["low_kernels"], facts["low_tasks"] = other["kernels"], len(other["tasks_ms"])
        facts["low_tasks_per_s"] = round(len(other["tasks_ms"]) / seconds, 2)
    return facts


def lasting(report, seconds):
    """Returns how many tasks last so long, as long as those of the report: at least as many as it has."""
    times = report["tasks_ms"]
    return max(len(times), math.ceil(seconds * 1e3 * len(times) / max(sum(times), 0.001)))


def counted(report):
    """Returns what the shim counted in a process while it played, and its role at the end."""
    before, after = report["before"], report["after"]
    facts = {"role": report["role"], "tasks": len(report["tasks_ms"])}
    if after is None:
        return facts
    for name in ("launches", "reported", "samples", "granted", "ungranted", "passed", "lost"):
        # A name that this shim does not count is left out.
        if name in after:
            facts[name] = after[name] - (before or {}).get(name, 0)
    if facts["tasks"] and "launches" in facts:
        facts["launches_per_task"] = round(facts["launches"] / facts["tasks"], 1)
    return facts


def switch_cost(part):
    """Returns what part 6 measured of a context switch, in microseconds; None if it has no such figure."""
    try:
        with open(os.path.join(part.out, "6-switches.json")) as file:
            rows = json.load(file)["rows"]
    except (OSError, ValueError):
        return None
    medians = [row.get("change_us", {}).get("p50") for row in rows if row["name"] == "turns of two processes"]
    return next((round(median) for median in medians if median is not None), None)


def scene(part, name, high, low, measured, iterations, seconds):
    """One scene in all forms. Of programs that last, `seconds` is the least time of a run."""
    plays_over_mps = isinstance(high, Work)
    alone = None
    tasks = high.tasks(iterations)
    with part.guarded(name + ": alone"):
        alone, _ = play(high, None, tasks, {}, {}, False)
        if lasting(alone, seconds) > tasks:
            tasks = lasting(alone, seconds)
            alone, _ = play(high, None, tasks, {}, {}, False)
        part.measured(name + ": alone", **figures(alone, None, None))
    if alone is None:
        return
    with part.guarded(name + ": default sharing"):
        part.measured(name + ": default sharing", **figures(*play(high, low, tasks, {}, {}, False), alone))

    def tessera(title, variables, **rules):
        with Queue(part.machine, **rules) as queue:
            priming = {}
            for which, program, priority in (("high", measured, 0), ("low", low, 9)):
                # It stays admitted: a slice without attempts forgets what it learned.
                _, environment = queue.admit("%s of %s" % (which, name), priority)
                environment = dict(environment, **variables)
                count = program.tasks(10 if part.quick else PRIMING_TASKS)
                report, _ = play(program, None, count, environment, {}, True)
                priming[which] = counted(report)
                if lasting(report, seconds) > len(report["tasks_ms"]):
                    # Another process of the task: what the first one took too long for.
                    report, _ = play(program, None, lasting(report, seconds), environment, {}, True)
                    priming[which + " again"] = counted(report)
            (one, of_high), (other, of_low) = queue.admit("high of " + name, 0), queue.admit("low of " + name, 9)
            reports = play(high, low, tasks, dict(of_high, **variables), dict(of_low, **variables), True)
            tallies = {"high": queue.end(one), "low": queue.end(other)}
        queued = {
            which: {key: tally[key] for key in ("sessions", "lost", "ungranted")} | {
                key: tally["queue"].get(key) for key in COUNTED
            } for which, tally in tallies.items()
        }
        # The low one's role is that after the high one left.
        shims = {"high": counted(reports[0]), "low, alone at the end": counted(reports[1])}
        part.measured(title, rules=rules, queue=queued, shims=shims, priming=priming, **figures(*reports, alone))
        # What both launched after their sessions began was reported to the queue, or passed as free.
        part.check(title + ", intercepted", all(
            report["after"] is not None and report["after"]["unhooked"] == 0 and tally["sessions"] > 0
            for report, tally in zip(reports, tallies.values())
        ), unhooked=[report["after"] and report["after"]["unhooked"] for report in reports],
            sessions=[tally["sessions"] for tally in tallies.values()])

    with part.guarded(name + ": Tessera"):
        tessera(name + ": Tessera", {}, switch_us=switch_cost(part))
    with part.guarded(name + ": MPS"), daemon(part.machine) as variables:
        part.measured(name + ": MPS", **figures(*play(high, low, tasks, variables, variables, False), alone))
    # Of networks this would take minutes more. A client that vanishes may break its server for those after it, so that
    # each row has its own daemon.
    if plays_over_mps:
        with part.guarded(name + ": Tessera over MPS"), daemon(part.machine) as variables:
            tessera(name + ": Tessera over MPS", variables, over_mps=True)


def main():
    part = Part("7-pairs", "pairs A, F, J and findings 1 and 2: alone, by default, under Tessera, with MPS")
    know(part.machine)
    iterations = 12 if part.quick else 100
    with part.guarded("pairs"):
        part.need_sharing()
        chosen = scenes()[::4] if part.quick else scenes()
        for name, high, low, measured in chosen:
            scene(part, name, Work(high), Work(low), Work(measured), iterations, 0)
        for letter, (high, low) in NETWORKS.items():
            if part.quick and letter != "F":
                continue
            why = None
            try:
                part.need_torch()
                if high[0].startswith("keypoint") and not part.machine["torch"].get("torchvision"):
                    raise Skip("torchvision is not installed, which has " + high[0])
            except Skip as reason:
                why = str(reason)
            if why is None:
                programs = [Network(high[0]), Network(low[0])]
                name = "pair %s: %s and %s" % (letter, high[0], low[0])
            else:
                programs = [Work(proxy(*high)), Work(proxy(*low))]
                name = "pair %s by proxies" % letter
                part.row("skip", "pair %s: %s and %s" % (letter, high[0], low[0]), reason=why + "; see " + name)
            scene(part, name, *programs, programs[0], iterations, 0 if part.quick else SECONDS_MIN)
    part.done()


if __name__ == "__main__":
    main()
