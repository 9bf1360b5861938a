//! The corpus of batch scripts (`load-tests/corpus/make.py`): how many `sbatch` accepts, and how many of
//! those start their program as often as Slurm would.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tessera_load_tests::cluster::{Cluster, Plan};
use tessera_load_tests::programs::programs;

/// Programs that scripts call, each replaced by a program that records its call.
const STUBS: &[&str] = &["python", "python3", "torchrun", "singularity", "mpirun", "nvidia-smi"];

/// Every script, or only every n-th one: these have the same constructs in fewer combinations.
fn stride() -> usize {
    if std::env::var_os("TESSERA_LONG_TESTS").is_some() { 1 } else { 7 }
}

struct Rig {
    cluster: Cluster,
    folder: PathBuf,
}

impl Rig {
    fn new() -> Self {
        let cluster = Plan::new()
            .whole_gpu_node("n1", "a100-40gb,a100-40gb")
            .whole_gpu_node("n2", "a100-40gb,a100-40gb")
            .node("n3", "a100-40gb")
            .start();
        let folder = cluster.scratch().join("corpus");
        let made = Command::new(programs().path("tessera"))
            .args(["slurm-links", &folder.join("bin").display().to_string()])
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        fs::create_dir_all(folder.join("notes")).unwrap();
        for stub in STUBS {
            let path = folder.join("bin").join(stub);
            let note =
                "echo \"$SLURM_JOB_ID $SLURM_PROCID\" >> \"$CORPUS_NOTES/$CORPUS_CASE.${0##*/}\"";
            fs::write(&path, format!("#!/bin/sh\n{note}\n")).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        Self { cluster, folder }
    }

    /// Writes the scripts, and returns them in order.
    fn scripts(&self) -> Vec<PathBuf> {
        let maker = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus/make.py");
        let scripts = self.folder.join("scripts");
        let made = Command::new("python3").arg(maker).arg(&scripts).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let mut all: Vec<PathBuf> =
            fs::read_dir(scripts).unwrap().map(|entry| entry.unwrap().path()).collect();
        all.sort_unstable();
        assert!(all.len() >= 200, "{} scripts", all.len());
        all
    }

    /// Submits a script, and returns its job, or why it is refused.
    fn submit(&self, case: &str, script: &Path) -> Result<u64, String> {
        let work = self.folder.join("work").join(case);
        fs::create_dir_all(&work).unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        let output = Command::new(self.folder.join("bin/sbatch"))
            .args(["--parsable", &script.display().to_string()])
            .current_dir(work)
            .env("PATH", format!("{}:{path}", self.folder.join("bin").display()))
            .env("CORPUS_NOTES", self.folder.join("notes"))
            .env("CORPUS_CASE", case)
            .env("TESSERA_URL", self.cluster.url())
            .env("TESSERA_TOKEN", self.cluster.token())
            .output()
            .unwrap();
        let printed = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        printed.parse().map_err(|_| String::from_utf8_lossy(&output.stderr).into_owned())
    }

    /// Returns how often a case called its program.
    fn calls(&self, case: &str) -> usize {
        let program = match case.split_once('-').map(|(_, body)| body) {
            Some("torchrun" | "rendezvous") => "torchrun",
            Some("singularity") => "singularity",
            Some("mpirun") => "mpirun",
            Some("module") => "python3",
            _ => "python",
        };
        let notes = self.folder.join("notes").join(format!("{case}.{program}"));
        fs::read_to_string(notes).map_or(0, |text| text.lines().count())
    }
}

/// Returns how often Slurm would call the program of a script: once for each task of the array and
/// each process of its steps.
fn expected_calls(case: &str, text: &str) -> usize {
    let tasks = match () {
        () if text.contains("--array=0-2") || text.contains("--array=[0-2]%2") => 3,
        () if text.contains("--array=1,3,7-9:2%2") => 4,
        () => 1,
    };
    let option = |name: &str| {
        let value = text.lines().find_map(|line| line.split_once(name).map(|(_, rest)| rest))?;
        value.chars().take_while(char::is_ascii_digit).collect::<String>().parse::<usize>().ok()
    };
    let nodes = option("--nodes=").or_else(|| option("#SBATCH -N ")).unwrap_or(1);
    let ranks = match (option("--ntasks="), option("--ntasks-per-node=")) {
        (Some(ntasks), _) => ntasks,
        (None, Some(per_node)) => per_node * nodes,
        (None, None) => nodes,
    };
    match case.split_once('-').map(|(_, body)| body) {
        Some("srun" | "label" | "cores" | "login") => tasks * ranks,
        Some("several" | "packed") => tasks * 2,
        _ => tasks,
    }
}

#[test]
fn scripts_are_accepted_and_reach_their_programs_as_often_as_under_slurm() {
    let rig = Rig::new();
    let scripts: Vec<PathBuf> = rig.scripts().into_iter().step_by(stride()).collect();
    let mut jobs = BTreeMap::new();
    let mut refused = Vec::new();
    for script in &scripts {
        let case = script.file_stem().unwrap().to_string_lossy().into_owned();
        match rig.submit(&case, script) {
            Ok(job) => drop(jobs.insert(case, (job, fs::read_to_string(script).unwrap()))),
            Err(why) => refused.push(format!("{case}: {why}")),
        }
    }
    for job in rig.cluster.all_jobs() {
        rig.cluster.wait_end(job.id, Duration::from_secs(300));
    }
    let mut missed = Vec::new();
    for (case, (job, text)) in &jobs {
        let (calls, expected) = (rig.calls(case), expected_calls(case, text));
        if calls != expected {
            let detail = rig.cluster.job(*job);
            let why = detail.job.reason_text.unwrap_or_default();
            missed.push(format!("{case} (job {job}): {calls} calls, expected {expected}: {why}"));
        }
    }
    let all = scripts.len();
    let (accepted, reached) = (jobs.len(), jobs.len() - missed.len());
    println!("of {all} scripts {accepted} are accepted, and {reached} reach their program");
    println!("{}\n{}", refused.join("\n"), missed.join("\n"));
    assert!(accepted * 100 >= all * 97, "{}", refused.join("\n"));
    assert!(reached * 100 >= all * 90, "{}", missed.join("\n"));
}

/// Scripts that differ from Slurm 22.05 on purpose, each with the reason.
const UNLIKE: &[(&str, &str)] = &[
    // Slurm keeps the cancelled tasks of an array in one record.
    ("cancel-forms", "each cancelled task has its own record"),
    // With --hint and --threads-per-core together, Slurm forgets the hint and sets a number of tasks.
    ("exclusive-hint", "SLURM_HINT is set, SLURM_NTASKS is not"),
    // A job has one kind of node. The refusal names how each part is submitted.
    ("het-job", "parts of a job are jobs of their own"),
    ("packjob", "parts of a job are jobs of their own"),
    // The script removes Slurm's variables, as Snakemake does. Slurm's srun sets those of the job again.
    ("snakemake-jobstep", "srun does not set what its caller removed"),
    // Slurm's srun reads all of its input, so that a loop over lines ends after its first turn. Here a single process reads
    // what it needs, and the loop goes on.
    ("stdin-loop", "the second loop has two turns"),
    // A stopped job would keep its slice and its GPU memory. The refusal names what frees them.
    ("suspends", "scontrol suspend is refused"),
    // As with cancel-forms.
    ("throttle", "each cancelled task has its own record"),
    // A job that gets another name before its start has it in SLURM_JOB_NAME, too.
    ("updates-more", "SLURM_JOB_NAME is the new name"),
];

/// The whole scripts that are tried: all, or every fourth one.
fn whole_scripts(folder: &Path) -> Vec<String> {
    let stem = |entry: std::io::Result<fs::DirEntry>| {
        let path = entry.unwrap().path();
        path.file_stem().unwrap().to_string_lossy().into_owned()
    };
    let mut all: Vec<String> = fs::read_dir(folder).unwrap().map(stem).collect();
    all.sort_unstable();
    assert!(all.len() >= 140, "{} scripts", all.len());
    all.into_iter().step_by(if stride() == 1 { 1 } else { 4 }).collect()
}

/// Whole scripts do what `slurm-22.05.json` recorded of them under Slurm 22.05: the same calls of programs with the same
/// arguments and variables, the same ends and the same files.
#[test]
fn whole_scripts_do_what_they_did_under_slurm() {
    let rig = Rig::new();
    let corpus = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus");
    let record = match std::env::var_os("TESSERA_CORPUS_RECORD") {
        Some(path) => PathBuf::from(path),
        None => rig.folder.join("record.json"),
    };
    let path = std::env::var("PATH").unwrap_or_default();
    let beside = |words: &[&std::ffi::OsStr]| {
        let ran = Command::new("/usr/bin/python3")
            .arg(corpus.join("whole_scripts.py"))
            .args(words)
            .env("PATH", format!("{}:{path}", rig.folder.join("links").display()))
            .env("TESSERA_URL", rig.cluster.url())
            .env("TESSERA_TOKEN", rig.cluster.token())
            .output()
            .unwrap();
        assert!(ran.status.success(), "{ran:?}");
        String::from_utf8(ran.stdout).unwrap()
    };
    let made = Command::new(programs().path("tessera"))
        .args(["slurm-links", &rig.folder.join("links").display().to_string()])
        .output()
        .unwrap();
    assert!(made.status.success(), "{made:?}");

    let scripts = whole_scripts(&corpus.join("scripts"));
    let only = scripts.join(",");
    let words = ["record", "--only", &only].map(std::ffi::OsStr::new);
    let files = [corpus.join("scripts"), record.clone()];
    let files = files.iter().map(|file| file.as_os_str());
    println!("{}", beside(&words.into_iter().chain(files).collect::<Vec<_>>()));
    let recorded = corpus.join("slurm-22.05.json");
    let compared = beside(&["compare".as_ref(), recorded.as_ref(), record.as_ref()]);

    println!("{compared}");
    let summary: serde_json::Value =
        serde_json::from_str(compared.lines().next_back().unwrap()).unwrap();
    assert_eq!(summary["scripts"].as_u64().unwrap(), scripts.len() as u64, "{summary}");
    let differing = summary["differing"].as_array().unwrap().iter();
    let differing: Vec<&str> = differing.filter_map(serde_json::Value::as_str).collect();
    let known = UNLIKE.iter().map(|(script, _)| *script);
    let known: Vec<&str> = known.filter(|known| scripts.iter().any(|own| own == known)).collect();
    assert_eq!(differing, known, "{compared}");
}
