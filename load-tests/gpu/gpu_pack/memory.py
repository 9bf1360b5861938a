"""Part 8: what Tessera assumes of PyTorch's memory, the companion and the watch against the truth, growing programs, and
what models take."""

import os
from concurrent import futures

from .part import Part, Skip
from .pipe import Pipe, of_kind
from .processes import Child, know
from .torch_grow_scenes import LIMITS

MIB = 1 << 20
# Groups whose models are measured one after the other; the groups run at the same time, and all fit into 80 GB.
MODELS = (
    ("llama-3.2-1b", "distilbert"),
    ("qwen2.5-0.5b", "smollm2-360m", "t5-base"),
    ("gpt2-medium", "pythia-410m", "roberta-base"),
    ("gpt2", "opt-350m-like", "bert-base", "bert-large"),
)


def is_stand_in(part):
    return "stand-in" in part.machine["torch"].get("version", "")


def need_some_torch(part):
    """Skips without PyTorch. Its stand-in is good enough to rehearse with."""
    if not is_stand_in(part):
        part.need_torch()


def contract(part):
    """Each statement that the stand-in of PyTorch is made after."""
    # The stand-in's device is to be as small as the real one seems to be.
    with Child("torch_contract", env={"TORCH_STAND_IN_MIB": "256"}) as child:
        found = child.report()
    with Child("torch_contract", "observer") as child:
        found.update(child.report())
    told = {"message": found.pop("message", None), "words": found.pop("observer_words")}
    for name, value in found.items():
        if name == "observer_initialises":
            # Older versions do (pytorch#107330), so that the companion waits for the context.
            part.measured("PyTorch: attaching the observer initialises CUDA", it_does=value)
        elif name == "observer_calls":
            part.check("PyTorch: one call of the observer", value == 1, calls=value, **told)
        else:
            part.check("PyTorch: " + name.replace("_", " "), value is True)


def nothing_is_initialised(part):
    """A program that only imports PyTorch has no context, with the companion as without."""
    with Pipe() as pipe:
        with Child("torch_idle", env=pipe.for_companion()) as child:
            report = child.report()
        lines = pipe.finish()
    part.check("the companion initialises nothing", report["threads"] > 1 and not report["initialised"] and not lines,
               lines=len(lines), **report)


def series(part, name, report, lines):
    """Keeps what the companion reported in each iteration."""
    folder = os.path.join(part.out, "series")
    os.makedirs(folder, exist_ok=True)
    with open(os.path.join(folder, name + ".csv"), "w") as file:
        file.write("# %s on %s, PyTorch %s, %s\n" % (
            name, part.machine["device"], part.machine["torch"].get("version"), part.machine["date"]))
        file.write("# limit %d, ended %s after %d iterations, allocated peak %d, reserved peak %d\n" % (
            report["limit"], report["ended"], report["iterations"], report["allocated_peak"], report["reserved_peak"]))
        file.write("iteration,allocated,reserved,peak,split\n")
        for row in of_kind(lines, "m"):
            file.write("%d,%d,%d,%d,%d\n" % tuple(row[:5]))


def judge(part, name, report, lines):
    """Compares what the companion reported with what the program's allocator had."""
    seen, refusals = of_kind(lines, "m"), of_kind(lines, "o")
    facts = {
        "iterations": report["iterations"], "reports": len(seen), "ended": report["ended"],
        "refusals": report["refusals"], "refusals_seen": len(refusals), "limit_mib": report["limit"] // MIB,
        "reserved_peak_mib": report["reserved_peak"] // MIB, "allocated_peak_mib": report["allocated_peak"] // MIB,
    }
    if seen:
        facts["reserved_peak_seen_mib"] = max(row[2] for row in seen) // MIB
        facts["peak_seen_mib"] = max(row[3] for row in seen) // MIB
    # Seconds before the first step count as iterations, so that the companion is ahead by a few.
    ahead = seen[-1][0] - report["iterations"] if seen else 0
    if report["ended"] == "out of memory" and report["series"] and seen[-1][1] != report["series"][-1][1]:
        # It ended within an iteration that the companion has not counted, or after one that it has not reported.
        ahead = next((row[0] - own[0] for row in reversed(seen) for own in report["series"][-3:] if row[1] == own[1]), ahead)
    by_iteration = {row[0]: row for row in report["series"]}
    first = {}
    for row in seen:
        # A long iteration is reported once more while it lasts.
        first.setdefault(row[0] - ahead, row)
    # Both read the same allocator, with nothing in between.
    wrong = [number for number in first if number in by_iteration and by_iteration[number][1] != first[number][1]]
    facts["ahead"] = ahead
    is_right = len(first) > report["iterations"] // 3 and not wrong and len(refusals) == report["refusals"]
    part.check("%s: the companion's figures" % name, is_right, wrong=wrong[:8], **facts)


def growth(part, names):
    """Programs with a limit, each with the companion. Their times mean nothing, so that they run side by side."""
    running = []
    try:
        for name in names:
            pipe = Pipe().__enter__()
            child = Child("torch_grow", name, str(LIMITS[name]), env=pipe.for_companion())
            running.append((name, pipe, child))
        for name, pipe, child in running:
            with part.guarded(name):
                report = child.report(150)
                lines = pipe.finish()
                series(part, name, report, lines)
                judge(part, name, report, lines)
    finally:
        for _, pipe, child in running:
            child.__exit__(None)
            pipe.__exit__()


