"""Writes a corpus of batch scripts for check.sh: our own minimal cases of what public scripts for GPU clusters do.

    make.py FOLDER

Each line of OPTIONS stands for one way in which public scripts write their options, and each entry of BODIES for
what they do. Their frequencies follow a study of 612 public scripts of 38 repositories. Scripts are the same each
time.
"""

import itertools
import pathlib
import sys

# How scripts begin, what they name their job and where their output goes.
HEADS = [
    "-J train\n-o %x-%j.out",
    "--job-name=train\n--output=%x_%j.out\n--error=%x_%j.err",
    "--job-name=\"two words\"        # a name\n--output=out.txt",
    "--job-name train\n--output %j.log\n--open-mode=append",
    "-J eval\n-o eval.%J.out\n-e eval.%J.err",
]
LIMITS = ["--time=01:00:00", "--time=2-00:00:00", "-t 30", "--time=1-0", "--time=00:05:00", "-t 7-00:00:00", "--time=90:00"]
QUEUES = [
    "--partition=gpu",
    "-p gpu\n--account=project_2001659",
    "-p a100,v100\n--qos=normal",
    "-A lab\n-q regular",
    "--mail-type=ALL\n--mail-user=ada@example.org",
    "--mail-type=BEGIN,END,FAIL\n--mail-user=<YourNetID>@example.org",
    "--reservation=course",
    "",
]
SIZES = [
    "--gres=gpu:1",
    "--gres=gpu",
    # Sites count more than GPUs: their memory, or disks of nodes.
    "--gres=gpu:1,vmem:10g",
    "--gpus=1\n--gres=gpumem:24g",
    "--gpus=1",
    "-G 1",
    "--gpus-per-node=1",
    "--gpus-per-task=1\n--ntasks=1",
    "--gres=gpu:2\n--nodes=1\n--ntasks-per-node=2",
    "--gpus-per-node=2\n--ntasks-per-node=1",
    "--nodes=2\n--gres=gpu:1\n--ntasks-per-node=1",
    "-N 2\n--gpus-per-node=2\n--ntasks-per-node=2",
    "--gres=gpu:1g.5gb:1",
    "--gres=gpu:a100:1",
    "--gpus-per-node=a100:2",
    "--gpus-per-node=a100",
    "--constraint=a100\n--gres=gpu:1",
    "--exclusive\n--gres=gpu:2",
]
REST = [
    "--cpus-per-task=4\n--mem=16G",
    "-c 8 --mem=32gb",
    "--mem-per-cpu=4G\n--cpus-per-task=2",
    "--mem-per-gpu=20G\n--cpus-per-gpu=4",
    "--mem=0",
    "--nodes=1\n--ntasks=1\n--cpus-per-task=10\n--mem=512M",
    "--ntasks=1\n--hint=nomultithread\n--threads-per-core=1",
    "--requeue\n--signal=B:USR1@60",
    "--signal=USR2@90\n--wckey=submitit",
    "--export=ALL\n--no-requeue",
    "--export=ALL,WANDB_MODE=offline",
    "--array=0-2",
    "--array=1,3,7-9:2%2",
    "--array=[0-2]%2",
    "--dependency=singleton",
    "--dependency=afterok:1\n--kill-on-invalid-dep=yes",
    "--begin=now+1",
    "--comment=\"a remark\"\n--nice=100",
    "--chdir=.",
    "--wait-all-nodes=1\n--distribution=block:block",
    "--tmp=10G\n--get-user-env",
]
BODIES = {
    "python": "python train.py --epochs 3 \"$@\"\n",
    "srun": "srun python train.py\n",
    "label": "srun -l hostname\nsrun -l python -u train.py\n",
    "step": "srun --ntasks=1 --exact --cpu-bind=cores --unbuffered --output=step-%j-%t.txt python train.py\n",
    "jobid": "srun --jobid $SLURM_JOBID -n1 -N1 bash -c 'python train.py --rank $SLURM_PROCID'\n",
    "torchrun": "torchrun --standalone --nproc_per_node=${SLURM_GPUS_ON_NODE:-1} train.py\n",
    "rendezvous": (
        "nodes=($(scontrol show hostnames $SLURM_JOB_NODELIST))\nexport MASTER_ADDR=${nodes[0]}\n"
        "export MASTER_PORT=$((10000 + SLURM_JOB_ID % 10000))\n"
        "torchrun --nnodes=$SLURM_NNODES --nproc_per_node=1 --rdzv_endpoint=$MASTER_ADDR:$MASTER_PORT train.py\n"
    ),
    "folder": "set -e\ncd $SLURM_SUBMIT_DIR\nmkdir -p results\ndate; hostname; nvidia-smi -L || true\npython train.py\n",
    "module": "module purge || true\nmodule load cuda/12.2 || true\nsource $SLURM_SUBMIT_DIR/env.sh || true\npython3 train.py\n",
    "trap": "trap 'echo stop' USR1\npython train.py &\nwait\n",
    "heredoc": "cat > config-$SLURM_JOB_ID.yaml <<END\nseed: ${SLURM_ARRAY_TASK_ID:-0}\nEND\npython train.py\n",
    "several": "for seed in 1 2; do srun -n1 --overlap python train.py --seed $seed & done\nwait\n",
    "singularity": "singularity exec --nv image.sif python train.py\n",
    "mpirun": "mpirun -np ${SLURM_NTASKS:-1} python train.py\n",
    "line": (
        "printf 'a\\nb\\nc\\nd\\ne\\nf\\ng\\nh\\ni\\n' > lines-$SLURM_JOB_ID.txt\n"
        "read -r setting <<END\n$(sed -n \"${SLURM_ARRAY_TASK_ID:-1}p\" lines-$SLURM_JOB_ID.txt)\nEND\n"
        "python train.py --setting \"$setting\"\n"
    ),
    "hostfile": (
        "for node in $(scontrol show hostnames $SLURM_JOB_NODELIST); do\n"
        "  echo \"$node slots=${SLURM_GPUS_ON_NODE:-1}\" >> hostfile-$SLURM_JOB_ID\ndone\n"
        "test -s hostfile-$SLURM_JOB_ID && python train.py --hostfile hostfile-$SLURM_JOB_ID\n"
    ),
    "multiprog": (
        "echo '0 python train.py --rank %t' > programs-$SLURM_JOB_ID.conf\n"
        "srun -n1 -N1 --multi-prog programs-$SLURM_JOB_ID.conf\n"
    ),
    # What scripts that requeue themselves look at first. Slurm sets the variable only in later runs.
    "restarts": (
        "restarts=$(scontrol show job $SLURM_JOB_ID | grep -o 'Restarts=[0-9]*' | cut -d= -f2)\n"
        "test \"$restarts\" = 0 && test -z \"${SLURM_RESTART_COUNT:-}\" && python train.py\n"
    ),
    # What scripts that submit themselves again look at.
    "itself": (
        "script=$(scontrol show job $SLURM_JOB_ID | awk -F= '/Command=/{print $2}')\n"
        "test -f \"$script\" && python train.py --next \"$script\"\n"
    ),
    # An old spelling of --cpu-bind, and options that concern processors only.
    "cores": "srun --cpu_bind=none,v --accel-bind=gn --threads-per-core=1 python -u train.py\n",
    "login": (
        "export NCCL_DEBUG=INFO PYTHONFAULTHANDLER=1\nsource ~/.bashrc || true\nexport WORLD_SIZE=$SLURM_NTASKS\n"
        "srun --kill-on-bad-exit=1 --wait=0 -u python -u train.py\n"
    ),
    "launcher": (
        "launcher=\"python -u -m torch.distributed.run --nproc_per_node 1 --nnodes $SLURM_NNODES\"\n"
        "clear || true\nsrun --wait=60 --jobid $SLURM_JOB_ID -N1 -n1 bash -c \"$launcher --node_rank \\$SLURM_PROCID train.py\"\n"
    ),
    "packed": "seq 2 | xargs -P 2 -I{} srun -N1 -n1 --overlap python train.py --part {}\n",
}
FIRST_LINES = ["#!/bin/bash"] * 8 + ["#!/bin/sh", "#! /bin/bash", "#!/usr/bin/env bash", "#!/bin/bash -e"]


