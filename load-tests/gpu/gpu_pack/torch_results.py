"""A process that computes with PyTorch and prints a hash of each result: `torch_results.py ROLE NAME...`."""

import ctypes
import hashlib
import importlib
import json
import os
import shutil
import sys
import time
import traceback

import torch

from . import driver as cuda
from . import models
from .settle import Unsteady

# How long a program may need to be measured.
SETTLE_S = 8.0


def hashed(*results):
    """Returns the hash of tensors' bits."""
    digest = hashlib.sha256()
    for result in results:
        digest.update(str((tuple(result.shape), result.dtype)).encode())
        # Without numpy, which is not everywhere.
        here = result.detach().contiguous().cpu()
        digest.update(ctypes.string_at(here.data_ptr(), here.numel() * here.element_size()))
    return digest.hexdigest()


def resnet50(tick, device="cuda"):
    """Inference, and steps of training with their weights."""
    net, _ = models.network("resnet50", device)
    torch.manual_seed(20)
    batch = torch.rand(8, 3, 128, 128, device=device)
    results = []
    with torch.inference_mode():
        for _ in range(3):
            tick()
            results.append(net(batch))
    net.train()
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    for _ in range(2):
        tick()
        optimizer.zero_grad()
        loss = net(batch).square().mean()
        loss.backward()
        optimizer.step()
    return hashed(*results, loss, *net.parameters())


def gpt2(tick, device="cuda", count=24, **sizes):
    """Generation, token by token."""
    net, tokens = models.gpt2(device, **sizes)
    results = []
    with torch.inference_mode():
        for _ in range(2):
            tick()
            results += net.generate(tokens, count)
    return hashed(*results)


def graphs(tick):
    """A captured inference, launched again with other data."""
    net, data = models.network("alexnet")
    place = data.clone()
    with torch.inference_mode():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                net(place)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = net(place)
        results = []
        for number in range(20):
            tick()
            place.copy_(data * (1 + number))
            graph.replay()
            results.append(out.clone())
    return hashed(*results)


def compile(tick):
    """Kernels that Triton makes."""
    torch.manual_seed(21)
    weights = torch.rand(512, 512, device="cuda")

    def step(x):
        return torch.nn.functional.gelu(x @ weights).softmax(-1) + x.sin()

    compiled = torch.compile(step)
    x = torch.rand(64, 512, device="cuda")
    for _ in range(20):
        tick()
        x = compiled(x)
    return hashed(x)


def nccl(tick):
    """Collectives of one rank."""
    import torch.distributed as group

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    store = group.HashStore()
    group.init_process_group("nccl", store=store, rank=0, world_size=1)
    try:
        torch.manual_seed(22)
        data = torch.rand(1 << 20, device="cuda")
        parts = [torch.empty_like(data)]
        for _ in range(10):
            tick()
            group.all_reduce(data)
            group.broadcast(data, 0)
            group.all_gather(parts, data)
            data = parts[0] * 0.5 + 0.25
        torch.cuda.synchronize()
        return hashed(data)
    finally:
        group.destroy_process_group()


PROGRAMS = {"resnet50": resnet50, "gpt2": gpt2, "graphs": graphs, "compile": compile, "nccl": nccl}


def lacking(name):
    """Returns why a program can't run here; None if it can."""
    if name == "compile":
        try:
            importlib.import_module("triton")
        except Exception as error:  # Absent or broken.
            return "torch.compile needs triton: %s" % error
        if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
            return "torch.compile needs a C compiler for Triton's launcher"
    if name == "nccl":
        import torch.distributed as group

        if not group.is_available() or not group.is_nccl_available():
            return "this torch has no NCCL"
    return None


def main():
    wanted, names = sys.argv[1], sys.argv[2:]
    models.use_exact_arithmetic()
    torch.zeros(1, device="cuda")
    # The primary context is torch's own.
    driver = cuda.Driver().open()
    unsteady = Unsteady(driver, wanted)
    results = {}

    def keep_measuring():
        # A generation has some thousand launches, and a kernel rarer than one in a thousand is not waited for.
        for _ in range(8):
            unsteady.go()

    for name in names:
        roles = set()

        def tick():
            keep_measuring()
            roles.add(driver.role())

        why = lacking(name)
        if why:
            results[name] = {"status": "skip", "reason": why}
            continue
        try:
            if wanted != "none":
                # Until the role is there: the first runs are measured.
                until = time.monotonic() + SETTLE_S
                while True:
                    PROGRAMS[name](keep_measuring)
                    torch.cuda.synchronize()
                    if driver.role() == wanted or time.monotonic() > until:
                        break
            found = PROGRAMS[name](tick)
            role = roles.pop() if len(roles) == 1 else "changing: %s" % sorted(roles)
            results[name] = {"hash": found, "role": role, "allocator": torch.cuda.get_allocator_backend()}
        except Exception as error:  # One that fails proves nothing about the others.
            results[name] = {
                "status": "fail", "error": "%s: %s" % (type(error).__name__, error), "trace": traceback.format_exc(),
            }
    print(json.dumps({"results": results}), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
