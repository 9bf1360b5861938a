"""How fast the links are: submits by sbatch in a row, and squeue with many waiting jobs.

    rates.py LINKS OUT.json [--jobs 50000] [--submits 200]

TESSERA_URL and TESSERA_TOKEN name the cluster. For a comparison, give a folder with Slurm's programs as LINKS.
"""

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import tempfile
import time


def timed(command):
    start = time.monotonic()
    ran = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return time.monotonic() - start, ran.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("links", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--submits", type=int, default=200)
    given = parser.parse_args()
    sbatch, squeue = (str(given.links / name) for name in ("sbatch", "squeue"))
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        script = pathlib.Path("job.sh")
        script.write_text("#!/bin/sh\n#SBATCH --time=5\nsleep 1\n")
        took = [timed([sbatch, "--hold", str(script)])[0] for _ in range(given.submits)]
        arrays, left = 0, given.jobs - given.submits
        while left > 0:
            size = min(left, 10_000)
            timed([sbatch, "--hold", f"--array=0-{size - 1}", str(script)])
            arrays, left = arrays + 1, left - size
        listed = [timed([squeue, "-h", "-r"]) for _ in range(11)]
    lines = listed[0][1].count(b"\n")
    result = {
        "machine": {"processors": os.cpu_count(), "system": platform.platform(), "load": os.getloadavg()[0]},
        "submits": given.submits,
        "submits_per_second": round(given.submits / sum(took), 1),
        "submit_ms_median": round(statistics.median(took) * 1_000, 1),
        "jobs_listed": lines,
        "arrays": arrays,
        "squeue_ms_median": round(statistics.median(seconds for seconds, _ in listed) * 1_000, 1),
        "squeue_ms_worst": round(max(seconds for seconds, _ in listed) * 1_000, 1),
    }
    given.out.write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps(result, indent=2))


if __name__ == "__main__":
    main()
