"""Part 9: a whole cluster on this GPU: a controller with its own PostgreSQL, an agent, and jobs as people submit them.

As root everything runs under a person's account, which may neither divide a GPU nor change its modes: GPU_PACK_USER, or
the first one there is. MIG is left as it is: no job of this part requests a slice.
"""

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from .part import PACK, Part, Skip
from .processes import OF_SHIM, SHIM

PROGRAMS = ("tessera", "tessera-controller", "tessera-agent", "tessera-shepherd", "tessera-launch")
GIB = 1 << 30


def postgres_folder():
    """Returns the folder of PostgreSQL's programs."""
    for folder in [os.environ.get("TESSERA_PG_BIN")] + sorted(
            "/usr/lib/postgresql/%s/bin" % version for version in (
                os.listdir("/usr/lib/postgresql") if os.path.isdir("/usr/lib/postgresql") else ())):
        if folder and os.path.exists(os.path.join(folder, "initdb")):
            return folder
    raise Skip("there is no PostgreSQL: install postgresql, or name its programs' folder in TESSERA_PG_BIN")


def account(is_stand_in):
    """Returns the account under which everything runs, and None for that of this process."""
    if os.geteuid() != 0 or is_stand_in:
        return None
    name = os.environ.get("GPU_PACK_USER")
    # 65534 stands for accounts that the kernel can't name.
    people = [one for one in pwd.getpwall() if (one.pw_name == name if name else 1000 <= one.pw_uid < 65534)]
    if not people:
        raise Skip("no account of a person: make one with useradd, and name it in GPU_PACK_USER")
    return people[0]


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Cluster:
    """A controller and one node with this machine's GPUs."""

    def __init__(self, part):
        self.part, self.is_stand_in = part, part.machine["stand_in"]
        for name in PROGRAMS:
            if not os.path.exists(os.path.join(PACK, "bin", name)):
                raise Skip("bin/%s is missing: ./x gpu-pack packs it" % name)
        self.postgres = postgres_folder()
        # Sockets need a short path, and the account must be able to read everything.
        self.folder = tempfile.mkdtemp(prefix="tgp-", dir="/tmp")
        os.chmod(self.folder, 0o755)
        self.account = account(self.is_stand_in)
        self.daemons = []
        for name in ("bin", "gpu_pack", "kernel-shim", "companion"):
            shutil.copytree(os.path.join(PACK, name), os.path.join(self.folder, name))
        for name in ("home", "controller", "agent", "work"):
            os.mkdir(os.path.join(self.folder, name))
            if self.account:
                os.chown(os.path.join(self.folder, name), self.account.pw_uid, self.account.pw_gid)
        self.environment = {
            name: value for name, value in os.environ.items()
            if name not in OF_SHIM and not name.startswith("TESSERA_") or name.startswith(("TESSERA_SIM_", "TESSERA_PG_"))
        }
        self.environment.update(
            HOME=os.path.join(self.folder, "home"), TESSERA_PG_BIN=self.postgres,
            TESSERA_URL="unix://%s/controller/api.sock" % self.folder,
        )

    def identity(self):
        if self.account is None:
            return {}
        return {"user": self.account.pw_uid, "group": self.account.pw_gid, "extra_groups": []}

    def program(self, name):
        return os.path.join(self.folder, "bin", name)

    def run(self, *words, fails=False, within=60, stdin=None):
        """Runs a command to its end; returns its output."""
        done = subprocess.run(
            words, env=self.environment, cwd=os.path.join(self.folder, "work"), capture_output=True, text=True, input=stdin,
            timeout=within, **self.identity())
        if done.returncode != 0 and not fails:
            raise RuntimeError("%s: exit status %d: %s%s" % (
                " ".join(words[:6]), done.returncode, done.stdout[-1000:], done.stderr[-1000:]))
        return done.stdout

    def cli(self, *words, **more):
        return self.run(self.program("tessera"), *words, **more)

    def json(self, *words, **more):
        return json.loads(self.cli(*words, "--json", **more))

    def daemon(self, name, *words):
        log = open(os.path.join(self.folder, name + ".log"), "ab")
        self.daemons.append((name, subprocess.Popen(
            words, env=self.environment, cwd=os.path.join(self.folder, "work"), stdin=subprocess.DEVNULL, stdout=log,
            stderr=log, start_new_session=True, **self.identity())))

    def until(self, what, within, look):
        """Waits until `look` returns something."""
        end = time.monotonic() + within
        while True:
            found = look()
            if found:
                return found
            if time.monotonic() > end:
                raise RuntimeError("not within %d s: %s%s" % (within, what, self.logs()))
            time.sleep(0.1)

    def logs(self):
        """Returns the ends of the daemons' logs, for a failure."""
        ends = []
        for name, _ in self.daemons:
            with open(os.path.join(self.folder, name + ".log"), errors="replace") as file:
                ends.append("\n--- %s\n%s" % (name, file.read()[-1500:]))
        return "".join(ends)

    def start(self):
        http, quic = free_port(socket.SOCK_STREAM), free_port(socket.SOCK_DGRAM)
        data = os.path.join(self.folder, "controller")
        controller = self.program("tessera-controller")
        self.run(controller, "init", "--data", data)
        self.daemon("controller", controller, "--data", data, "--database", "private", "--http", "127.0.0.1:%d" % http,
                    "--quic", "127.0.0.1:%d" % quic)
        self.until("the controller answers", 60, lambda: self.cli("nodes", fails=True))
        token = self.until("an invitation", 30, lambda: self.cli("node", "invite", "gpu", "--json", fails=True))
        agent = self.program("tessera-agent")
        self.run(agent, "join", "-", "--controller", "127.0.0.1:%d" % quic, "--data", self.agent_data(),
                 stdin=find(json.loads(token), "token"))
        self.agent_words = [agent, "--controller", "127.0.0.1:%d" % quic, "--data", self.agent_data(), "--run-as", "agent",
                            "--kernel-shim", os.path.join(self.folder, "kernel-shim", "libcuda.so.1")]
        if self.is_stand_in:
            self.agent_words += ["--nvml", os.environ["TESSERA_PACK_NVML"], "--root-jobs"]
        self.daemon("agent", *self.agent_words)

    def agent_data(self):
        return os.path.join(self.folder, "agent")

    def restart_agent(self):
        """Kills the agent, whose jobs live on, and starts it again."""
        (at,) = [at for at, (name, _) in enumerate(self.daemons) if name == "agent"]
        _, process = self.daemons.pop(at)
        process.kill()
        process.wait()
        self.daemon("agent", *self.agent_words)

    def seconds(self, usual):
        """Returns how long a job holds the device."""
        return "2" if self.part.quick else str(usual)

    def submit(self, *words, job):
        """Submits a job of `cluster_job.py`, or of another module; returns its number."""
        module, *arguments = job
        python = [sys.executable, "-m", "gpu_pack." + module, *arguments]
        paths = os.pathsep.join([self.folder] + [path for path in [os.environ.get("PYTHONPATH")] if path])
        more = {"PYTHONPATH": paths, "GPU_PACK_ITERATIONS_PER_MS": str(self.part.machine.get("iterations_per_ms", 1))}
        if os.environ.get("LD_LIBRARY_PATH"):
            more["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        settings = [word for name, value in more.items() for word in ("--env", "%s=%s" % (name, value))]
        printed = self.cli("submit", "--parsable", "--chdir", os.path.join(self.folder, "work"), *settings, *words, "--", *python)
        return printed.strip().splitlines()[-1]

    def show(self, job):
        return self.json("show", job)

    def wait_for(self, job, *states, within=60):
        """Waits until a job has one of these states; returns the job."""
        def look():
            shown = self.show(job)
            return shown if find(shown, "state") in states else None
        return self.until("job %s is %s" % (job, " or ".join(states)), within, look)

    def report(self, job):
        """Returns what the job wrote."""
        lines = [line for line in self.cli("logs", job).splitlines() if line.startswith("{")]
        return json.loads(lines[-1]) if lines else None

    def peak_of(self, job):
        """Returns the peak of an ended job's memory, and after how many seconds the node reported it."""
        ended = time.monotonic()
        peak = self.until("the peak is there", 15, lambda: find(self.show(job), "gpu_memory_peak_bytes"))
        return peak, round(time.monotonic() - ended, 1)

    def stop(self):
        self.cli("cancel", "--state", "active", fails=True)
        with contextlib.suppress(RuntimeError):
            self.until("no job is left", 20, lambda: not self.cli("queue", "-h", fails=True).strip())
        for name in ("agent", "controller"):
            for of, process in self.daemons:
                if of == name:
                    process.send_signal(signal.SIGTERM)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(15)
                    process.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def find(value, name):
    """Returns the first field of this name, breadth first."""
    waiting = [value]
    while waiting:
        one = waiting.pop(0)
        if isinstance(one, dict):
            if name in one:
                return one[name]
            waiting += one.values()
        elif isinstance(one, list):
            waiting += one
    return None


def ends(part, cluster):
    """The simplest job, and what is known of it."""
    began = time.time()
    job = cluster.submit("--time", "5", job=("cluster_job", "hold", "2048", cluster.seconds(3)))
    shown = cluster.wait_for(job, "succeeded", "failed", "cancelled")
    report = cluster.report(job) or {}
    part.check("a job without a size runs and succeeds", find(shown, "state") == "succeeded", report=report, job=shown,
               submitted_to_begun_s=round(report.get("began", 0) - began, 3))
    peak, after = cluster.peak_of(job)
    part.check("the peak of its memory was observed", 2 * GIB <= peak <= 4 * GIB, peak_bytes=peak, known_after_s=after)
    if not cluster.is_stand_in:
        part.check("it was on the device that the driver names", report.get("uuid") == part.machine["uuid"],
                   uuid=report.get("uuid"))


def fills(part, cluster):
    """A job that takes all of the memory."""
    job = cluster.submit("--time", "5", job=("cluster_job", "fill"))
    shown = cluster.wait_for(job, "failed", "succeeded", "cancelled", within=90)
    attempts = shown.get("attempt_list") or find(shown, "attempt_list") or []
    part.check("out of memory is recognised, and no size is tried twice",
               [attempt["state"] for attempt in attempts] == ["out_of_memory"] and find(shown, "state") == "failed",
               report=cluster.report(job), attempts=attempts, ended=find(shown, "reason"))


def shares(part, cluster, how, priorities):
    """Two jobs that share the GPU run at the same time."""
    jobs = [
        cluster.submit("--time", "5", "--share", how, "--vram", "8G", "--priority", str(priority),
                       job=("cluster_job", "hold", "1024", cluster.seconds(6)))
        for priority in priorities
    ]
    shown = [cluster.wait_for(job, "succeeded", "failed", "cancelled", within=90) for job in jobs]
    reports = [cluster.report(job) or {} for job in jobs]
    together = (
        min(report.get("ended", 0) for report in reports) - max(report.get("began", 0) for report in reports)
        if all(reports) else None
    )
    part.check("two jobs with --share %s run at the same time" % how,
               all(find(one, "state") == "succeeded" for one in shown) and together is not None and together > 0.3,
               seconds_together=together and round(together, 2), reports=reports, jobs=shown)


def is_limited(part, cluster):
    """A sharing job that takes more than its part is refused by MPS, and that is recognised."""
    job = cluster.submit("--time", "5", "--share", "mps", "--vram", "4G", "--oom-policy", "fail", job=("cluster_job", "fill"))
    shown = cluster.wait_for(job, "failed", "succeeded", "cancelled", within=90)
    report = cluster.report(job) or {}
    attempts = find(shown, "attempt_list") or []
    part.check("a sharing job gets what it requested and no more",
               report.get("taken_gib") in (3, 4) and [one["state"] for one in attempts] == ["out_of_memory"],
               report=report, attempts=attempts)


def survives(part, cluster):
    """A job outlives its agent."""
    job = cluster.submit("--time", "5", job=("cluster_job", "hold", "256", cluster.seconds(6)))
    cluster.wait_for(job, "running")
    cluster.restart_agent()
    shown = cluster.wait_for(job, "succeeded", "failed", "cancelled", within=90)
    attempts = find(shown, "attempt_list") or []
    part.check("a job outlives its agent", find(shown, "state") == "succeeded" and len(attempts) == 1, attempts=attempts)


def is_cancelled(part, cluster):
    """A cancelled job frees the device."""
    job = cluster.submit("--time", "5", job=("cluster_job", "hold", "256", "60"))
    cluster.wait_for(job, "running")
    begun = time.monotonic()
    cluster.cli("cancel", job)
    shown = cluster.wait_for(job, "cancelled", "failed", "succeeded")
    part.check("a running job is cancelled", find(shown, "state") == "cancelled", took_s=round(time.monotonic() - begun, 2))


def trains(part, cluster):
    """A program of PyTorch without a size: its memory is observed by the companion."""
    part.need_torch()
    job = cluster.submit("--time", "5", job=("torch_grow", "steady", "4096"))
    shown = cluster.wait_for(job, "succeeded", "failed", "cancelled", within=120)
    report = cluster.report(job) or {}
    report.pop("series", None)
    peak, report["peak_known_after_s"] = cluster.peak_of(job)
    drawn = cluster.cli("show", "--memory", job, fails=True)
    part.check("a training job's peak is what its allocator had, and what the context takes",
               find(shown, "state") == "succeeded"
               and 0 <= peak - report.get("reserved_peak", 1 << 60) <= 1.5 * GIB,
               peak_bytes=peak, report=report, drawn=drawn[:3000])


def devices(part, cluster):
    """What the cluster states about its GPU."""
    seen = cluster.until("the node is ready", 60, lambda: (
        lambda found: found if find(found, "state") in ("ready", "idle", "available", "up") else None
    )(cluster.json("nodes")))
    part.measured("nodes", nodes=seen)
    part.measured("doctor", text=cluster.cli("doctor", fails=True)[:3000])
    model = cluster.until("the cluster has a GPU", 30, lambda: find(cluster.json("gpus"), "model"))
    part.check("the GPU is there", cluster.is_stand_in or model == part.machine["device"], gpus=cluster.json("gpus"))


def main():
    part = Part("9-cluster", "a cluster on this GPU")
    with part.guarded("cluster"):
        part.need_sharing()
        cluster = Cluster(part)
        try:
            cluster.start()
            devices(part, cluster)
            scenes = (
                ("a job", ends), ("out of memory", fills), ("a job and its agent", survives), ("cancel", is_cancelled),
                ("share mps", lambda *both: shares(*both, "mps", (5, 5))), ("limits", is_limited),
                ("share kernel", lambda *both: shares(*both, "kernel", (0, 9))), ("training", trains),
            )
            for name, scene in scenes:
                with part.guarded(name):
                    scene(part, cluster)
            part.measured("GPU in the end", gpus=cluster.json("gpus"))
            with open(os.path.join(part.out, "9-cluster.log"), "w") as file:
                file.write(cluster.logs())
        except Exception:
            with open(os.path.join(part.out, "9-cluster.log"), "w") as file:
                file.write(cluster.logs())
            raise
        finally:
            cluster.stop()
    part.done()


if __name__ == "__main__":
    main()
