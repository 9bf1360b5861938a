"""Recorded kernels as files of `tessera-sim-player` (lab/stand-in/src/cuda/recording.rs)."""

from collections import Counter

# Shorter pauses of the device are those between any two kernels.
LEAST_GAP_NS = 20_000


def split(events, windows):
    """Returns the events of each window (start and end in nanoseconds), in the order of their starts.

    An event has `name`, `grid`, `block`, `stream`, `start` and `end`.
    """
    events = sorted(events, key=lambda event: event["start"])
    return [
        [event for event in events if start <= event["start"] < end] for start, end in windows
    ]


def recording(title, tasks, windows):
    """Returns the file's text and its figures: the sequence of the most usual task, with mean times.

    Each kernel is known by name, grid and block, as the queue knows it.
    """
    if not any(tasks):
        raise ValueError("no kernel was recorded of %s" % title)
    usual = Counter(len(task) for task in tasks).most_common(1)[0][0]
    alike = [(task, window) for task, window in zip(tasks, windows) if len(task) == usual]
    # Of these the one of median length.
    task, window = sorted(alike, key=lambda one: one[1][1] - one[1][0])[len(alike) // 2]
    took = {}
    for event in (event for one, _ in alike for event in one):
        took.setdefault((event["name"], event["grid"], event["block"]), []).append(event["end"] - event["start"])
    took = {kernel: max(1, round(sum(times) / len(times))) for kernel, times in took.items()}
    names, streams = [], []
    for event in task:
        if event["name"] not in names:
            names.append(event["name"])
        if event["stream"] not in streams:
            streams.append(event["stream"])
    lines = ["player 1", "# " + " ".join(title.split())]
    if len(streams) > 1:
        lines.append("streams %d" % len(streams))
    lines.append("iterations 1")
    for number, name in enumerate(names):
        # Names of C++ hold blanks and more.
        lines.append("# k%d: %s" % (number, " ".join(name.split())))
        shapes = sorted({(event["grid"], event["block"]) for event in task if event["name"] == name})
        first = took[(name,) + shapes[0]]
        lines.append("kernel k%d dur=%dns" % (number, first))
        for shape in shapes[1:]:
            lines.append("kernel k%d dur@%s=%dns" % (number, written(*shape), took[(name,) + shape]))
    gaps, idle, free = 0, 0, window[0]
    for event in task:
        gap = event["start"] - free
        if gap >= LEAST_GAP_NS:
            lines.append("gap %dns" % gap)
            gaps, idle = gaps + 1, idle + gap
        line = "run k%d %s" % (names.index(event["name"]), written(event["grid"], event["block"]))
        stream = streams.index(event["stream"])
        lines.append(line + (" stream=%d" % stream if stream else ""))
        free = max(free, event["end"])
    last = window[1] - free
    if last >= LEAST_GAP_NS:
        lines.append("gap %dns" % last)
        gaps, idle = gaps + 1, idle + last
    busy = sum(took[(event["name"], event["grid"], event["block"])] for event in task)
    facts = {
        "tasks": len(tasks), "alike": len(alike), "launches": len(task), "kernels": len(took), "names": len(names),
        "gaps": gaps, "task_ms": round((window[1] - window[0]) / 1e6, 4), "busy_ms": round(busy / 1e6, 4),
        "idle_ms": round(idle / 1e6, 4),
    }
    return "\n".join(lines) + "\n", facts


def written(grid, block):
    """Returns a shape as the player reads it."""
    return "/".join("x".join(str(side) for side in sides) for sides in (grid, block))


def of_profiler(trace, mark):
    """Returns the kernels and the windows of a trace that torch.profiler wrote; `mark` names the windows."""
    events, windows = [], []
    for event in trace["traceEvents"]:
        if event.get("cat") == "kernel":
            about = event["args"]
            start = float(event["ts"]) * 1e3
            events.append({
                "name": event["name"], "grid": tuple(about["grid"]), "block": tuple(about["block"]),
                "stream": about.get("stream", 0), "start": round(start), "end": round(start + float(event["dur"]) * 1e3),
            })
        elif event.get("cat") == "user_annotation" and event.get("name") == mark:
            start = float(event["ts"]) * 1e3
            windows.append((round(start), round(start + float(event["dur"]) * 1e3)))
    return events, sorted(windows)


def of_stand_in(lines):
    """Returns the kernels in a trace of the stand-in, of a program with one stream and no graphs."""
    launches = [line["args"] for line in lines if line.get("call") == "cuLaunchKernel" and line["result"] == 0]
    kernels = sorted((line for line in lines if line.get("op") == "kernel"), key=lambda line: line["seq"])
    if len(launches) != len(kernels):
        raise ValueError("%d launches, but %d kernels" % (len(launches), len(kernels)))
    return [
        {
            "name": kernel["name"], "stream": kernel["stream"], "start": kernel["start"], "end": kernel["end"],
            "grid": tuple(launch["grid_" + side] for side in "xyz"),
            "block": tuple(launch["block_" + side] for side in "xyz"),
        } for launch, kernel in zip(launches, kernels)
    ]
