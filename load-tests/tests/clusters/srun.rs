//! `srun` under its own name: inside of jobs, and outside of them.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tessera_load_tests::cluster::{Cluster, Plan, SOON};
use tessera_load_tests::programs::programs;
use tessera_load_tests::terminal::Terminal;
use tessera_load_tests::wait;

struct Rig {
    cluster: Cluster,
}

impl Rig {
    fn new() -> Self {
        let rig = Self { cluster: Plan::new().whole_gpu_node("n1", "a30-24gb,a30-24gb").start() };
        let made = Command::new(programs().path("tessera"))
            .args(["slurm-links", &rig.links().display().to_string()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        rig
    }

    fn links(&self) -> PathBuf {
        self.cluster.scratch().join("links")
    }

    /// One of Slurm's commands, with the links first in PATH as users have them.
    fn slurm(&self, command: &str, words: &[&str]) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut called = Command::new(self.links().join(command));
        called
            .args(words)
            .current_dir(self.cluster.scratch())
            .env("PATH", format!("{}:{path}", self.links().display()))
            .env("TESSERA_URL", self.cluster.url())
            .env("TESSERA_TOKEN", self.cluster.token());
        called
    }

    fn srun(&self, words: &[&str]) -> Output {
        self.slurm("srun", words).output().unwrap()
    }

    /// Runs a line as a batch job, and returns its exit code and its output.
    fn batch(&self, options: &[&str], line: &str) -> (i32, String) {
        let words =
            [&["--wait", "--parsable", "-o", "out.txt"], options, &["--wrap", line]].concat();
        let ended = self.slurm("sbatch", &words).output().unwrap();
        let text = std::fs::read_to_string(self.cluster.scratch().join("out.txt"));
        (ended.status.code().unwrap(), text.unwrap_or_else(|_| format!("{ended:?}")))
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn srun_outside_of_a_job_passes_output_and_exit_code_on() {
    let rig = Rig::new();

    let ran = rig.srun(&["-t", "5", "sh", "-c", "echo in $SLURM_JOB_ID; exit 7"]);

    assert_eq!(ran.status.code(), Some(7), "{ran:?}");
    assert!(text(&ran.stdout).starts_with("in "), "{ran:?}");
}

#[test]
fn srun_outside_of_a_job_starts_several_processes_with_their_gpus() {
    let rig = Rig::new();
    let line = "echo $SLURM_PROCID of $SLURM_NTASKS sees $(echo $CUDA_VISIBLE_DEVICES | tr , '\\n' | wc -l)";
    let words = ["--ntasks=2", "--gpus=2", "--gpus-per-task=1", "-l", "sh", "-c", line];

    let ran = rig.srun(&words);

    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    let mut lines: Vec<String> = text(&ran.stdout).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["0: 0 of 2 sees 1", "1: 1 of 2 sees 1"], "{ran:?}");
}

#[test]
fn a_copy_of_the_program_that_is_called_srun_starts_steps_like_a_link() {
    let rig = Rig::new();
    let copy = rig.cluster.scratch().join("srun");
    std::fs::copy(programs().path("tessera"), &copy).unwrap();

    let line = format!("{} -l sh -c 'echo rank $SLURM_PROCID'", copy.display());
    let (code, text) = rig.batch(&["--ntasks=2"], &line);

    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    assert_eq!((code, lines), (0, vec!["0: rank 0", "1: rank 1"]), "{text}");
}

#[test]
fn srun_that_is_interrupted_cancels_its_job() {
    let rig = Rig::new();
    let started = rig.cluster.scratch().join("started");
    let line = format!("touch {}; sleep 600", started.display());
    let mut called = rig.slurm("srun", &["-J", "endless", "sh", "-c", &line]);
    let mut running = called.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    wait::until(SOON, "the job's start", || started.exists().then_some(()));

    kill_process(Pid::from_child(&running), Signal::INT).unwrap();

    assert_eq!(running.wait().unwrap().code(), Some(130));
    let job = rig.cluster.all_jobs().into_iter().find(|job| job.name == "endless").unwrap();
    rig.cluster.wait_job(job.id, SOON, "cancelled");
}

#[test]
fn srun_inside_of_a_job_starts_steps_and_returns_their_largest_code() {
    let rig = Rig::new();

    let (code, text) = rig.batch(
        &["--ntasks=2", "--gpus=2"],
        "srun -l --unbuffered --cpu-bind=none sh -c 'echo rank $SLURM_PROCID; exit $((SLURM_PROCID * 3))'",
    );

    assert_eq!(code, 3, "{text}");
    assert!(text.contains("0: rank 0") && text.contains("1: rank 1"), "{text}");
    assert!(text.contains("task 1: Exited with exit code 3"), "{text}");
}

#[test]
fn a_step_without_the_variables_of_slurm_still_finds_its_job() {
    let rig = Rig::new();

    // As snakemake calls it: most variables removed, the script on standard input.
    let (code, text) = rig.batch(
        &[],
        "for v in $(env | grep -o '^SLURM_[A-Z_]*'); do [ $v = SLURM_JOB_ID ] || unset $v; done; \
         echo 'echo inner $SLURM_PROCID' | srun -n1 --cpu-bind=q sh -s",
    );

    assert_eq!((code, text.trim()), (0, "inner 0"));
}

#[test]
fn a_failing_process_stops_the_others_only_with_k() {
    let rig = Rig::new();
    let line = "[ $SLURM_PROCID = 0 ] || exit 3; for i in 1 2 3 4; do sleep 0.1; done; echo done";

    let (without, text) = rig.batch(&["-n2", "--gpus=2"], &format!("srun sh -c '{line}'"));
    assert_eq!((without, text.contains("done")), (3, true), "{text}");
    let (with, text) = rig.batch(
        &["-n2", "--gpus=2"],
        "srun -K sh -c '[ $SLURM_PROCID = 0 ] && exec sleep 600; exit 3'",
    );
    assert_eq!(with, 143, "{text}");
}

#[test]
fn srun_with_a_terminal_is_a_job_with_a_terminal() {
    let rig = Rig::new();
    let mut terminal = Terminal::start(&mut rig.slurm("srun", &["-J", "shell", "--pty", "sh"]));

    terminal.type_in("test -t 0 && echo terminal of $SLURM_JOB_NAME; exit 5\r");

    terminal.wait_for("terminal of shell\r\n", SOON);
    assert_eq!(terminal.wait(SOON).code(), Some(5));
    let job = rig.cluster.all_jobs().into_iter().find(|job| job.name == "shell").unwrap();
    rig.cluster.wait_job(job.id, SOON, "failed");
}

#[test]
fn salloc_holds_a_slice_while_its_command_runs_here_and_returns_its_code() {
    let rig = Rig::new();
    let line = "echo $$ $SLURM_JOB_ID $SLURM_JOB_NODELIST ${SLURM_PROCID-unset}; squeue -h -o %T; \
                srun -n2 -l sh -c 'echo rank $SLURM_PROCID'; srun sh -c 'exit 3'; echo code $?; exit 6";

    let ran =
        rig.slurm("salloc", &["--gpus=1", "sh", "-c", line]).stdin(Stdio::null()).output().unwrap();

    assert_eq!(ran.status.code(), Some(6), "{ran:?}");
    let (out, err) = (text(&ran.stdout), text(&ran.stderr));
    let first: Vec<&str> = out.lines().next().unwrap_or_default().split(' ').collect();
    assert_eq!(first[2..], ["n1", "unset"], "{ran:?}");
    let job = first[1];
    assert!(
        out.contains("RUNNING\n") && out.contains("0: rank 0\n") && out.contains("1: rank 1\n"),
        "{ran:?}"
    );
    assert!(out.ends_with("code 3\n"), "{ran:?}");
    for note in [
        format!("salloc: Granted job allocation {job}"),
        "salloc: Nodes n1 are ready for job".to_owned(),
        format!("salloc: Relinquishing job allocation {job}"),
    ] {
        assert!(err.contains(&note), "{note}: {ran:?}");
    }
    rig.cluster.wait_job(job.parse().unwrap(), SOON, "succeeded");
}

#[test]
fn a_terminal_in_an_allocation_is_on_the_jobs_node_and_a_step_in_it_has_the_terminal() {
    let rig = Rig::new();
    let mut terminal = Terminal::start(&mut rig.slurm("salloc", &["sh"]));
    terminal.wait_for("are ready for job", SOON);

    terminal.type_in("srun --pty sh\r");
    terminal.type_in("echo in $TESSERA_NODE; stty size\r");
    terminal.wait_for("in n1\r\n", SOON);
    terminal.wait_for("24 80\r\n", SOON);
    // A step of this shell, which is inside of the job.
    terminal.type_in(
        "srun --pty sh -c 'test -t 1 && echo step $SLURM_STEP_ID; exit 4'; echo gave $?\r",
    );
    terminal.wait_for("gave 4\r\n", SOON);
    terminal.type_in("exit\r");
    // Earlier keys go to the shell on the node.
    wait::until(SOON, "the shell here", || (!terminal.is_raw()).then_some(()));
    terminal.type_in("exit 2\r");

    assert_eq!(terminal.wait(SOON).code(), Some(2));
    terminal.wait_for("Relinquishing job allocation", SOON);
}

#[test]
fn an_allocation_ends_with_salloc_in_every_case() {
    let rig = Rig::new();
    let mut terminal = Terminal::start(&mut rig.slurm("salloc", &["-J", "held", "sleep", "600"]));
    terminal.wait_for("are ready for job", SOON);
    let job = rig.cluster.all_jobs().into_iter().find(|job| job.name == "held").unwrap();

    terminal.kill();

    wait::until(SOON, "the end of the allocation", || {
        let state = rig.cluster.job(job.id).job.state;
        ["succeeded", "failed"].contains(&state.as_str()).then_some(())
    });
}

#[test]
fn an_allocation_that_is_cancelled_ends_its_command() {
    let rig = Rig::new();
    let mut terminal = Terminal::start(&mut rig.slurm("salloc", &["-J", "held", "sleep", "616"]));
    terminal.wait_for("are ready for job", SOON);
    let job = rig.cluster.all_jobs().into_iter().find(|job| job.name == "held").unwrap();

    rig.cluster.act(job.id, "cancel");

    assert_eq!(terminal.wait(SOON).code(), Some(129));
    terminal.wait_for("has been revoked", SOON);
}

#[test]
fn scancel_signals_the_steps_of_a_job_its_script_or_both() {
    let rig = Rig::new();
    let folder = rig.cluster.scratch();
    let line = "trap 'echo script >> got' USR1; \
                srun sh -c 'trap \"echo step >> got\" USR1; touch ready; while [ ! -e end ]; do sleep 0.05; done' & \
                while kill -0 $! 2>/dev/null; do wait; done; exit 0";
    let words = ["--parsable", "-o", "out.txt", "--wrap", line];
    let submitted = rig.slurm("sbatch", &words).output().unwrap();
    let job = text(&submitted.stdout).trim().to_owned();
    wait::until(SOON, "the start of the step", || folder.join("ready").exists().then_some(()));
    let got = || std::fs::read_to_string(folder.join("got")).unwrap_or_default();

    for (words, all) in [
        (&[job.as_str(), "--signal", "USR1"][..], "step\n"),
        (&["-b", "-s", "USR1", job.as_str()], "step\nscript\n"),
    ] {
        let sent = rig.slurm("scancel", words).output().unwrap();
        assert!(sent.status.success(), "{words:?}: {sent:?}");
        wait::until(SOON, &format!("{all:?} after {words:?}, not {:?}", got()), || {
            (got() == all).then_some(())
        });
    }
    let sent = rig.slurm("scancel", &["-f", "-s", "SIGUSR1", &job]).output().unwrap();
    assert!(sent.status.success(), "{sent:?}");
    wait::until(SOON, "both", || (got().lines().count() == 4).then_some(()));
    std::fs::write(folder.join("end"), "").unwrap();
    rig.cluster.wait_end(job.parse().unwrap(), SOON);
    let ended = rig.slurm("scancel", &["-s", "USR1", &job]).output().unwrap();
    assert!(ended.status.success(), "a job that has ended is no error: {ended:?}");
    let held = rig.slurm("sbatch", &["--parsable", "--hold", "--wrap", "true"]).output().unwrap();
    let waits = rig.slurm("scancel", &["-s", "USR1", text(&held.stdout).trim()]).output().unwrap();
    assert_eq!(waits.status.code(), Some(1), "{waits:?}");
    assert!(text(&waits.stderr).contains("Job is pending execution"), "{waits:?}");
}

/// Returns a program of MPICH, or `None` where Debian's package is missing.
fn mpi_program(folder: &std::path::Path) -> Option<PathBuf> {
    let source = folder.join("ranks.c");
    let code = "#include <mpi.h>\n#include <stdio.h>\n#include <stdlib.h>\nint main(int argc, char **argv) {\n\
                int rank, size, mine, sum; MPI_Init(&argc, &argv); MPI_Comm_rank(MPI_COMM_WORLD, &rank);\n\
                MPI_Comm_size(MPI_COMM_WORLD, &size); mine = rank + 1;\n\
                MPI_Allreduce(&mine, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);\n\
                if (argc > 1 && rank == 1) { if (argv[1][0] == 'a') MPI_Abort(MPI_COMM_WORLD, 3); exit(4); }\n\
                printf(\"rank %d of %d, sum %d\\n\", rank, size, sum); fflush(stdout);\n\
                MPI_Barrier(MPI_COMM_WORLD); MPI_Finalize(); return 0; }\n";
    std::fs::write(&source, code).unwrap();
    let program = folder.join("ranks");
    let made = Command::new("mpicc.mpich").arg(&source).arg("-o").arg(&program).output();
    match made {
        Ok(made) => {
            assert!(made.status.success(), "{made:?}");
            Some(program)
        }
        Err(_) => {
            eprintln!("SKIPPED: ranks of MPI need a library (apt-get install mpich libmpich-dev)");
            None
        }
    }
}

#[test]
fn ranks_of_mpich_find_each_other_on_one_node_and_a_failing_one_ends_all() {
    let rig = Rig::new();
    let Some(program) = mpi_program(&rig.cluster.scratch()) else { return };
    let program = program.display();

    let (code, text) = rig.batch(&["-n2"], &format!("srun {program} | sort"));
    assert_eq!((code, text.trim()), (0, "rank 0 of 2, sum 3\nrank 1 of 2, sum 3"));
    let (code, text) = rig.batch(&["-n2"], &format!("srun --mpi=none {program} | sort"));
    assert_eq!((code, text.trim()), (0, "rank 0 of 1, sum 1\nrank 0 of 1, sum 1"));
    // The other rank waits at the barrier, and would do so forever.
    let (code, text) = rig.batch(&["-n2"], &format!("srun {program} exit"));
    assert!(code >= 4 && text.contains("task 1: Exited with exit code 4"), "{code}: {text}");
    let (code, text) = rig.batch(&["-n2"], &format!("srun {program} abort"));
    assert!(code >= 3 && text.contains("task 1 ends the step (MPI_Abort)"), "{code}: {text}");
    let listed = rig.srun(&["--mpi=list"]);
    assert_eq!(self::text(&listed.stdout), "MPI plugin types are...\n\tnone\n\tpmi2\n");
}