def script(number, head, limit, queue, size, rest, body):
    options = "\n".join(part for part in (head, limit, queue, size, rest) if part)
    first = FIRST_LINES[number % len(FIRST_LINES)]
    # Some bodies use arrays of bash.
    first = "#!/bin/bash" if body == "rendezvous" else first
    gap = "\n" if number % 5 == 0 else ""
    lines = [f"#SBATCH {option}\n{gap}" for option in options.split("\n")]
    note = "##SBATCH --partition=old\n" if number % 7 == 0 else ""
    return f"{first}\n\n{''.join(lines)}{note}\n{BODIES[body]}"


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    bodies = list(BODIES)
    turns = [itertools.cycle(part) for part in (HEADS, LIMITS, QUEUES)]
    written = 0
    # Every size with every fifth of the other options, so that each pair occurs in some order.
    for place, size in enumerate(SIZES):
        for rest in REST[place % 4 :: 4] + REST[(place + 1) % 4 :: 4] + REST[(place + 2) % 4 :: 4]:
            body = bodies[written % len(bodies)]
            head, limit, queue = (next(turn) for turn in turns)
            name = folder / f"{written:03}-{body}.sbatch"
            name.write_text(script(written, head, limit, queue, size, rest, body))
            written += 1
    print(f"wrote {written} scripts into {folder}")


if __name__ == "__main__":
    main()
