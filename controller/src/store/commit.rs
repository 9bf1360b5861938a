//! One round of the leader as one transaction.

use std::collections::{BTreeSet, HashSet};

use sqlx::PgConnection;
use tessera_model::JobId;

use super::{
    StoreError, admin_overrides, dependencies, gangs, idle_jobs, job_updates, layout_plans, leader,
    memory_growth, nodes, notifications, preemptions, rounds, snapshot, transitions, usage,
};
use crate::store::transitions::{AttemptEnd, Placements};
use tessera_control::notifications::NotificationRules;
use tessera_control::rows::findings::CommitFindings;
use tessera_control::rows::transitions::StartedAttempt;
use tessera_control::{JobWrites, Round};

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
    let mut transaction = leader::begin_guarded(connection, epoch).await?;
    write_nodes(&mut transaction, round).await?;
    transitions::launch_attempts(&mut transaction, &round.jobs.ready).await?;
    let (starts, ends) = record_early_starts(&mut transaction, &round.jobs).await?;
    transitions::record_stops(&mut transaction, &round.jobs.stopping).await?;
    transitions::change_shares(&mut transaction, &round.jobs.reshared).await?;
    job_updates::update_jobs(&mut transaction, &round.jobs.updated).await?;
    transitions::record_migrations(&mut transaction, &round.jobs.migrations, policy, epoch).await?;
    preemptions::record_requests(&mut transaction, &round.jobs.preemptions, policy, epoch).await?;
    memory_growth::record_growths(&mut transaction, &round.jobs.growths).await?;
    idle_jobs::record_idle(&mut transaction, &round.jobs.idle).await?;
    memory_growth::record_needs(&mut transaction, &round.jobs.needs).await?;
    transitions::record_starts_and_ends(&mut transaction, &starts, &ends).await?;
    preemptions::record_ends(&mut transaction, &round.jobs.preemptions).await?;
    usage::record_usage(&mut transaction, &round.jobs.usages).await?;
    let mut findings = run_commands(&mut transaction, round).await?;
    let placements = Placements {
        reservations: &round.jobs.reservations,
        waits: &round.jobs.waits,
        record: record.as_ref(),
    };
    findings.launch_specs =
        transitions::record_placements(&mut transaction, placements, policy, epoch).await?;
    let gangs = round.jobs.reservations.iter().filter_map(|r| r.gang);
    let gangs: BTreeSet<JobId> =
        gangs.chain(round.jobs.ended.iter().filter_map(|e| e.gang)).collect();
    gangs::check_whole(&mut transaction, &gangs).await?;
    for plan in &round.plans.begun {
        layout_plans::insert_plan(&mut transaction, plan).await?;
    }
    for change in &round.overrides.changes {
        admin_overrides::apply_change(&mut transaction, change).await?;
    }
    admin_overrides::record_events(&mut transaction, &round.overrides.events).await?;
    findings.dependencies =
        dependencies::answer_questions(&mut transaction, &round.questions).await?;
    findings.has_notifications =
        notifications::record_round(&mut transaction, round, &findings.moved, leaving).await?;
    transaction.commit().await.map_err(StoreError::while_trying_to("commit a round"))?;
    Ok(findings)
}

/// Returns the starts and ends that one statement records. Where starts have to be in the store before other changes of
/// the round, or can't be recorded together with the ends, they are recorded here.
async fn record_early_starts<'r>(
    connection: &mut PgConnection,
    jobs: &'r JobWrites,
) -> Result<(Vec<&'r StartedAttempt>, Vec<AttemptEnd<'r>>), StoreError> {
    let is_state_read = !(jobs.stopping.is_empty()
        && jobs.reshared.is_empty()
        && jobs.updated.is_empty()
        && jobs.migrations.is_empty()
        && jobs.preemptions.is_empty()
        && jobs.growths.is_empty()
        && jobs.idle.is_empty()
        && jobs.needs.is_empty());
    let paired = transitions::pair_starts_with_ends(&jobs.started, &jobs.ended);
    if let Some(paired) = paired.filter(|_| !is_state_read) {
        return Ok(paired);
    }
    let starts: Vec<_> = jobs.started.iter().collect();
    transitions::record_starts_and_ends(connection, &starts, &[]).await?;
    Ok((Vec::new(), jobs.ended.iter().map(|end| AttemptEnd { end, start: None }).collect()))
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
