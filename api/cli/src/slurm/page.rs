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
    text
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
