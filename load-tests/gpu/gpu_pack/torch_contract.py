"""What Tessera assumes of PyTorch, as facts of this PyTorch. Its stand-in answers the same: `torch_contract.py`.

The statements are those in lab/stand-in/python/torch/__init__.py.
"""

import json
import sys

import torch

MIB = 1 << 20
BLOCK = 2 * MIB
# The device seems to have no more, so that a refusal costs nothing.
LIMIT = 256 * MIB
IS_STAND_IN = "stand-in" in str(torch.__version__)


def take(size):
    """Allocates bytes on the device."""
    return torch.empty(size) if IS_STAND_IN else torch.empty(size, dtype=torch.uint8, device="cuda")


def limit():
    """Limits what the process may have, where the device is a real one."""
    if not IS_STAND_IN:
        torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.get_device_properties(0).total_memory)


def observer_first():
    """Whether attaching the observer initialises CUDA."""
    before = torch.cuda.is_initialized()
    torch._C._cuda_attach_out_of_memory_observer(lambda *_: None)
    return {"observer_initialises": not before and torch.cuda.is_initialized()}


def facts():
    """Everything else, in an order in which nothing disturbs what follows."""
    found = {}
    before = torch.cuda.is_initialized()
    torch.cuda.device_count()
    found["not_initialised_by_questions"] = not before and not torch.cuda.is_initialized()
    small = take(1000)
    found["initialised_by_allocation"] = torch.cuda.is_initialized()
    limit()

    def stats():
        seen = torch.cuda.memory_stats(0)
        return [
            seen["%s_bytes.all.%s" % (what, when)] for what in ("allocated", "reserved") for when in ("current", "peak")
        ] + [seen["inactive_split_bytes.all.current"]]

    found["flat_integers"] = all(type(number) is int for number in stats())
    allocated, _, reserved, _, _ = stats()
    found["reserved_in_blocks"] = reserved >= allocated > 0 and reserved % BLOCK == 0
    large = take(64 * MIB)
    with_large = stats()
    del large
    after_free = stats()
    found["allocated_falls_with_a_free"] = after_free[0] <= with_large[0] - 64 * MIB
    found["reserved_stays_after_a_free"] = after_free[2] == with_large[2]
    found["peaks_stay"] = after_free[1] == with_large[1] and after_free[3] == with_large[3]
    torch.cuda.empty_cache()
    found["empty_cache_returns_it"] = stats()[2] <= with_large[2] - 64 * MIB
    seen = []
    torch._C._cuda_attach_out_of_memory_observer(lambda *words: seen.append(words))
    cached = take(64 * MIB)
    del cached
    held = stats()
    try:
        take(512 * MIB)
        found["refused"] = False
    except RuntimeError as error:
        found["refused"] = isinstance(error, torch.cuda.OutOfMemoryError) and "out of memory" in str(error)
        found["message"] = str(error)[:300]
    found["observer_calls"] = len(seen)
    words = [int(word) for word in seen[0]] if seen else []
    found["observer_words"] = words
    found["observer_names_device_and_request"] = len(words) == 4 and words[0] == 0 and words[1] >= 512 * MIB
    found["cache_freed_before_it_gives_up"] = held[2] >= 64 * MIB and stats()[2] <= held[2] - 64 * MIB
    del small
    steps = []
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda *arguments: steps.append(len(arguments)))
    if IS_STAND_IN:
        optimizers = [torch.optim.SGD(), torch.optim.SGD()]
    else:
        weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
        weight.grad = torch.ones_like(weight)
        optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.AdamW([weight], lr=0.1)]
    for optimizer in optimizers:
        optimizer.step()
        optimizer.step()
    found["hook_after_each_step_of_each_optimizer"] = steps == [3, 3, 3, 3]
    return found


def main():
    found = observer_first() if sys.argv[1:] == ["observer"] else facts()
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
