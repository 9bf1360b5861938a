"""Child processes of the pack, and the queue that they share."""

import json
import os
import queue
import shutil
import subprocess
import sys
import tempfile
import threading
import time

from .part import PACK, Skip

ENDPOINT = os.path.join(PACK, "bin", "tessera-kernel-endpoint")
SHIM = os.path.join(PACK, "kernel-shim", "libcuda.so.1")
# Only what the agent sets decides whether a child has the shim.
OF_SHIM = ("TESSERA_KERNEL_ENDPOINT", "TESSERA_KERNEL_TOKEN", "TESSERA_KERNEL_CERT", "TESSERA_KERNEL_GATE")


# What every child must know of the machine.
of_machine = {}


def know(machine):
    """Lets children know the machine."""
    of_machine["GPU_PACK_ITERATIONS_PER_MS"] = str(machine.get("iterations_per_ms", 1))


def environment(extra=None):
    """Returns the environment of a child."""
    result = {name: value for name, value in os.environ.items() if name not in OF_SHIM}
    result["PYTHONPATH"] = os.pathsep.join([PACK] + [path for path in [result.get("PYTHONPATH")] if path])
    result["PYTHONDONTWRITEBYTECODE"] = "1"
    # cuBLAS gives the same bits each time only so.
    result.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    # Nothing of ours joins the machine's own MPS server by accident.
    result["CUDA_MPS_PIPE_DIRECTORY"] = "/nonexistent/tessera-no-mps"
    result.update(of_machine)
    result.update(extra or {})
    return result


class Child:
    """A process of the pack that answers in lines of JSON; killed at the end of the block."""

    def __init__(self, module, *arguments, env=None):
        self.lines = queue.Queue()
        self.errors = tempfile.TemporaryFile(mode="w+")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "gpu_pack." + module, *arguments],
            env=environment(env), cwd=PACK, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()

    def read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def line(self, within=60):
        """Returns the next line."""
        try:
            line = self.lines.get(timeout=within)
        except queue.Empty:
            raise RuntimeError("nothing came from %s within %d s%s" % (self.process.args[2], within, self.complaint()))
        if line is None:
            raise RuntimeError("%s ended: %s%s" % (self.process.args[2], self.process.wait(), self.complaint()))
        return line

    def complaint(self):
        self.errors.seek(0)
        text = self.errors.read()[-4000:]
        return ": " + text if text else ""

    def ready(self, within=60):
        """Waits until it has prepared itself."""
        self.line_that("is ready", lambda line: line == "ready", within)
        return self

    def line_that(self, what, is_it, within):
        """Returns the first line of the expected form: libraries print their own lines."""
        until = time.monotonic() + within
        while True:
            line = self.line(max(0.1, until - time.monotonic()))
            if is_it(line):
                return line
            if time.monotonic() > until:
                raise RuntimeError("no line of %s that %s within %d s" % (self.process.args[2], what, within))

    def go(self):
        """Lets it play, or stop."""
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            raise RuntimeError("%s ended%s" % (self.process.args[2], self.complaint()))
        return self

    def report(self, within=120):
        """Returns its report."""
        report = json.loads(self.line_that("reports", lambda line: line.startswith("{"), within))
        if report.get("errors"):
            raise RuntimeError("; ".join(report["errors"]))
        return report

    def stop(self, within=60):
        """Ends one that plays until it is stopped, and returns its report."""
        return self.go().report(within)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        try:
            # One that has reported ends by itself. A killed client can take an MPS server with it.
            self.process.wait(10 if kind is None else 0.1)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def workload(spec, env=None, **more):
    """Starts a workload (`workload.py`)."""
    return Child("workload", json.dumps(dict(spec, **more)), env=env)


class Queue:
    """The agent's queue for the first device.

    Without the cost of a context switch it has the agent's rules; `over_mps` takes those for an MPS server below it.
    """

    def __init__(self, machine, switch_us=None, over_mps=False):
        know(machine)
        for needed in (ENDPOINT, SHIM):
            if not os.path.exists(needed):
                raise Skip("%s is missing: ./x gpu-pack packs it" % os.path.relpath(needed, PACK))
        # The gate page belongs on a file system in memory.
        self.folder = tempfile.mkdtemp(prefix="tessera-gpu-pack-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
        self.errors = tempfile.TemporaryFile(mode="w+")
        try:
            self.process = subprocess.Popen(
                [ENDPOINT, "--shim", SHIM, "--folder", self.folder, "--slice", machine["uuid"]]
                + (["--over-mps"] if over_mps else [] if switch_us is None else ["--switch-us", str(switch_us)]),
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
            )
        except OSError as error:
            raise Skip("tessera-kernel-endpoint does not start here: %s" % error)
        self.log = os.path.join(self.folder, "shim.log")

    def order(self, order):
        """Sends an order and returns its answer."""
        try:
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self.errors.seek(0)
            why = self.errors.read()[-2000:]
            if "GLIBC" in why:
                raise Skip("tessera-kernel-endpoint needs a newer glibc: " + why)
            raise RuntimeError("tessera-kernel-endpoint ended: " + why)
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def admit(self, task, priority, share="offline"):
        """Admits an attempt. Returns its name and the variables of its processes."""
        paths = {name: os.environ[name] for name in ("LD_LIBRARY_PATH", "LD_PRELOAD") if os.environ.get(name)}
        answer = self.order({"admit": {"task": task, "priority": priority, "class": share, "environment": paths}})
        return answer["attempt"], dict(answer["environment"], TESSERA_KERNEL_LOG=self.log)

    def end(self, attempt):
        """Ends an attempt; returns what the queue counted for it."""
        return self.order({"end": attempt})["tally"]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
