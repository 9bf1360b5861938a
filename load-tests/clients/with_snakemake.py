"""snakemake with its executor for Slurm, unmodified: three rules, two of them at once."""

import importlib.metadata
import os
import pathlib
import subprocess
import sys

folder = pathlib.Path(sys.argv[1])
(folder / "Snakefile").write_text("""
rule all:
    input: "sum.txt"

rule part:
    output: "part{n}.txt"
    resources: runtime=5, mem_mb=200, slurm_partition="gpu"
    shell: "echo {wildcards.n} > {output}"

rule sum:
    input: "part1.txt", "part2.txt"
    output: "sum.txt"
    resources: runtime=5, mem_mb=200, slurm_partition="gpu"
    shell: "cat {input} > {output}"
""")
ran = subprocess.run(
    [
        sys.executable, "-m", "snakemake", "--executor", "slurm", "--jobs", "2", "--directory", str(folder),
        "--snakefile", str(folder / "Snakefile"), "--latency-wait", "20",
        "--slurm-init-seconds-before-status-checks", "2", "--seconds-between-status-checks", "2",
    ],
    env=dict(os.environ),
)
assert ran.returncode == 0, ran.returncode
assert (folder / "sum.txt").read_text() == "1\n2\n"
versions = [importlib.metadata.version(name) for name in ("snakemake", "snakemake-executor-plugin-slurm")]
print("CLIENT DONE", *versions)
