"""Measures what the companion costs an iteration, on the stand-in of PyTorch.

Two costs are measured in processor time, by turns with and without the companion: that of each step of an optimizer, and
that of a report, of which there are at most ten a second. What an iteration of 10 ms pays follows from both.
Usage: overhead.py [RUNS]
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
STAND_IN = os.path.join(ROOT, "lab", "stand-in", "python")
COMPANION = os.path.join(ROOT, "gpu-agent", "companion")

PROGRAM = """
import time, torch
optimizer, kept = torch.optim.SGD(), torch.empty(1 << 20)
begun = time.process_time()
for _ in range(200_000):
    optimizer.step()
step = (time.process_time() - begun) / 200_000
begun = time.process_time()
for _ in range(20):
    time.sleep(0.11)
    optimizer.step()
print(step, (time.process_time() - begun) / 20)
"""
ITERATION_S = 0.010
REPORTS_PER_SECOND = 10


def run(paths, pipe):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(paths), TESSERA_MEMORY_PIPE=pipe)
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, check=True)
    return [float(word) for word in done.stdout.split()]


def main():
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 15
    with tempfile.TemporaryDirectory() as folder:
        pipe = os.path.join(folder, "pipe")
        os.mkfifo(pipe)
        reader = os.open(pipe, os.O_RDWR)
        threading.Thread(target=lambda: [os.read(reader, 65536) for _ in iter(int, 1)], daemon=True).start()
        steps, reports = [], []
        for _ in range(runs):
            without, beside = run([STAND_IN], pipe), run([COMPANION, STAND_IN], pipe)
            steps.append(beside[0] - without[0])
            reports.append(beside[1] - without[1])
    step, report = statistics.median(steps), statistics.median(reports)
    part = (step + report * REPORTS_PER_SECOND * ITERATION_S) / ITERATION_S
    result = {
        "step_us": round(step * 1e6, 2),
        "report_us": round(report * 1e6, 1),
        "of_an_iteration_of_10_ms_percent": round(100 * part, 3),
        "runs": runs,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
