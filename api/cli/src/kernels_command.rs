//! Measured kernels of tasks: `tessera kernels`.

use clap::Args;

use super::failure::CommandFailure;
use super::session::{CommandSession, moment, or_dash, table};
use tessera_api_types::{KernelTasks, KernelTime, KernelView, TaskKernels};

#[derive(Args)]
pub struct Kernels {
    /// Show each kernel of this task; the list shows the keys
    #[arg(value_name = "TASK")]
    task: Option<String>,
}

impl Kernels {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        match self.task {
            Some(task) => session.print(&session.client.task_kernels(&task).await?, draw_one)?,
            None => session.print(&session.client.kernel_tasks().await?, draw)?,
        }
        Ok(0)
    }
}

fn draw(tasks: &KernelTasks) -> String {
    let header = ["TASK", "KERNELS", "MEASURED", "REPORTS", "UPDATED"];
    let rows = tasks.items.iter().map(|task| {
        vec![
            task.task_key.clone(),
            task.kernels.to_string(),
            if task.measured { "yes" } else { "not yet" }.to_owned(),
            task.reports.to_string(),
            moment(task.updated_at),
        ]
    });
    table(Some(&header), rows)
}

fn draw_one(task: &TaskKernels) -> String {
    let header = ["KERNEL", "GRID", "BLOCK", "RUNS", "SAMPLES", "IDLE AFTER"];
    table(Some(&header), task.kernels.iter().map(row))
}

fn row(kernel: &KernelView) -> Vec<String> {
    let sides = |sides: &[u32]| {
        let sides: Vec<_> = sides.iter().map(u32::to_string).collect();
        sides.join("x")
    };
    vec![
        kernel.name.clone(),
        sides(&kernel.grid),
        sides(&kernel.block),
        or_dash(kernel.took.as_ref().map(time)),
        or_dash(kernel.took.as_ref().map(|took| took.samples)),
        or_dash(kernel.gap.as_ref().map(time)),
    ]
}

/// "12.3 µs", with a question mark if the mean is not yet precise.
fn time(time: &KernelTime) -> String {
    let sure = if time.tight { "" } else { "?" };
    format!("{:.1} µs{sure}", time.mean_us)
}
