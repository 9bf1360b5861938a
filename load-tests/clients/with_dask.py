"""dask-jobqueue, unmodified: two workers start as jobs, compute, and are cancelled."""

import subprocess
import sys

import dask_jobqueue
from dask.distributed import Client
from dask_jobqueue import SLURMCluster


def main():
    with SLURMCluster(
        cores=1, memory="300MB", processes=1, walltime="00:10:00", queue="gpu",
        log_directory=sys.argv[1], local_directory=sys.argv[1], python=sys.executable,
    ) as cluster, Client(cluster) as client:
        cluster.scale(jobs=2)
        client.wait_for_workers(2, timeout=120)
        assert client.submit(sum, range(10)).result(timeout=60) == 45
        assert sum(client.gather(client.map(lambda n: n * n, range(20)))) == 2470
    left = subprocess.run(["squeue", "-h", "-t", "PD,R", "-n", "dask-worker"], capture_output=True, text=True)
    print("left:", left.stdout.strip())
    print("CLIENT DONE", dask_jobqueue.__version__)


if __name__ == "__main__":
    main()
