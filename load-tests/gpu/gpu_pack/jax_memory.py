"""A program of JAX whose memory grows: `jax_memory.py`. It reports what its allocator had."""

import json
import os
import sys
import time


def main():
    import jax
    import jax.numpy as numbers

    kept = []
    for _ in range(int(sys.argv[1])):
        kept.append(numbers.ones((16, 1024, 1024), numbers.float32).block_until_ready())
        time.sleep(0.25)
    # The companion looks once a second.
    time.sleep(2.5)
    stats = jax.devices()[0].memory_stats() or {}
    print(json.dumps({
        "pid": os.getpid(), "platform": jax.devices()[0].platform, "version": jax.__version__,
        "stats": {name: int(value) for name, value in stats.items()},
    }), flush=True)


if __name__ == "__main__":
    main()
