"""Parsl, unmodified: its provider for Slurm starts a block of workers, which run apps."""

import sys

import parsl
from parsl.config import Config
from parsl.executors import HighThroughputExecutor
from parsl.launchers import SimpleLauncher
from parsl.providers import SlurmProvider


@parsl.python_app
def square(number):
    return number * number


def main():
    provider = SlurmProvider(
        partition="gpu", nodes_per_block=1, init_blocks=1, max_blocks=1, walltime="00:10:00",
        launcher=SimpleLauncher(), exclusive=False,
        worker_init=f"export PATH={sys.prefix}/bin:$PATH",
    )
    executor = HighThroughputExecutor(address="127.0.0.1", max_workers_per_node=1, provider=provider)
    with parsl.load(Config(executors=[executor], run_dir=sys.argv[1], strategy="none")):
        assert [square(number).result(timeout=180) for number in range(4)] == [0, 1, 4, 9]
    print("CLIENT DONE", parsl.__version__)


if __name__ == "__main__":
    main()
