"""What a job of the executor runs: ``python -m tessera.worker FOLDER``."""

import os
import pathlib
import sys

from .executor import run_call


def main() -> int:
    index = os.environ.get("TESSERA_ARRAY_TASK_ID") or os.environ.get("SLURM_ARRAY_TASK_ID") or "0"
    return run_call(pathlib.Path(sys.argv[1]) / index)


if __name__ == "__main__":
    sys.exit(main())
