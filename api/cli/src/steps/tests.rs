use clap::Parser;

use super::options::BadStep;
use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    step: StepOptions,
}

fn allocation(folder: &Path) -> Allocation {
    let variables = [
        ("TESSERA_JOB_ID", "29"),
        ("TESSERA_NODE", "g1"),
        ("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b"),
        ("SLURM_NTASKS", "2"),
        ("PATH", "/usr/bin:/bin"),
        ("SLURM_TMPDIR", folder.to_str().unwrap()),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value.to_owned()));
    Allocation::find(variables.into()).unwrap()
}

fn options(words: &[&str]) -> StepOptions {
    Line::try_parse_from([&["srun"], words].concat()).unwrap().step
}

fn plan(words: &[&str]) -> Result<StepPlan, BadStep> {
    options(words).plan(&allocation(Path::new("/tmp")))
}

/// Runs a step whose processes write into one file each, and returns its code and what they wrote.
async fn ran(words: &[&str]) -> (u8, Vec<String>) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("out-%t").display().to_string();
    let words = [&["-o", &file], words].concat();
    let code = run(options(&words), &allocation(folder.path())).await.unwrap();
    let read = |rank: usize| std::fs::read_to_string(folder.path().join(format!("out-{rank}")));
    (code, (0..8).map_while(|rank| read(rank).ok()).collect())
}

#[test]
fn a_step_has_the_processes_of_its_job_and_each_sees_all_gpus() {
    let step = plan(&["true"]).unwrap();

    assert_eq!((step.programs.len(), step.gpus, step.gpus_per_task), (2, None, None));
}

#[test]
fn a_step_that_is_not_possible_is_refused_with_the_reason() {
    for (words, why) in [
        (&["-n3", "--gpus-per-task=1", "true"][..], "the job has 2"),
        (&["--gres=gpu:3", "true"], "requests 3 GPUs"),
        (&["-N2", "true"], "requests 2 nodes"),
        (&["-w", "g2", "true"], "g2 is not one of the job's nodes"),
        (&["-m", "plane=x", "true"], "cyclic or plane=N"),
        (&["--gpus=some", "true"], "such as 2"),
        (&["-n2"], "no program"),
    ] {
        let refused = plan(words).unwrap_err().to_string();

        assert!(refused.contains(why), "{words:?}: {refused}");
    }
}

#[tokio::test]
async fn each_process_gets_its_rank_and_its_gpu() {
    let line =
        "echo $SLURM_PROCID $SLURM_NTASKS $SLURM_STEP_ID $SLURM_JOB_ID $CUDA_VISIBLE_DEVICES";
    let (code, shared) = ran(&["sh", "-c", line]).await;
    let (_, own) = ran(&["--gpus-per-task=1", "sh", "-c", line]).await;
    let (_, none) = ran(&["-n1", "--gres=none", "sh", "-c", line]).await;

    assert_eq!(code, 0);
    assert_eq!(shared, ["0 2 0 29 GPU-a,GPU-b\n", "1 2 0 29 GPU-a,GPU-b\n"]);
    assert_eq!(own, ["0 2 0 29 GPU-a\n", "1 2 0 29 GPU-b\n"]);
    assert_eq!(none, ["0 1 0 29\n"]);
}

#[tokio::test]
async fn the_largest_code_counts_and_a_failure_ends_the_others_only_with_k() {
    let fails = "if [ $SLURM_PROCID = 1 ]; then exit 3; fi; echo whole";
    let (code, written) = ran(&["sh", "-c", fails]).await;
    assert_eq!((code, written[0].as_str()), (3, "whole\n"));

    let waits = "if [ $SLURM_PROCID = 1 ]; then exit 3; fi; exec sleep 600";
    let (code, _) = ran(&["-K", "sh", "-c", waits]).await;
    assert_eq!(code, 143);

    let (killed, _) = ran(&["-n1", "sh", "-c", "kill -9 $$"]).await;
    assert_eq!(killed, 137);
    assert_eq!(ran(&["/no/such/program"]).await.0, 2);
}

#[tokio::test]
async fn steps_that_name_gpus_have_different_ones() {
    let folder = tempfile::tempdir().unwrap();
    let allocation = allocation(folder.path());
    std::fs::create_dir_all(&allocation.folder).unwrap();
    let one = plan(&["-n1", "--gpus=1", "true"]).unwrap();

    let take =
        || StepGpus::take((one.gpus.as_ref().map(|gpus| gpus[0]), false), &allocation, || {});
    let first = take().await.unwrap();
    let second = take().await.unwrap();
    let both = [first.devices().unwrap(), second.devices().unwrap()].concat();
    assert_eq!(both, ["GPU-a", "GPU-b"]);
    drop(first);
    let third = take().await.unwrap();

    assert_eq!(third.devices().unwrap(), ["GPU-a"]);
}

#[tokio::test]
async fn a_list_of_programs_gives_each_process_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let list = folder.path().join("list");
    std::fs::write(&list, "# ranks\n0 echo zero %t %o\n1-2 echo more %t %o\n").unwrap();

    let (code, written) = ran(&["-n3", "--multi-prog", list.to_str().unwrap()]).await;

    assert_eq!(
        (code, written),
        (0, vec!["zero 0 0\n".into(), "more 1 0\n".into(), "more 2 1\n".into()])
    );
}

#[test]
fn names_of_files_are_filled_in_for_each_process() {
    let place = super::output::FilePlace { rank: 1, node: 0, name: "g1" };
    let pattern = "step-%j-%s-%2t-%N-%J-%q";
    let name = super::output::expand(pattern, &allocation(Path::new("/tmp")), 3, place);

    assert_eq!(name, "step-29-3-01-g1-29.3-%q");
}
