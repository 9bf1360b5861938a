"""Part 7: a program of high priority next to others: alone, as the driver shares by default, under Tessera, and with MPS.

The first scenes are those in which a filler once went past every valve (findings 1) or a holder counted as idle
(findings 2). Then come FIKIT's pairs A, F and J: their networks where PyTorch is, and otherwise proxies of their
kernels and gaps.
"""

import contextlib
import json

from .mps import daemon
from .part import Part, Skip, spread
from .processes import Child, Queue, know, workload

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


class Network:
    """A network of PyTorch as a program."""

    def __init__(self, name):
        self.name = name

    def start(self, env, iterations, attach):
        spec = {"network": self.name, "iterations": iterations, "attach": attach}
        return Child("torch_infer", json.dumps(spec), env=env)


class Work:
    """A workload of plain kernels as a program."""

    def __init__(self, spec):
        self.spec = dict(spec)
        self.weight = self.spec.pop("weight", 1)

    def start(self, env, iterations, attach):
        if iterations is not None:
            # Tasks that last longer are fewer.
            iterations = max(3, round(iterations / self.weight))
        return workload(self.spec, env, iterations=iterations, attach=attach)


def play(high, low, iterations, of_high, of_low, attach):
    """Plays both, the low one if there is one. Returns the reports."""
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


def scene(part, name, high, low, measured, iterations):
    """One scene in all forms."""
    over_mps = isinstance(high, Work)
    alone = None
    with part.guarded(name + ": alone"):
        alone, _ = play(high, None, iterations, {}, {}, False)
        part.measured(name + ": alone", **figures(alone, None, None))
    if alone is None:
        return
    with part.guarded(name + ": default sharing"):
        part.measured(name + ": default sharing", **figures(*play(high, low, iterations, {}, {}, False), alone))

    def tessera(title, variables, switch_us):
        with Queue(part.machine, switch_us) as queue:
            before = {}
            for which, program, priority in (("high", measured, 0), ("low", low, 9)):
                # It stays admitted: a slice without attempts forgets what it learned.
                _, environment = queue.admit("%s of %s" % (which, name), priority)
                before[which], _ = play(program, None, 10 if part.quick else 100, dict(environment, **variables), {}, True)
            (one, of_high), (other, of_low) = queue.admit("high of " + name, 0), queue.admit("low of " + name, 9)
            reports = play(high, low, iterations, dict(of_high, **variables), dict(of_low, **variables), True)
            tallies = {"high": queue.end(one), "low": queue.end(other)}
        counted = {
            which: {key: tally[key] for key in ("sessions", "lost", "ungranted")} | {
                key: tally["queue"][key] for key in ("launches", "grants", "filled_kernels", "aged", "probes")
            } for which, tally in tallies.items()
        }
        part.measured(title, queue=counted, **figures(*reports, alone))
        # What both launched after their sessions began was reported to the queue, or passed as free.
        part.check(title + ", intercepted", all(
            report["after"] is not None and report["after"]["unhooked"] == 0 and tally["sessions"] > 0
            for report, tally in zip(reports, tallies.values())
        ), unhooked=[report["after"] and report["after"]["unhooked"] for report in reports],
            sessions=[tally["sessions"] for tally in tallies.values()])

    with part.guarded(name + ": Tessera"):
        tessera(name + ": Tessera", {}, 100)
    with part.guarded(name + ": MPS"), daemon(part.machine) as variables:
        part.measured(name + ": MPS", **figures(*play(high, low, iterations, variables, variables, False), alone))
    # Of networks this would take minutes more. A client that vanishes may break its server for those after it, so that
    # each row has its own daemon.
    if over_mps:
        with part.guarded(name + ": Tessera over MPS"), daemon(part.machine) as variables:
            tessera(name + ": Tessera over MPS", variables, 0)


def main():
    part = Part("7-pairs", "pairs A, F, J and findings 1 and 2: alone, by default, under Tessera, with MPS")
    know(part.machine)
    iterations = 12 if part.quick else 100
    with part.guarded("pairs"):
        part.need_sharing()
        chosen = scenes()[::4] if part.quick else scenes()
        for name, high, low, measured in chosen:
            scene(part, name, Work(high), Work(low), Work(measured), iterations)
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
            scene(part, name, *programs, programs[0], iterations)
    part.done()


if __name__ == "__main__":
    main()