def jax(part):
    """JAX takes memory in advance; the companion names that, and reads what is in use."""
    with Pipe() as pipe:
        # Without a limit it would take three quarters of the device from the other programs.
        variables = dict(pipe.for_companion(), XLA_PYTHON_CLIENT_MEM_FRACTION="0.1")
        try:
            with Child("jax_memory", "3" if part.quick else "6", env=variables) as child:
                report = child.report(120)
        except RuntimeError as error:
            if "ModuleNotFoundError" in str(error):
                raise Skip("JAX is not installed")
            raise
        lines = pipe.finish()
    if report["platform"] == "cpu":
        raise Skip("this JAX has no CUDA")
    named = [line[3:5] for line in lines if line[0] == "p"]
    seen = of_kind(lines, "m")
    facts = {"named": named, "reports": len(seen), "last": seen[-1] if seen else None, "stats": report["stats"]}
    peak = report["stats"].get("peak_bytes_in_use")
    part.check("JAX: preallocation is named, and what is in use is read",
               named == [["jax", "0.1"]] and bool(seen) and seen[-1][3] == peak, version=report["version"], **facts)


def footprints(part):
    """Models of the transformers library, for the estimator."""
    part.need_torch()
    if not part.machine["torch"].get("transformers"):
        raise Skip("transformers is not installed")
    groups = [(group[-1:]) for group in MODELS[3:]] if part.quick else MODELS
    rows = []

    def group_of(models):
        with part.guarded("models " + ", ".join(models)), Child("torch_footprints", *models) as child:
            while True:
                found = child.report(150)
                if found.get("done"):
                    return
                name = "%s, %s, batch %d of %d tokens, %s%s" % (
                    found["model"], found["optimizer"], found["batch"], found["tokens"], found["format"],
                    ", checkpointing" if found["checkpointing"] else "")
                if "error" in found:
                    part.row("fail", name, **found)
                else:
                    part.measured(name, **found)
                    rows.append(found)

    with futures.ThreadPoolExecutor(len(groups)) as pool:
        list(pool.map(group_of, groups))
    columns = ("model", "batch", "tokens", "format", "optimizer", "checkpointing", "parameters", "allocated_mib",
               "reserved_mib", "context_mib")
    with open(os.path.join(part.out, "footprints.csv"), "w") as file:
        file.write("# %s, PyTorch %s, transformers %s, %s\n" % (
            part.machine["device"], part.machine["torch"]["version"], part.machine["torch"]["transformers"],
            part.machine["date"]))
        file.write(",".join(columns) + "\n")
        for row in rows:
            file.write(",".join(
                {True: "yes", False: "no", None: ""}.get(row[column], str(row[column])) for column in columns) + "\n")


def cost(part):
    """The companion's cost on a real PyTorch."""
    part.need_torch()
    with Pipe() as pipe, Child("companion_cost", "5" if part.quick else "30", env=pipe.for_companion()) as child:
        report = child.report(90)
    part.measured("the companion in training steps", **report)


def watch(part):
    """The shim's watch against PyTorch's allocator, in a program that fills the device."""
    part.need_torch()
    with Pipe() as pipe:
        with Child("torch_fill", "4" if part.quick else "1000", env=pipe.for_watch()) as child:
            report = child.report(90)
        lines = pipe.finish()
    held = of_kind(lines, "d")
    refused, first = of_kind(lines, "r"), of_kind(lines, "f")
    facts = {
        "lines": len(lines), "reserved_peak_mib": report["reserved_peak"] // MIB,
        "peak_seen_mib": max(row[1] for row in held) // MIB if held else None,
        "refused_mib": [row[0] // MIB for row in refused][:8], "ended": report["ended"],
        "first_launch": first[0] if first else None, "unhooked": report["unhooked"],
    }
    is_close = bool(held) and report["reserved_peak"] <= max(row[1] for row in held) <= report["reserved_peak"] + 256 * MIB
    is_refused = bool(refused) == (report["ended"] == "out of memory")
    part.check("the watch sees what the driver gave and refused", is_close and is_refused and len(first) == 1, **facts)


def main():
    part = Part("8-memory", "memory: PyTorch's contract, the companion, the watch, growing programs, models")
    know(part.machine)
    for name, look in (
        ("PyTorch's contract", contract), ("the companion initialises nothing", nothing_is_initialised),
    ):
        with part.guarded(name):
            need_some_torch(part)
            look(part)
    with part.guarded("growing programs"):
        need_some_torch(part)
        if is_stand_in(part):
            growth(part, ["steps_alone"])
            for name in LIMITS:
                if name != "steps_alone":
                    part.row("skip", "%s: the companion's figures" % name, reason="stand-in: it computes nothing")
        else:
            growth(part, ["steps_alone", "steady"] if part.quick else list(LIMITS))
    for name, look in (
        ("JAX", lambda part: (part.need_torch(), jax(part))), ("models", footprints),
        ("the companion in training steps", cost),
        ("the watch", watch),
    ):
        with part.guarded(name):
            look(part)
    part.done()


if __name__ == "__main__":
    main()
