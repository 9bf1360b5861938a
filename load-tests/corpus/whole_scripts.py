"""Runs the scripts of a folder under the `sbatch` that is first in PATH, and notes what each of them did; or compares
two such records.

    whole_scripts.py record SCRIPTS OUT.json [--only NAME,NAME] [--within SECONDS]
    whole_scripts.py compare OF-SLURM.json OF-TESSERA.json

Programs such as python and torchrun are replaced by one that notes its arguments and its environment. A script may name
how it is called: `#RUN OPTIONS SCRIPT ARGUMENTS`, `#ENV NAME=VALUE`, and `#PREPARE LINE-OF-SHELL` before it. `#ALONE` marks
one that waits for jobs of its own while it holds a GPU. With others, they could wait for each other. Numbers of jobs
and names of nodes and GPUs differ between clusters, so that only how many there are is compared.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

PROGRAMS = [
    "python", "python3", "torchrun", "accelerate", "deepspeed", "mpirun", "singularity", "apptainer", "ray", "nvidia-smi",
    "gmx", "gmx_mpi", "bwa", "samtools", "Rscript", "julia",
]
NOTE = """#!/usr/bin/python3 -SE
import json, os, sys
kept = ("SLURM", "CUDA_VISIBLE", "SBATCH", "ENVIRONMENT", "HOSTNAME", "GPU_DEVICE", "ROCR")
note = {
    "program": os.path.basename(sys.argv[0]),
    "arguments": sys.argv[1:],
    "environment": {k: v for k, v in os.environ.items() if k.startswith(kept)},
}
case = os.path.basename(os.environ.get("SLURM_SUBMIT_DIR", "unknown"))
path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "notes", case)
with open(path, "a") as file:
    file.write(json.dumps(note) + "\\n")
