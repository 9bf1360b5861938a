//! The scenes, in order. Each demonstrates one feature.

use super::stage::DemoStage;
use crate::array_wait::is_over;
use crate::cluster::by_state;
use crate::failure::CommandFailure;
use tessera_api_types::JobFilter;

/// Above the number of jobs and plans that the demo creates; the API's page limits.
const JOBS_MAX: usize = 1_000;
const CHANGES_MAX: u32 = 1_000;

const SCRIPT: &str = "#!/bin/bash
#SBATCH --job-name=train --time=10
#TESSERA --vram 9G
echo \"job $TESSERA_JOB_ID on $TESSERA_NODE: $TESSERA_GPU_PROFILE, $TESSERA_GPU_SM_COUNT SMs\"
echo \"CUDA_VISIBLE_DEVICES=$CUDA_VISIBLE_DEVICES\"
for epoch in 1 2 3 4 5 6; do echo \"epoch $epoch\"; sleep 1; done
";

/// Plays them all.
pub async fn play(stage: &DemoStage<'_>) -> Result<(), CommandFailure> {
    stage.title("The cluster")?;
    stage.show(&["nodes"])?;
    stage.show(&["gpus"])?;

    show_script(stage).await?;
    show_array(stage).await?;
    show_big_job(stage).await?;
    show_refusal(stage).await?;
    show_ends(stage).await?;
    show_summary(stage).await
}

async fn show_script(stage: &DemoStage<'_>) -> Result<(), CommandFailure> {
    stage.title("A script: it requests GPU memory, and Tessera creates the slice")?;
    stage.script("train.sh", SCRIPT)?;
    let train = stage.submit(&["train.sh"])?;
    stage.until_started(train).await?;
    stage.show(&["explain", &train.to_string()])?;
    stage.show(&["logs", "-f", &train.to_string()])
}

async fn show_array(stage: &DemoStage<'_>) -> Result<(), CommandFailure> {
    stage.title("An array of 16: more tasks than fit, so the others wait")?;
    let array = stage.submit(&[
        "--array",
        "0-15",
        "-J",
        "sweep",
        "--wrap",
        "echo task $TESSERA_ARRAY_TASK_ID; sleep 6",
    ])?;
    stage.until_started(array).await?;
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    stage.show(&["queue"])?;
    stage.show(&["gpus"])
}

async fn show_big_job(stage: &DemoStage<'_>) -> Result<(), CommandFailure> {
    stage.title("A big job: small slices block it, and are destroyed when they are idle")?;
    let big = stage.submit(&["-J", "finetune", "--vram", "18G", "--", "sleep", "4"])?;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    stage.show(&["explain", &big.to_string()])?;
    stage.print_remark("(waiting for it to start)")?;
    stage.until_started(big).await?;
    stage.show(&["gpus"])?;
    stage.show(&["layouts", "--limit", "8"])
}

async fn show_refusal(stage: &DemoStage<'_>) -> Result<(), CommandFailure> {
    stage
        .title("A job that no GPU here can run: refused at once, unless it has --allow-pending")?;
    stage.show(&["submit", "--vram", "100G", "--", "sleep", "1"])?;
    let waits = stage.submit(&["--vram", "100G", "--allow-pending", "--", "sleep", "1"])?;
    tokio::time::sleep(std::time::Duration::from_secs(1)).await;
    stage.show(&["explain", &waits.to_string()])?;
    stage.show(&["cancel", &waits.to_string()])?;
    stage.until(waits, "end", is_over).await.map(drop)
}

async fn show_ends(stage: &DemoStage<'_>) -> Result<(), CommandFailure> {
    stage.title("How jobs end: the program's exit code, and a time limit")?;
    stage.show(&["submit", "--wait", "--wrap", "exit 3"])?;
    let slow =
        stage.submit(&["-J", "slow", "--time", "0:02", "--grace", "1", "--", "sleep", "60"])?;
    stage.until(slow, "end", is_over).await?;
    stage.show(&["show", &slow.to_string()])
}

async fn show_summary(stage: &DemoStage<'_>) -> Result<(), CommandFailure> {
    stage.title("What happened")?;
    let active = JobFilter { state: Some("active".into()), ..JobFilter::default() };
    while let Some(job) = stage.client.jobs(&active).await?.items.pop() {
        let name = job.name_id.parse().map_err(|bad| CommandFailure::refused(format!("{bad}")));
        stage.until(name?, "end", is_over).await?;
    }
    stage.show(&["queue", "-t", "all", "--limit", "30"])?;
    let counts = stage.client.counts().await?;
    let jobs = stage.client.all_jobs(&JobFilter::default(), JOBS_MAX).await?.items;
    let repeated = jobs.iter().filter(|job| job.attempts > 1).count();
    let changes = stage.client.layouts(None, CHANGES_MAX).await?.items;
    let steps: usize = changes.iter().map(|change| change.steps.len()).sum();
    stage.print_remark(&format!("\nJobs: {}.", by_state(&counts)))?;
    stage.print_remark(&format!("Layouts: {} plans with {steps} steps.", changes.len(),))?;
    stage.print_remark(&match repeated {
        0 => "They disturbed no job: each ran at most once.".to_owned(),
        jobs => format!("{jobs} jobs ran more than once; `tessera show JOB` shows why."),
    })
}
