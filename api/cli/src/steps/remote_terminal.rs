//! The single process of a step that has a terminal, on another node than its caller's.
//!
//! The caller holds the terminal's other end by a session of the job's member on that node, as `tessera exec --pty`
//! does. The session runs this program, which becomes the process.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use super::environment::{StepFacts, exported, on_node, variables};
use super::exchange::PartOrder;
use super::own_number::{TASK_PID, report_not_started};
use super::part::{NO_FOLDER, no_folder};
use super::transport::{client, member_on};
use super::{Allocation, StepPlan};
use crate::failure::CommandFailure;
use crate::interactive::execute;
use crate::own_program;

/// The command of this program that becomes the process.
const COMMAND: &str = "step-terminal";

/// Runs the process of a step in this terminal, and returns its exit code. Like a shell on the caller's own node, it takes
/// no GPU from other steps.
///
/// # Errors
///
/// There is no way to the node.
pub async fn run_there(
    plan: &StepPlan,
    allocation: &Allocation,
    facts: StepFacts,
) -> Result<u8, CommandFailure> {
    let node = plan.layout.nodes.first().map_or("", |node| node.name.as_str());
    let job = member_on(node, allocation)?;
    let folder = match &plan.folder {
        Some(folder) => folder.clone(),
        None => std::env::current_dir()?,
    };
    let order = PartOrder {
        facts,
        node: Some(0),
        programs: plan.programs.clone(),
        environment: exported(plan.export.as_deref(), allocation),
        folder,
        gpus: None,
        overlap: true,
        pmi: false,
    };
    let order = serde_json::to_string(&order).map_err(std::io::Error::from)?;
    let mut words = own_program::words(COMMAND)?;
    words.push(order);
    execute(&client(allocation)?, job, words, true).await
}

/// Becomes the process that an order describes. Returns only if that fails, with the exit code.
///
/// # Errors
///
/// [`CommandFailure`] if this is not inside of a job.
pub fn become_process(order: &str) -> Result<u8, CommandFailure> {
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let no_step = || CommandFailure::usage("a process of a step is started by steps only");
    let allocation = Allocation::find(environment.collect()).ok_or_else(no_step)?;
    let order: PartOrder = serde_json::from_str(order).map_err(|_| no_step())?;
    let base = on_node(&order.environment, &allocation.environment);
    let all = variables(&order.facts, (0, 0), &allocation, (base, None));
    let words = order.programs.first().map_or(&[][..], Vec::as_slice);
    let (program, arguments) = words.split_first().ok_or_else(no_step)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().envs(all).current_dir(&order.folder);
    command.env(TASK_PID, std::process::id().to_string());
    if let Some(note) = no_folder(&allocation.node, &order.folder) {
        eprintln!("{note}");
        command.current_dir(Path::new(NO_FOLDER));
    }
    let error = command.exec();
    Ok(report_not_started(&allocation.node, program, &error))
}