"""
# Variables that name nodes or GPUs: how many is compared.
NODES = {"SLURM_JOB_NODELIST", "SLURM_NODELIST", "SLURM_STEP_NODELIST", "SLURM_JOB_NODES"}
DEVICES = {"CUDA_VISIBLE_DEVICES", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "GPU_DEVICE_ORDINAL", "ROCR_VISIBLE_DEVICES", "ZE_AFFINITY_MASK"}
# Variables whose values belong to one machine or one run.
OWN = {
    "HOSTNAME", "SLURMD_NODENAME", "SLURM_CLUSTER_NAME", "SLURM_CONF", "SLURM_LAUNCH_NODE_IPADDR", "SLURM_SRUN_COMM_HOST",
    "SLURM_SRUN_COMM_PORT", "SLURM_STEP_LAUNCHER_PORT", "SLURM_SUBMIT_DIR", "SLURM_SUBMIT_HOST", "SLURM_TASK_PID",
    "SLURM_TOPOLOGY_ADDR", "SLURM_WORKING_CLUSTER", "SLURM_JOB_ACCOUNT", "SLURM_TMPDIR", "SLURM_SUBMIT_SCRIPT",
    "SLURM_JOB_START_TIME", "SLURM_JOB_END_TIME",
}
# What the harness itself sets.
SELF = {"SBATCH_GRES", "SBATCH_JOB_NAME", "SBATCH_TIMELIMIT", "SBATCH_OUTPUT", "SBATCH_DISTRIBUTION", "SBATCH_HINT",
        "SBATCH_GPU_BIND", "SBATCH_INPUT", "SBATCH_OVERCOMMIT"}


def run(words, **more):
    return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, **more)


def jobs():
    """All jobs that are known, by their numbers."""
    found = {}
    for line in run(["scontrol", "show", "job", "-o"]).stdout.splitlines():
        facts = dict(re.findall(r"(\w+)=(.*?)(?= \w+(?:/\w+)?=|$)", line))
        if facts.get("JobId"):
            number = facts["JobId"]
            if not facts.get("ArrayTaskId", "0").isdigit():
                # What is left of an array: its tasks have their own.
                continue
            if facts.get("ArrayTaskId"):
                number = facts["ArrayJobId"] + "_" + facts["ArrayTaskId"]
            found[number] = facts
    return found


def ended(running, until, root):
    """Waits until no job is left, and returns all of them. Jobs that ended are known for MinJobAge only."""
    known = {}
    while True:
        known.update(jobs())
        waiting = [name for name, _, child in running if child.poll() is None]
        left = [line for line in run(["squeue", "-h", "-o", "%i %j %T %r"]).stdout.splitlines() if line]
        if not waiting and not left:
            return known | jobs()
        if time.monotonic() > until:
            sys.exit(f"these jobs didn't end: {left}, nor these calls of sbatch: {waiting}; see {root}")
        time.sleep(0.5)


def record(given):
    scripts = sorted(pathlib.Path(given.scripts).glob("*.sbatch"))
    names = given.only.split(",") if given.only else None
    scripts = [s for s in scripts if names is None or s.stem in names]
    root = pathlib.Path(tempfile.mkdtemp(prefix="corpus-"))
    # Jobs of other accounts write there, too.
    root.chmod(0o777)
    programs, notes, work = (root / part for part in ("bin", "notes", "work"))
    for folder in (programs, notes, work):
        folder.mkdir()
        folder.chmod(0o777)
    for name in PROGRAMS:
        (programs / name).write_text(NOTE)
        (programs / name).chmod(0o755)
    record, known, running = {}, {}, []
    # Numbers of jobs are to be found in outputs, so that they have four digits at least.
    first = run(["sbatch", "--parsable", "--hold", "--array=0-999", "--output=/dev/null", "--wrap=true"], cwd=work)
    run(["scancel", first.stdout.strip()])
    until = time.monotonic() + given.within
    alone = {script.stem for script in scripts if re.search(r"^#ALONE$", script.read_text(), re.M)}
    for script in sorted(scripts, key=lambda script: script.stem not in alone):
        folder = work / script.stem
        folder.mkdir()
        folder.chmod(0o777)
        (folder / "bin").symlink_to(programs)
        copy = folder / script.name
        shutil.copy(script, copy)
        text = script.read_text()
        words = re.findall(r"^#RUN (.*)$", text, re.M)
        words = shlex.split(words[0]) if words else ["SCRIPT"]
        words = [copy.name if word == "SCRIPT" else word for word in words]
        environment = dict(os.environ)
        environment.update(
            PATH=f"{programs}:{environment['PATH']}", BIN=str(programs), FROM_OUTSIDE="yes", TERM="dumb", SHELL="/bin/bash"
        )
        environment["BASH_FUNC_module%%"] = "() { python module \"$@\"; }"
        environment.update(line.split("=", 1) for line in re.findall(r"^#ENV (.*)$", text, re.M))
        for line in re.findall(r"^#PREPARE (.*)$", text, re.M):
            subprocess.run(line, shell=True, cwd=folder, check=True)
        child = subprocess.Popen(
            ["sbatch", *words], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        # One that waits for its job must not keep the others from being submitted.
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            pass
        running.append((script.stem, folder, child))
        if script.stem in alone:
            known.update(ended(running, until, root))
    known.update(ended(running, until, root))
    numbers = {number for facts in known.values() for number in (facts["JobId"],) if len(number) >= 4}
    for name, folder, child in running:
        out, errors = child.stdout.read(), child.stderr.read()
        own = {n: f for n, f in known.items() if pathlib.Path(f.get("WorkDir", "/")) == folder}
        submitted = re.findall(r"^(?:Submitted batch job )?(\d+)$", out, re.M)
        own.update((n, f) for n, f in known.items() if n.split("_")[0] in submitted)
        def plain(text):
            return re.sub(r"\d+", lambda m: "J" if m.group() in numbers else m.group(), text)
        calls = []
        path = notes / name
        for line in path.read_text().splitlines() if path.exists() else []:
            call = json.loads(line)
            call["arguments"] = [plain(word.replace(str(root), "FOLDER")) for word in call["arguments"]]
            call["environment"] = normal_call(call)
            calls.append(call)
        files = [plain(str(p.relative_to(folder))) for p in folder.rglob("*") if p.is_file() and "bin" not in p.parts[-2:-1]]
        record[name] = {
            "code": child.returncode,
            "printed": plain(out),
            "errors": plain(errors.replace(str(root), "FOLDER")),
            "ends": sorted(
                f"{f.get('JobName')} {f.get('JobState')} {f.get('ExitCode')} {limit(f)}" for f in own.values()
            ),
            "files": sorted(collections.Counter(files).items()),
            "calls": calls,
        }
    pathlib.Path(given.out).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    print(f"{sum(not r['code'] for r in record.values())} of {len(record)} accepted; {root}")


def limit(facts):
    # While it starts, Slurm shows a year for a job without a limit.
    return facts.get("TimeLimit").replace("365-00:00:00", "UNLIMITED")


def count_nodes(text):
    total = 0
    for part in re.findall(r"[^,\[]+(?:\[[^\]]*\])?", text):
        inside = re.search(r"\[(.*)\]", part)
        for piece in inside.group(1).split(",") if inside else ["1"]:
            first, _, last = piece.partition("-")
            total += int(last) - int(first) + 1 if last else 1
    return f"{total} nodes"


def normal(name, value, job):
    if name in OWN:
        return "set" if value else "empty"
    if name in NODES:
        return count_nodes(value)
    if name in DEVICES:
        return f"{len([d for d in value.split(',') if d])} devices"
    if name == "SLURM_JOB_DEPENDENCY":
        return re.sub(r"\d+", "J", value)
    return "J" if value in job else value


def normal_call(call):
    variables = call["environment"]
    job = {v for k, v in variables.items() if k in ("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID")}
    names = {k: normal(k, v, job) for k, v in variables.items() if k not in SELF}
    for name in ("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID"):
        if name in names:
            names[name] = "J"
    return names


def key(call):
    return (call["program"], call["arguments"], call["environment"].get("SLURM_PROCID", ""),
            call["environment"].get("SLURM_ARRAY_TASK_ID", ""), call["environment"].get("SLURM_STEP_ID", ""))


def absent_variables():
    """Variables of Slurm that are deliberately absent, as the page for users states them."""
    page = pathlib.Path(__file__).parent.parent.parent / "docs" / "from-slurm.md"
    text = page.read_text().split("These are deliberately absent:")[1]
    return set(re.findall(r"^\| `(\w+)` \|", text, re.M))


def is_known(script, variable, values, absent):
    """Whether a difference between variables is documented for users."""
    one, other = values
    if variable in absent and other is None:
        return True
    # A job without GPUs has a slice here, and one without memory no share of the node's.
    if variable in DEVICES | {"SLURM_GPUS_ON_NODE", "SLURM_STEP_GPUS"} and one in (None, "0 devices"):
        return True
    if variable == "SLURM_MEM_PER_CPU" and one == "1000" and other is None:
        return True
    # Steps have no number of a process; a step of sbcast counts here.
    if variable in ("SLURM_TASK_PID", "SLURM_STEPID", "SLURM_STEP_ID"):
        return True
    # Without --cpus-per-task, Slurm counts the processors that its plug-ins chose.
    if variable in ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE") and script in PROCESSORS:
        return True
    return other is not None and one is None and variable in MORE


# Scripts whose options bind processors (--gres-flags, --overcommit, --mincpus), or take a whole node of 16 with fewer.
PROCESSORS = {"gres-per-task-form", "mpi-ranks", "licences-and-keys", "ray-cluster", "exclusive-hint"}
# Variables that exist here in addition.
MORE = {"SLURM_TMPDIR", "SLURM_SUBMIT_SCRIPT", "SLURM_JOB_QOS", "SLURM_JOB_ACCOUNT", "SLURM_STEP_GPUS", "SLURM_UMASK", "SLURM_MPI_TYPE"}


def compare(given):
    slurm, ours = (json.loads(pathlib.Path(path).read_text()) for path in (given.slurm, given.ours))
    alike, variables, absent, unlike = 0, collections.defaultdict(list), absent_variables(), []
    for name, one in sorted(slurm.items()):
        other = ours.get(name)
        if other is None:
            continue
        problems = []
        if (one["code"], one["printed"]) != (other["code"], other["printed"]):
            problems.append(f"sbatch: {one['code']} {one['printed']!r}, here {other['code']} {other['printed']!r} {other['errors'].strip()!r}")
        for part in ("ends", "files"):
            if one[part] != other[part]:
                problems.append(f"{part}: {one[part]}, here {other[part]}")
        calls = [sorted(record["calls"], key=key) for record in (one, other)]
        told = [[(c["program"], c["arguments"]) for c in part] for part in calls]
        if told[0] != told[1]:
            problems.append(f"calls: {told[0]}\n      here  {told[1]}")
        else:
            for a, b in zip(*calls):
                a, b = a["environment"], b["environment"]
                for variable in sorted(set(a) | set(b)):
                    values = (a.get(variable), b.get(variable))
                    if values[0] != values[1] and not is_known(name, variable, values, absent):
                        variables[variable, values].append(name)
        alike += not problems
        if problems:
            unlike.append(name)
            print(name + "\n    " + "\n    ".join(problems))
    print(f"\n{alike} of {len(set(slurm) & set(ours))} scripts do the same")
    for (variable, (a, b)), names in sorted(variables.items(), key=lambda item: (item[0][0], str(item[0][1]))):
        places = sorted(set(names))
        print(f"{variable}: {a!r}, here {b!r}  ({len(places)}: {', '.join(places[:4])})")
    differing = sorted({name for names in variables.values() for name in names} | set(unlike))
    print(json.dumps({"scripts": len(set(slurm) & set(ours)), "alike": alike, "unlike": unlike, "differing": differing}))
    return 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    verb = verbs.add_parser("record")
    verb.add_argument("scripts")
    verb.add_argument("out")
    verb.add_argument("--only")
    verb.add_argument("--within", type=float, default=300)
    verb.set_defaults(act=record)
    verb = verbs.add_parser("compare")
    verb.add_argument("slurm")
    verb.add_argument("ours")
    verb.set_defaults(act=compare)
    given = parser.parse_args()
    sys.exit(given.act(given))


if __name__ == "__main__":
    main()
