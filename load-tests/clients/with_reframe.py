"""ReFrame, unmodified: its scheduler `slurm` runs a test of two processes, one on each node and one that has to fail."""

import importlib.metadata
import pathlib
import subprocess
import sys

FOLDER = pathlib.Path(sys.argv[1])
SETTINGS = """
site_configuration = {
    "systems": [{
        "name": "lab", "hostnames": [".*"], "modules_system": "nomod",
        "partitions": [{
            "name": "gpu", "scheduler": "slurm", "launcher": "srun", "environs": ["builtin"],
            "access": ["--partition=gpu"], "max_jobs": 4, "time_limit": "5m",
            "resources": [{"name": "gpu", "options": ["--gres=gpu:{count}"]}],
        }],
    }],
    "environments": [{"name": "builtin", "cc": "cc", "cxx": "", "ftn": ""}],
}
"""
TESTS = """
import reframe as rfm
import reframe.utility.sanity as sn


class OnGpus(rfm.RunOnlyRegressionTest):
    valid_systems, valid_prog_environs = ["lab:gpu"], ["builtin"]
    executable, executable_opts = "sh", ["-c", "'echo rank $SLURM_PROCID of $SLURM_NTASKS'"]
    extra_resources = {"gpu": {"count": 1}}


@rfm.simple_test
class TwoRanks(OnGpus):
    num_tasks, num_tasks_per_node = 2, 2

    @sanity_function
    def has_both(self):
        return sn.assert_eq(sn.count(sn.findall(r"rank [01] of 2", self.stdout)), 2)


@rfm.simple_test
class EachNode(OnGpus):
    num_tasks, num_tasks_per_node = 2, 1

    @sanity_function
    def has_both(self):
        return sn.assert_eq(sn.count(sn.findall(r"rank [01] of 2", self.stdout)), 2)


@rfm.simple_test
class Fails(OnGpus):
    executable_opts = ["-c", "'exit 3'"]
    num_tasks = 1

    @sanity_function
    def has_failed(self):
        return sn.assert_eq(self.job.exitcode, 3)
"""

(FOLDER / "settings.py").write_text(SETTINGS)
(FOLDER / "tests.py").write_text(TESTS)
reframe = pathlib.Path(sys.executable).parent / "reframe"
ran = subprocess.run(
    [reframe, "-C", "settings.py", "-c", "tests.py", "--prefix", FOLDER, "-r"],
    cwd=FOLDER, capture_output=True, text=True, timeout=300,
)
print(ran.stdout, ran.stderr)
assert ran.returncode == 0 and "Ran 3/3 test case(s)" in ran.stdout, ran.returncode
print("CLIENT DONE", importlib.metadata.version("reframe-hpc"))
