"""submitit, unmodified: one function, an array, a function that fails, and one that is interrupted and goes on."""

import os
import pathlib
import sys
import time

import submitit


def add(a, b):
    return a + b, os.environ["SLURM_JOB_ID"]


def fail():
    raise ValueError("no such luck")


class Training:
    """Runs for long, until it is interrupted and continues from its checkpoint."""

    def __init__(self, started, rounds=0):
        self.started, self.rounds = started, rounds

    def __call__(self):
        pathlib.Path(f"{self.started}-{self.rounds}").touch()
        if self.rounds == 0:
            time.sleep(120)
        return self.rounds

    def checkpoint(self):
        return submitit.helpers.DelayedSubmission(Training(self.started, self.rounds + 1))


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
started = os.path.join(sys.argv[1], "started")
training = executor.submit(Training(started))
while not os.path.exists(f"{started}-0"):
    time.sleep(0.2)
# By scancel --signal: the process pickles itself, and requeues its job by scontrol.
training._interrupt()
assert training.result() == 1, training.stderr()
print("CLIENT DONE", submitit.__version__)
