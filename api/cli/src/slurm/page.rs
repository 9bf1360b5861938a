//! `docs/from-slurm.md`: how each option of Slurm is handled, from the tables that the command
//! itself reads.

use std::fmt::Write as _;

use clap::Args as _;

use crate::steps::{StepOptions, UnusedStepOptions};
use crate::submit::{OptionsOfSlurm, Submit};

/// The options of `sbatch`, `srun` and `salloc` (Slurm 24.05) that concern a job.
const SLURM: &[&str] = &[
    "account",
    "acctg-freq",
    "array",
    "batch",
    "bb",
    "bbf",
    "begin",
    "chdir",
    "cluster-constraint",
    "clusters",
    "comment",
    "constraint",
    "container",
    "container-id",
    "contiguous",
    "core-spec",
    "cores-per-socket",
    "cpu-bind",
    "cpu-freq",
    "cpus-per-gpu",
    "cpus-per-task",
    "deadline",
    "delay-boot",
    "dependency",
    "distribution",
    "error",
    "exclude",
    "exclusive",
    "export",
    "export-file",
    "extra",
    "extra-node-info",
    "get-user-env",
    "gid",
    "gpu-bind",
    "gpu-freq",
    "gpus",
    "gpus-per-node",
    "gpus-per-socket",
    "gpus-per-task",
    "gres",
    "gres-flags",
    "hint",
    "hold",
    "ignore-pbs",
    "input",
    "job-name",
    "kill-on-invalid-dep",
    "licenses",
    "mail-type",
    "mail-user",
    "mcs-label",
    "mem",
    "mem-bind",
    "mem-per-cpu",
    "mem-per-gpu",
    "mincpus",
    "network",
    "nice",
    "no-kill",
    "no-requeue",
    "nodefile",
    "nodelist",
    "nodes",
    "ntasks",
    "ntasks-per-core",
    "ntasks-per-gpu",
    "ntasks-per-node",
    "ntasks-per-socket",
    "oom-kill-step",
    "open-mode",
    "output",
    "overcommit",
    "oversubscribe",
    "parsable",
    "partition",
    "power",
    "prefer",
    "priority",
    "profile",
    "propagate",
    "qos",
    "quiet",
    "reboot",
    "requeue",
    "reservation",
    "resv-ports",
    "segment",
    "signal",
    "sockets-per-node",
    "spread-job",
    "stepmgr",
    "switches",
    "test-only",
    "thread-spec",
    "threads-per-core",
    "time",
    "time-min",
    "tmp",
    "tres-bind",
    "tres-per-task",
    "uid",
    "use-min-nodes",
    "verbose",
    "wait",
    "wait-all-nodes",
    "wckey",
    "wrap",
    // Those of the plug-in Pyxis.
    "container-entrypoint",
    "container-env",
    "container-image",
    "container-mount-home",
    "container-mounts",
    "container-name",
    "container-readonly",
    "container-remap-root",
    "container-save",
    "container-workdir",
    "container-writable",
    "no-container-entrypoint",
    "no-container-mount-home",
    "no-container-remap-root",
];

const HEAD: &str = "# Coming from Slurm

<!-- Written by the tests of api/cli from the tables that the command reads: TESSERA_WRITE_DOCS=1. -->

Scripts with `#SBATCH` lines run unchanged: `tessera submit job.sh` reads them. An option is
honoured, ignored with a warning, or refused with a hint about what to write instead. Options of the
command line override those of `#TESSERA` lines, which override those of `#SBATCH` lines.

- A script runs once, on the first node of its job, and sees all of its GPUs there. More processes
  are started by `tessera step` (`srun`) or by the program itself, such as torchrun. `--launch each`
  starts one process for each GPU instead.
- `srun --pty` and `salloc` work ([interactive.md](interactive.md)). `tessera run --pty` takes the options of `submit`.
- A job of several whole GPUs gets GPUs with MIG off, since GPUs with MIG on can't reach each other's memory.
- Standard output and error go to one file, unless `--error` names another.
- `TMPDIR` and `SLURM_TMPDIR` name a folder that belongs to the attempt and is removed at its end.
- Variables such as `SLURM_CPUS_PER_TASK` exist only if the option was given, as in Slurm.
- `--container-image` of Pyxis works for scripts and steps, by podman without privileges ([containers.md](containers.md)).
- `srun` starts programs of MPICH, MVAPICH2 and Intel MPI as ranks of one program (PMI-1 and PMI-2, `--mpi=pmi2`, the
  default). There is no PMIx: programs of Open MPI are started by `mpirun`, which starts its ranks by `srun`.
