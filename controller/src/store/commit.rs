//! One round of the leader as one transaction.

use std::collections::{BTreeSet, HashSet};

use sqlx::{Connection as _, PgConnection};
use tessera_model::JobId;

use super::{
    StoreError, admin_overrides, dependencies, gangs, idle_jobs, job_updates, layout_plans, leader,
    memory_growth, nodes, notifications, preemptions, rounds, snapshot, transitions, usage,
};
use tessera_control::Round;
use tessera_control::notifications::NotificationRules;
use tessera_control::rows::findings::CommitFindings;

/// Commits a round, all of it or nothing.
///
/// The connection is the caller's for good, and is to be dropped after an error: nothing else is
/// known of its state then.
///
/// # Errors
///
/// [`StoreError`]: the leader's state is ahead of the store, or the commit's outcome is unknown; read
/// the snapshot again.
pub async fn commit_round(
    connection: &mut PgConnection,
    round: &Round,
    policy: &str,
    epoch: u64,
    leaving: &NotificationRules,
) -> Result<CommitFindings, StoreError> {
    // Before the transaction begins, so that its locks are not held meanwhile.
    let record = match &round.record {
        Some(record) => Some(rounds::seal_record(record).await?),
        None => None,
    };
    let action = "begin a round";
    let mut transaction = connection.begin().await.map_err(StoreError::while_trying_to(action))?;
    leader::guard_epoch(&mut transaction, epoch).await?;
    write_nodes(&mut transaction, round).await?;
    transitions::launch_attempts(&mut transaction, &round.jobs.ready).await?;
    transitions::record_starts(&mut transaction, &round.jobs.started).await?;
    transitions::record_stops(&mut transaction, &round.jobs.stopping).await?;
    transitions::change_shares(&mut transaction, &round.jobs.reshared).await?;
    job_updates::update_jobs(&mut transaction, &round.jobs.updated).await?;
    transitions::record_migrations(&mut transaction, &round.jobs.migrations, policy, epoch).await?;
    preemptions::record_requests(&mut transaction, &round.jobs.preemptions, policy, epoch).await?;
    memory_growth::record_growths(&mut transaction, &round.jobs.growths).await?;
    idle_jobs::record_idle(&mut transaction, &round.jobs.idle).await?;
    memory_growth::record_needs(&mut transaction, &round.jobs.needs).await?;
    transitions::record_ends(&mut transaction, &round.jobs.ended).await?;
    preemptions::record_ends(&mut transaction, &round.jobs.preemptions).await?;
    usage::record_usage(&mut transaction, &round.jobs.usages).await?;
    let mut findings = run_commands(&mut transaction, round).await?;
    transitions::reserve_slices(&mut transaction, &round.jobs.reservations, policy, epoch).await?;
    let gangs = round.jobs.reservations.iter().filter_map(|r| r.gang);
    let gangs: BTreeSet<JobId> =
        gangs.chain(round.jobs.ended.iter().filter_map(|e| e.gang)).collect();
    gangs::check_whole(&mut transaction, &gangs).await?;
    transitions::record_waits(&mut transaction, &round.jobs.waits, policy, epoch).await?;
    for plan in &round.plans.begun {
        layout_plans::insert_plan(&mut transaction, plan).await?;
    }
    for change in &round.overrides.changes {
        admin_overrides::apply_change(&mut transaction, change).await?;
    }
    admin_overrides::record_events(&mut transaction, &round.overrides.events).await?;
    if let Some(record) = &record {
        rounds::insert_record(&mut transaction, record, epoch).await?;
    }
    let reserved: Vec<_> = round.jobs.reservations.iter().map(|r| r.job).collect();
    findings.launch_specs = snapshot::read_launch_specs(&mut transaction, &reserved).await?;
    findings.dependencies =
        dependencies::answer_questions(&mut transaction, &round.questions).await?;
    findings.has_notifications =
        notifications::record_round(&mut transaction, round, &findings.moved, leaving).await?;
    transaction.commit().await.map_err(StoreError::while_trying_to("commit a round"))?;
    Ok(findings)
}

async fn write_nodes(connection: &mut PgConnection, round: &Round) -> Result<(), StoreError> {
    for node in &round.nodes.registrations {
        nodes::register_node(connection, node).await?;
    }
    for (node, generation, lost) in &round.nodes.generations {
        nodes::raise_generation(connection, *node, *generation, *lost).await?;
    }
    for (node, report) in &round.nodes.gpu_reports {
        nodes::store_gpu_report(connection, *node, report).await?;
    }
    for closed in &round.plans.ended {
        layout_plans::close_plan(connection, closed).await?;
    }
    Ok(())
}

async fn run_commands(
    connection: &mut PgConnection,
    round: &Round,
) -> Result<CommitFindings, StoreError> {
    let mut findings = CommitFindings::default();
    if round.jobs.commands.is_empty() {
        return Ok(findings);
    }
    let commands = &round.jobs.commands;
    findings.moved = vec![None; commands.len()];
    // A job that was commanded twice needs two statements: one moves a row only once.
    let mut left: Vec<usize> = (0..commands.len()).collect();
    while !left.is_empty() {
        let mut seen = HashSet::new();
        let (now, later): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|place| seen.insert(commands[*place].job));
        let batch: Vec<_> = now.iter().map(|place| commands[*place].clone()).collect();
        let moved = transitions::command_waiting_jobs(connection, &batch).await?;
        for place in now {
            findings.moved[place] = moved.get(&commands[place].job).copied();
        }
        left = later;
    }
    let released = round.released(&findings.moved);
    let unmoved: Vec<_> = commands
        .iter()
        .zip(&findings.moved)
        .filter(|(_, moved)| moved.is_none())
        .map(|(command, _)| command.job)
        .collect();
    findings.released = snapshot::read_launch_specs(connection, &released).await?;
    findings.unmoved = snapshot::read_states(connection, &unmoved).await?;
    Ok(findings)
}
