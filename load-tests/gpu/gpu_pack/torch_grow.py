"""A program whose memory behaves in a known way: `torch_grow.py SCENE LIMIT_MIB`. It reports what its allocator had.

Each iteration has a step of an optimizer, which the companion counts.
"""

import json
import os
import sys
import time

import torch

MIB = 1 << 20
IS_STAND_IN = "stand-in" in str(torch.__version__)


def steps_alone():
    """Takes 8 MiB more in each iteration, as a list of losses or a replay buffer does. The stand-in can do this, too."""
    kept, optimizer = [], torch.optim.SGD() if IS_STAND_IN else None
    if not IS_STAND_IN:
        weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
        weight.grad = torch.ones_like(weight)
        optimizer = torch.optim.SGD([weight], lr=0.0)
    while True:
        kept.append(
            torch.empty(8 * MIB) if IS_STAND_IN else torch.full((2 * MIB,), 1.0, device="cuda")
        )
        optimizer.step()
        yield


def gpt2(layers=6, wide=512):
    from . import models

    return models.gpt2(layers=layers, wide=wide, heads=8, words=16000, positions=8192)


def trainer(net, rate=1e-4):
    net.train()
    return torch.optim.AdamW(net.parameters(), lr=rate)


def loss_of(net, batch, length, generator):
    """The loss of a language model on random tokens: the net yields the last token's values only."""
    tokens = torch.randint(0, net.words.num_embeddings, (batch, length), device="cuda", generator=generator)
    values, _ = net(tokens, [None] * len(net.blocks))
    return values.float().logsumexp(-1).mean()


def longer_and_longer():
    """A curriculum: each iteration has 16 tokens more."""
    net, _ = gpt2()
    optimizer, generator = trainer(net), torch.Generator("cuda").manual_seed(1)
    length = 64
    while length < 8192:
        optimizer.zero_grad()
        loss_of(net, 4, length, generator).backward()
        optimizer.step()
        length += 16
        yield


def kept_losses():
    """The usual mistake: the sum of losses keeps each iteration's graph."""
    net, _ = gpt2(2, 256)
    optimizer, generator = trainer(net), torch.Generator("cuda").manual_seed(2)
    total = torch.zeros((), device="cuda")
    while True:
        loss = loss_of(net, 2, 128, generator)
        total = total + loss
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        # The graph is kept, but its parts were changed in place by the step.
        optimizer.step()
        yield


def replay():
    """Reinforcement learning: frames stay on the device, and each iteration trains on a few of them."""
    net = torch.nn.Sequential(
        torch.nn.Conv2d(4, 32, 8, 4), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(32 * 20 * 20, 6)
    ).cuda()
    optimizer, frames = torch.optim.Adam(net.parameters()), []
    while True:
        frames += [torch.rand(4, 84, 84, device="cuda") for _ in range(64)]
        at = torch.randint(0, len(frames), (32,)).tolist()
        optimizer.zero_grad()
        net(torch.stack([frames[number] for number in at])).square().mean().backward()
        optimizer.step()
        yield


def cached_data():
    """The first pass over the data keeps it on the device; later passes need no more."""
    net, data = torch.nn.Linear(4096, 256).cuda(), []
    optimizer, number = torch.optim.SGD(net.parameters(), lr=1e-3), 0
    while True:
        if number < 60:
            data.append(torch.rand(2048, 4096, device="cuda"))
        optimizer.zero_grad()
        net(data[number % len(data)]).square().mean().backward()
        optimizer.step()
        number += 1
        yield


def steady():
    """Training with batches of one size: only the optimizer's first step adds something."""
    net, _ = gpt2()
    optimizer, generator = trainer(net), torch.Generator("cuda").manual_seed(3)
    while True:
        optimizer.zero_grad()
        loss_of(net, 4, 256, generator).backward()
        optimizer.step()
        yield


def evaluations():
    """Training with an evaluation of a larger batch every 20 iterations."""
    net, _ = gpt2()
    optimizer, generator = trainer(net), torch.Generator("cuda").manual_seed(4)
    number = 0
    while True:
        optimizer.zero_grad()
        loss_of(net, 4, 256, generator).backward()
        optimizer.step()
        number += 1
        if number % 20 == 0:
            with torch.no_grad():
                loss_of(net, 32, 256, generator)
        yield


def random_lengths():
    """Sentences of random lengths: the cache fills up and fragments."""
    net, _ = gpt2()
    optimizer, generator = trainer(net), torch.Generator("cuda").manual_seed(5)
    lengths = torch.Generator().manual_seed(6)
    while True:
        optimizer.zero_grad()
        loss_of(net, 4, int(torch.randint(32, 768, (1,), generator=lengths)), generator).backward()
        optimizer.step()
        yield


def survived():
    """Halves its batch after a refusal, as Lightning's batch size finder does, and goes on."""
    net, _ = gpt2()
    optimizer, generator = trainer(net), torch.Generator("cuda").manual_seed(7)
    batch = 256
    while True:
        optimizer.zero_grad()
        try:
            loss_of(net, batch, 512, generator).backward()
        except torch.cuda.OutOfMemoryError:
            batch //= 2
            torch.cuda.empty_cache()
            continue
        optimizer.step()
        yield


# How many iterations, how long each lasts at least, and whether the limit is to be reached.
SCENES = {
    "steps_alone": (steps_alone, 1000, 0.11, True),
    "longer_and_longer": (longer_and_longer, 1000, 0.11, True),
    "kept_losses": (kept_losses, 1000, 0.11, True),
    "replay": (replay, 1000, 0.11, True),
    "cached_data": (cached_data, 160, 0.11, False),
    "steady": (steady, 160, 0.11, False),
    "evaluations": (evaluations, 160, 0.11, False),
    "random_lengths": (random_lengths, 160, 0.11, False),
    "survived": (survived, 60, 0.11, False),
}


def main():
    scene, limit = sys.argv[1], int(sys.argv[2]) * MIB
    make, count, least, _ = SCENES[scene]
    before_context = torch.cuda.is_initialized()
    if IS_STAND_IN:
        count = 40
    else:
        torch.zeros(1, device="cuda")
        torch.cuda.set_per_process_memory_fraction(limit / torch.cuda.get_device_properties(0).total_memory)
    iterations, ended, refused = 0, "done", 0
    series = []
    try:
        body = make()
        for _ in range(count):
            begun = time.monotonic()
            next(body)
            iterations += 1
            stats = torch.cuda.memory_stats(0)
            series.append([iterations] + [
                stats["%s_bytes.all.%s" % (what, when)]
                for what, when in (("allocated", "current"), ("reserved", "current"), ("allocated", "peak"))
            ])
            # The companion reports ten times a second at most.
            time.sleep(max(0.0, least - (time.monotonic() - begun)))
    except torch.cuda.OutOfMemoryError as error:
        ended, refused = "out of memory", 1
        message = str(error)
    stats = torch.cuda.memory_stats(0)
    report = {
        "scene": scene, "pid": os.getpid(), "initialised_at_start": before_context, "iterations": iterations, "ended": ended,
        "limit": limit, "allocated_peak": stats["allocated_bytes.all.peak"],
        "reserved_peak": stats["reserved_bytes.all.peak"], "refusals": stats.get("num_ooms", refused),
        "series": series,
    }
    if ended == "out of memory":
        report["message"] = message[:300]
    print(json.dumps(report), flush=True)


if __name__ == "__main__":
    main()
