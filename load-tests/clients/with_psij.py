"""PSI/J, unmodified: a job that succeeds on a GPU, one of two processes, one that fails, and one that is cancelled."""

import datetime
import importlib.metadata
import pathlib
import sys

from psij import (
    Job, JobAttributes, JobExecutor, JobSpec, JobState, ResourceSpecV1,
)

FOLDER = pathlib.Path(sys.argv[1])
WITHIN = datetime.timedelta(seconds=120)


def job(name, line, processes=1, launcher="single"):
    return Job(JobSpec(
        executable="/bin/sh", arguments=["-c", line], name=name, directory=FOLDER,
        stdout_path=FOLDER / f"{name}.out", stderr_path=FOLDER / f"{name}.err", launcher=launcher,
        resources=ResourceSpecV1(process_count=processes, gpu_cores_per_process=1),
        attributes=JobAttributes(duration=datetime.timedelta(minutes=5), queue_name="gpu"),
    ))


executor = JobExecutor.get_instance("slurm")
good = job("good", "echo $SLURM_JOB_ID ${CUDA_VISIBLE_DEVICES:?}")
pair = job("pair", "echo rank $SLURM_PROCID", processes=2, launcher="srun")
bad = job("bad", "exit 3")
stopped = job("stopped", "echo begun; exec sleep 600")
for each in (good, pair, bad, stopped):
    executor.submit(each)

stopped.wait(timeout=WITHIN, target_states=[JobState.ACTIVE])
stopped.cancel()
ends = {each.spec.name: each.wait(timeout=WITHIN) for each in (good, pair, bad, stopped)}
assert ends["good"].state == JobState.COMPLETED, ends["good"]
assert ends["pair"].state == JobState.COMPLETED, ends["pair"]
assert ends["bad"].state == JobState.FAILED and ends["bad"].exit_code == 3, ends["bad"]
assert ends["stopped"].state == JobState.CANCELED, ends["stopped"]
assert (FOLDER / "good.out").read_text().split()[0] == good.native_id
assert sorted((FOLDER / "pair.out").read_text().splitlines()) == ["rank 0", "rank 1"]
print("CLIENT DONE", importlib.metadata.version("psij-python"))
