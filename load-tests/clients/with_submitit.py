"""submitit, unmodified: one function, an array, and a function that fails."""

import os
import sys

import submitit


def add(a, b):
    return a + b, os.environ["SLURM_JOB_ID"]


def fail():
    raise ValueError("no such luck")


executor = submitit.SlurmExecutor(folder=os.path.join(sys.argv[1], "log_%j"))
executor.update_parameters(time=5, gpus_per_node=1, mem="200M", cpus_per_task=1)
job = executor.submit(add, 40, 2)
assert job.result()[0] == 42, job.stderr()
assert job.result()[1] == job.job_id
executor.update_parameters(array_parallelism=2)
jobs = executor.map_array(add, [1, 2, 3], [10, 20, 30])
assert [task.result()[0] for task in jobs] == [11, 22, 33]
failed = executor.submit(fail)
assert isinstance(failed.exception(), submitit.core.utils.FailedJobError), failed.exception()
print("CLIENT DONE", submitit.__version__)