- Slurm's `PreemptMode` is a setting by class: online jobs send offline jobs back to the queue, by default only those
  with `--checkpoint-signal` (`--signal` of a script). `--no-requeue` prevents it ([policies.md](policies.md#pre-emption)).

## Options of jobs

| option | what happens | |
|---|---|---|
";

const STEPS: &str = "
## Options of steps

`tessera step PROGRAM` (`srun`) starts processes inside a job, on all of its nodes or on some of them.

| option | what happens |
|---|---|
";

const VARIABLES: &str = "
## Variables of jobs

A script, and each process of a step, has these variables of Slurm 22.05. Those of options exist only if the option was
given. `TESSERA_*` variables exist in addition.

| variable | |
|---|---|
";

/// Variables that Slurm 22.05 sets in scripts and steps, and what becomes of each here.
const SET: &[(&str, &str)] = &[
    (
        "CUDA_VISIBLE_DEVICES",
        "the job's GPUs or slices on this node, or those of a step's process, by UUID",
    ),
    ("ENVIRONMENT", "`BATCH`"),
    ("HOSTNAME", "the node's name"),
    ("SLURMD_NODENAME", "the node's name"),
    ("SLURM_ACCTG_FREQ", "of `--acctg-freq`"),
    ("SLURM_ARRAY_JOB_ID", "in arrays"),
    ("SLURM_ARRAY_TASK_COUNT", "in arrays"),
    ("SLURM_ARRAY_TASK_ID", "in arrays"),
    ("SLURM_ARRAY_TASK_MAX", "in arrays"),
    ("SLURM_ARRAY_TASK_MIN", "in arrays"),
    ("SLURM_ARRAY_TASK_STEP", "in arrays"),
    ("SLURM_CLUSTER_NAME", "`tessera`"),
    (
        "SLURM_CPUS_ON_NODE",
        "processors on this node: of the options; otherwise one for each task, as in Slurm, or all with `--exclusive`",
    ),
    ("SLURM_CPUS_PER_GPU", "of `--cpus-per-gpu`"),
    ("SLURM_CPUS_PER_TASK", "of `--cpus-per-task`"),
    ("SLURM_DISTRIBUTION", "in steps, and of `--distribution`"),
    ("SLURM_DIST_PLANESIZE", "of `--distribution=plane=N`"),
    ("SLURM_EXPORT_ENV", "of `--export`"),
    ("SLURM_GET_USER_ENV", "of `--export` and `--get-user-env`"),
    ("SLURM_GPUS", "of `--gpus`, as it is written"),
    ("SLURM_GPUS_ON_NODE", "GPUs or slices on this node, or of a step there"),
    ("SLURM_GPUS_PER_NODE", "of `--gpus-per-node`, as it is written"),
    ("SLURM_GPUS_PER_TASK", "of `--gpus-per-task`, as it is written"),
    ("SLURM_GPU_BIND", "of `--gpu-bind`"),
    ("SLURM_GPU_FREQ", "of `--gpu-freq`"),
    ("SLURM_GTIDS", "the ranks on this node"),
    ("SLURM_HINT", "of `--hint`"),
    ("SLURM_JOBID", "the job's number"),
    (
        "SLURM_JOB_ACCOUNT",
        "the user's account in the settings; for a user in none that of `--account`, or the own name",
    ),
    ("SLURM_JOB_CPUS_PER_NODE", "processors on each node, such as `4(x2)`"),
    ("SLURM_JOB_DEPENDENCY", "of `--dependency`"),
    ("SLURM_JOB_GID", "of the user who submits"),
    ("SLURM_JOB_GPUS", "the numbers of the job's GPUs on this node"),
    ("SLURM_JOB_ID", "the job's number; of a task of an array its own"),
    ("SLURM_JOB_NAME", "the job's name"),
    ("SLURM_JOB_NODELIST", "the job's nodes, such as `n[1-2]`"),
    ("SLURM_JOB_NUM_NODES", "how many nodes the job has"),
    ("SLURM_JOB_PARTITION", "the partition"),
    ("SLURM_JOB_QOS", "of `--qos`; otherwise `normal`"),
    ("SLURM_JOB_RESERVATION", "of `--reservation`"),
    ("SLURM_JOB_UID", "of the user who submits"),
    ("SLURM_JOB_USER", "the user who submits"),
    ("SLURM_LAUNCH_NODE_IPADDR", "in steps"),
    ("SLURM_LOCALID", "the process's number on its node; 0 in scripts"),
    ("SLURM_MEM_PER_CPU", "of `--mem-per-cpu`, in MiB"),
    ("SLURM_MEM_PER_GPU", "of `--mem-per-gpu`, in MiB"),
    ("SLURM_MEM_PER_NODE", "of `--mem`, in MiB"),
    ("SLURM_NNODES", "how many nodes the job or the step has"),
    ("SLURM_NODEID", "the node's number in the job or the step"),
    ("SLURM_NODELIST", "the job's nodes"),
    ("SLURM_NODE_ALIASES", "`(null)`"),
    ("SLURM_NPROCS", "in steps, and of `--ntasks`"),
    ("SLURM_NTASKS", "in steps, and of `--ntasks`"),
    ("SLURM_NTASKS_PER_CORE", "of `--ntasks-per-core`"),
    ("SLURM_NTASKS_PER_GPU", "of `--ntasks-per-gpu`"),
    ("SLURM_NTASKS_PER_NODE", "of `--ntasks-per-node`"),
    ("SLURM_NTASKS_PER_SOCKET", "of `--ntasks-per-socket`"),
    ("SLURM_OPEN_MODE", "of `--open-mode`"),
    ("SLURM_OVERCOMMIT", "of `--overcommit`"),
    ("SLURM_PRIO_PROCESS", "`0`"),
    ("SLURM_PROCID", "the process's rank; 0 in scripts"),
    ("SLURM_RESTART_COUNT", "in later runs"),
    ("SLURM_SRUN_COMM_HOST", "in steps"),
    ("SLURM_STEPID", "in steps"),
    ("SLURM_STEP_GPUS", "in steps: the numbers of its GPUs among the job's"),
    ("SLURM_STEP_ID", "in steps"),
    ("SLURM_STEP_NODELIST", "in steps"),
    ("SLURM_STEP_NUM_NODES", "in steps"),
    ("SLURM_STEP_NUM_TASKS", "in steps"),
    ("SLURM_STEP_TASKS_PER_NODE", "in steps"),
    ("SLURM_SUBMIT_DIR", "where the job was submitted"),
    ("SLURM_SUBMIT_HOST", "where the job was submitted"),
    ("SLURM_TASKS_PER_NODE", "tasks on each node, such as `2,1`"),
    ("SLURM_TASK_PID", "the number of the script's process, or of a step's"),
    (
        "SLURM_THREADS_PER_CORE",
        "of `--threads-per-core` of the job or the step, and 1 of `--hint=nomultithread`",
    ),
    ("SLURM_TOPOLOGY_ADDR", "the node's name"),
    ("SLURM_TOPOLOGY_ADDR_PATTERN", "`node`"),
    ("SLURM_UMASK", "in steps"),
    ("SLURM_WORKING_CLUSTER", "`tessera`"),
];

/// Variables that Slurm 22.05 sets and Tessera doesn't, with the reason.
const ABSENT: &[(&str, &str)] = &[
    ("GPU_DEVICE_ORDINAL", "GPUs of AMD and Intel"),
    ("ROCR_VISIBLE_DEVICES", "GPUs of AMD and Intel"),
    ("ZE_AFFINITY_MASK", "GPUs of AMD and Intel"),
    ("SBATCH_MEM_BIND", "the kernel's scheduler places processes"),
    ("SBATCH_MEM_BIND_LIST", "the kernel's scheduler places processes"),
    ("SBATCH_MEM_BIND_PREFER", "the kernel's scheduler places processes"),
    ("SBATCH_MEM_BIND_TYPE", "the kernel's scheduler places processes"),
    ("SBATCH_MEM_BIND_VERBOSE", "the kernel's scheduler places processes"),
    ("SBATCH_THREADS_PER_CORE", "`SLURM_THREADS_PER_CORE` has the same value"),
    ("SLURMD_TRES_BIND", "the kernel's scheduler places processes"),
    ("SLURM_*_HET_GROUP_#", "a job has one part"),
    ("SLURM_CONF", "there is no file of Slurm's settings"),
    ("SLURM_CONTAINER", "containers have their own options"),
    ("SLURM_CPU_BIND", "the kernel's scheduler places processes"),
    ("SLURM_CPU_BIND_LIST", "the kernel's scheduler places processes"),
    ("SLURM_CPU_BIND_TYPE", "the kernel's scheduler places processes"),
    ("SLURM_CPU_BIND_VERBOSE", "the kernel's scheduler places processes"),
    ("SLURM_CPU_FREQ_REQ", "the node's operator sets clocks"),
    ("SLURM_GPUS_PER_SOCKET", "GPUs are not counted by sockets"),
    ("SLURM_HET_SIZE", "a job has one part"),
    ("SLURM_JOB_CPUS_PER_NODE_PACK_GROUP_0", "a job has one part"),
    ("SLURM_JOB_NODES", "a step has `SLURM_STEP_NODELIST`"),
    ("SLURM_LABELIO", "`srun -l` concerns its own step only"),
    ("SLURM_MEM_BIND", "the kernel's scheduler places processes"),
    ("SLURM_MEM_BIND_LIST", "the kernel's scheduler places processes"),
    ("SLURM_MEM_BIND_PREFER", "the kernel's scheduler places processes"),
    ("SLURM_MEM_BIND_SORT", "the kernel's scheduler places processes"),
    ("SLURM_MEM_BIND_TYPE", "the kernel's scheduler places processes"),
    ("SLURM_MEM_BIND_VERBOSE", "the kernel's scheduler places processes"),
    ("SLURM_NTASKS_PER_TRES", "a step has `SLURM_NTASKS_PER_GPU`"),
    ("SLURM_PROFILE", "all jobs are measured"),
    ("SLURM_SHARDS_ON_NODE", "shares of a GPU are slices"),
    ("SLURM_SRUN_COMM_PORT", "steps use the job's authenticated links"),
    ("SLURM_STEP_LAUNCHER_PORT", "steps use the job's authenticated links"),
];

fn variables() -> String {
    let mut text = VARIABLES.to_owned();
    for (name, what) in SET {
        let _ = writeln!(text, "| `{name}` | {} |", cell(what));
    }
    text.push_str("\nThese are deliberately absent:\n\n| variable | reason |\n|---|---|\n");
    for (name, why) in ABSENT {
        let _ = writeln!(text, "| `{name}` | {} |", cell(why));
    }
    text
}

fn page() -> String {
    let ours = Submit::augment_args(clap::Command::new("submit"));
    let mut text = HEAD.to_owned();
    for name in SLURM {
        let is_named = |arg: &&clap::Arg| {
            let has_alias = arg.get_all_aliases().is_some_and(|aliases| aliases.contains(name));
            (arg.get_long() == Some(*name) || has_alias) && !arg.is_hide_set()
        };
        let own = ours.get_arguments().find(is_named);
        let (kind, what) = match (own, OptionsOfSlurm::verdict_of(name)) {
            (Some(arg), _) => {
                let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
                ("works", help)
            }
            (None, Some(verdict)) => verdict,
            (None, None) => ("unknown", String::new()),
        };
        let _ = writeln!(text, "| `--{name}` | {kind} | {} |", cell(&what));
    }
    text.push_str(STEPS);
    let steps = StepOptions::augment_args(clap::Command::new("step"));
    for arg in steps.get_arguments() {
        let Some(name) = arg.get_long() else { continue };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let _ = writeln!(text, "| `--{name}` | {} |", cell(&help));
    }
    let unused: Vec<_> =
        UnusedStepOptions::unused_names().map(|name| format!("`--{name}`")).collect();
    let _ = writeln!(
        text,
        "\n`srun` also accepts these options for a step, where they have no \
                        effect:"
    );
    text.push('\n');
    for line in unused.chunks(8) {
        let _ = writeln!(text, "- {}", line.join(", "));
    }
    text + &variables()
}

/// Returns a text that fits into a cell of a table.
fn cell(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.replace('|', "\\|");
    let mut chars = line.chars();
    match chars.next() {
        Some(first) => first.to_uppercase().collect::<String>() + chars.as_str(),
        None => line,
    }
}

#[test]
fn every_option_of_slurm_is_honoured_or_its_fate_is_stated() {
    assert!(!page().contains("| unknown |"), "{}", page());
}

#[test]
fn the_page_for_people_who_come_from_slurm_is_what_the_command_does() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/from-slurm.md");
    if std::env::var_os("TESSERA_WRITE_DOCS").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let written = std::fs::read_to_string(path).unwrap();

    assert_eq!(written, page(), "write it again with TESSERA_WRITE_DOCS=1");
}
