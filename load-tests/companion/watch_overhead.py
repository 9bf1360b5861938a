"""What the shim's watch costs a program on the CUDA stand-in: iterations of 100 launches, with and without it in turn.

Run `./x build` first. It prints JSON: the median over runs of the fastest hundredth and tenth of the iterations. Slower
ones were preempted on a busy machine.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile

TARGET = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "target")
RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5


def recording():
    lines = ["player 1", "memory 512MiB", "iterations 1000", "kernel work dur=10us"]
    return "\n".join(lines + ["run work 100x1x1/256x1x1"] * 100 + ["sync", ""])


def play(folder, is_watched):
    stand_in = os.path.join(TARGET, "stand-in")
    environment = {
        "PATH": os.environ["PATH"],
        "TESSERA_SIM_NODE": os.path.join(folder, "node"),
        "TESSERA_SIM_GPUS": "a100-40gb",
        "TESSERA_SIM_MIG": "off",
        "LD_LIBRARY_PATH": stand_in,
    }
    if is_watched:
        shim = os.path.join(TARGET, "kernel-shim")
        environment["TESSERA_WATCH"] = "on"
        environment["TESSERA_MEMORY_PIPE"] = os.path.join(folder, "pipe")
        environment["LD_PRELOAD"] = os.path.join(shim, "libcuda.so.1")
        environment["LD_LIBRARY_PATH"] = shim + ":" + stand_in
    player = [os.path.join(stand_in, "tessera-sim-player"), os.path.join(folder, "recording")]
    done = subprocess.run(player, env=environment, check=True, stdout=subprocess.PIPE)
    took = sorted(json.loads(done.stdout)["iterations_ns"])
    return took[len(took) // 100], took[len(took) // 10]


def main():
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "recording"), "w") as file:
            file.write(recording())
        os.mkfifo(os.path.join(folder, "pipe"))
        # As the shepherd has it: open for both, and emptied by nobody here.
        pipe = os.open(os.path.join(folder, "pipe"), os.O_RDWR | os.O_NONBLOCK)
        runs = [(play(folder, False), play(folder, True)) for _ in range(RUNS)]
        lines = os.read(pipe, 1 << 16).count(b"\n")
    report = {"runs": RUNS, "lines_of_the_watch": lines}
    for at, name in enumerate(("fastest_hundredth", "fastest_tenth")):
        plain, watched = (statistics.median(run[which][at] for run in runs) for which in (0, 1))
        report[name] = {"plain_ns": plain, "watched_ns": watched, "percent": round(100 * (watched / plain - 1), 2)}
    print(json.dumps(report))


main()
