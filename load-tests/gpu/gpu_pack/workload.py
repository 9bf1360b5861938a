"""A program on the device, as its own process: `workload.py SPEC`, where SPEC is JSON.

It writes "ready", waits for a line on its input, plays, and writes what it did as JSON. One without `iterations`
plays until the next line or the end of its input. With `attach` it has a session with the queue before it is ready.

Steps: `{"run": NAME, "ms": 2, "times": 3}`, `{"graph": NAME, "kernels": 20, "ms": 10}`, `{"sync": true}`,
`{"gap_ms": 8}`. With `"new_shapes": true` each launch has another grid or block.
"""

import json
import os
import sys
import threading
import time

from . import driver as cuda
from .settle import attach, iterations_per_ms


def now_ns():
    """Returns the monotonic clock, which the shim and the stand-in's traces use as well."""
    return time.monotonic_ns()


class Player:
    """A thread that plays the steps."""

    def __init__(self, driver, spec, launches):
        self.driver, self.spec, self.launches = driver, spec, launches
        self.tasks, self.starts, self.kernels, self.calls = [], [], 0, 0
        self.error = None

    def prepare(self):
        self.driver.enter()
        self.stream = self.driver.stream()
        self.graphs = {}
        for step in self.spec["steps"]:
            if "graph" in step:
                launch, count = self.launches[step["graph"]], step["kernels"]
                self.graphs[step["graph"]] = self.driver.capture(
                    self.stream, lambda: [launch.go(self.stream) for _ in range(count)]
                )

    def step(self, step):
        if "run" in step:
            launch = self.launches[step["run"]]
            for _ in range(step.get("times", 1)):
                if self.spec.get("new_shapes"):
                    # 512 shapes, none of which fills the device: the time stays the same.
                    at = self.calls % 512
                    launch.go(self.stream, grid=1 + at // 8, block=32 * (1 + at % 8))
                else:
                    launch.go(self.stream)
                self.calls += 1
                self.kernels += 1
        elif "graph" in step:
            self.driver.call("cuGraphLaunch", self.graphs[step["graph"]], self.stream)
            self.calls += 1
            self.kernels += step["kernels"]
        elif "sync" in step:
            self.driver.synchronize(self.stream)
        elif "gap_ms" in step:
            self.driver.synchronize(self.stream)
            time.sleep(step["gap_ms"] / 1e3)
        else:
            raise ValueError("no step: %r; use run, graph, sync or gap_ms" % step)

    def play(self, stopped):
        iterations = self.spec.get("iterations")
        done = 0
        while not stopped.is_set() and (iterations is None or done < iterations):
            begun = now_ns()
            self.starts.append(begun)
            for step in self.spec["steps"]:
                self.step(step)
            self.driver.synchronize(self.stream)
            self.tasks.append((now_ns() - begun) / 1e6)
            done += 1

    def run(self, stopped):
        try:
            self.prepare()
            self.play(stopped)
        except Exception as error:  # The other threads and the report go on.
            self.error = "%s: %s" % (type(error).__name__, error)


def main():
    spec = json.loads(sys.argv[1])
    driver = cuda.Driver().open()
    launches = {}
    for step in spec["steps"]:
        name = step.get("run") or step.get("graph")
        if name and name not in launches:
            shape = (step.get("grid", 64), step.get("block", 256))
            launches[name] = cuda.work(driver, name, step["ms"], iterations_per_ms(), *shape)
    warm = 0
    if spec.get("attach"):
        warm = attach(driver, next(iter(launches.values())))
    before = driver.counters()
    print("ready", flush=True)
    sys.stdin.readline()
    stopped = threading.Event()
    if spec.get("iterations") is None:
        threading.Thread(target=lambda: (sys.stdin.readline(), stopped.set()), daemon=True).start()
    players = [Player(driver, spec, launches) for _ in range(spec.get("threads", 1))]
    begun = now_ns()
    threads = [threading.Thread(target=player.run, args=(stopped,)) for player in players[1:]]
    for thread in threads:
        thread.start()
    players[0].run(stopped)
    stopped.set()
    ended = now_ns()
    for thread in threads:
        thread.join(30)
    driver.enter()
    driver.synchronize()
    after = driver.counters()
    print(json.dumps({
        "pid": os.getpid(),
        "began_ns": begun,
        "ended_ns": ended,
        "tasks_ms": [round(took, 4) for player in players for took in player.tasks],
        "starts_ns": [start for player in players for start in player.starts],
        "calls": sum(player.calls for player in players),
        "kernels": sum(player.kernels for player in players),
        "warm": warm,
        "errors": [player.error for player in players if player.error],
        "role": driver.role(),
        "before": before,
        "after": after,
    }), flush=True)
    if any(thread.is_alive() for thread in threads):
        # Without the interpreter's clean-up: a thread that still waits for a grant would be in its way.
        os._exit(0)
    driver.close()


if __name__ == "__main__":
    main()
