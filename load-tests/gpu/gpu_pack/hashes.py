"""Part 3: the results of programs with the shim in each role are, bit by bit, those without it."""

import threading
from concurrent import futures

from .part import Part
from .pipe import Pipe, of_kind
from .processes import Child, Queue
from .roles import ROLES, Roles


def watched(part, module, title, arguments, variables, alone, within):
    """Runs a program that the shim only watches."""
    with part.guarded("%s: watched" % title), Pipe() as pipe:
        with Child(module, "none", *arguments, env=dict(pipe.for_watch(), **variables)) as child:
            report = child.report(within)
        first = of_kind(pipe.finish(), "f")
        for name, value in alone["results"].items():
            if "hash" in value:
                there = report["results"].get(name, {})
                part.check("%s: %s, watched" % (title, name), bool(first) and there.get("hash") == value["hash"],
                           hash=there.get("hash"), without=value["hash"], first_launches=len(first))


def compare(part, module, title, arguments=(), variables=None, within=150):
    """Runs a program without the shim and in each role, and compares what it computed.

    The roles run side by side, each with its own queue: results must not depend on times.
    """
    variables = variables or {}
    with Child(module, "none", *arguments, env=variables) as child:
        alone = child.report(within)
    for name, value in alone["results"].items():
        if "hash" not in value:
            part.row(value.get("status", "fail"), "%s: %s, without the shim" % (title, name),
                     **{key: value[key] for key in value if key != "status"})
    again = {}

    def is_steady(name, value):
        """A program that never computes the same proves nothing about the shim."""
        with once:
            if not again:
                with Child(module, "none", *arguments, env=variables) as child:
                    again.update(child.report(within)["results"])
        return again.get(name, {}).get("hash") == value["hash"]

    def run(role):
        with part.guarded("%s: %s" % (title, role)), Queue(part.machine) as queue:
            with Roles(queue, title).role(role) as environment:
                with Child(module, role, *arguments, env=dict(environment, **variables)) as child:
                    report = child.report(within)
            for name, value in alone["results"].items():
                if "hash" not in value:
                    continue
                there = report["results"].get(name, {})
                row = "%s: %s, %s" % (title, name, role)
                facts = {"hash": there.get("hash"), "without": value["hash"], "role": there.get("role")}
                if "hash" not in there:
                    part.row("fail", row, **{key: there[key] for key in there if key != "status"})
                elif there["hash"] != value["hash"] and not is_steady(name, value):
                    part.row("skip", row, reason="two runs without the shim differ as well: it is not deterministic here")
                elif there["hash"] != value["hash"]:
                    part.row("fail", row, **facts)
                elif there["role"] != role:
                    part.row("skip", row, reason="same result, but the role was %s: the queue gave no other in time"
                             % there["role"], **facts)
                else:
                    part.row("pass", row, **facts)

    once = threading.Lock()
    with futures.ThreadPoolExecutor(1 if part.machine["stand_in"] else len(ROLES) + 1) as pool:
        running = [pool.submit(watched, part, module, title, arguments, variables, alone, within)]
        running += [pool.submit(run, role) for role in ROLES]
    for one in running:
        one.result()


def allocator(setting):
    """Returns the variables of a setting of PyTorch's allocator, under its older and its newer name."""
    return {"PYTORCH_CUDA_ALLOC_CONF": setting, "PYTORCH_ALLOC_CONF": setting}


def main():
    part = Part("3-hashes", "result hashes with and without the shim in each role")
    with part.guarded("hashes"):
        part.need_sharing()
        with part.guarded("driver"):
            compare(part, "driver_results", "driver", ["200" if part.quick else "5000"])
        with part.guarded("torch"):
            part.need_torch()
            sets = (
                ("torch", ["resnet50", "gpt2", "graphs", "compile", "nccl"], {}),
                ("cudaMallocAsync", ["gpt2"], allocator("backend:cudaMallocAsync")),
                ("expandable segments", ["gpt2"], allocator("expandable_segments:True")),
            )
            for title, names, variables in sets:
                with part.guarded(title):
                    compare(part, "torch_results", title, names, variables)
    part.done()


if __name__ == "__main__":
    main()
