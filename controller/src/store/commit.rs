//! One round of the leader as one transaction.

use std::collections::{BTreeSet, HashMap, HashSet};

use sqlx::{Connection as _, PgConnection};
use tessera_model::JobId;
use tessera_model::life::JobState;

use super::load::JobSheet;
use super::{StoreError, gangs, leader, load, moves, nodes, operator, rounds, terms, usage};
use crate::core::Round;

/// What a commit brought to light, for the picture and for those who asked.
#[derive(Debug, Default)]
pub struct Findings {
    /// What the reserved jobs run.
    pub sheets: HashMap<JobId, JobSheet>,
    /// The states that the round's commands left their jobs in, in their order; `None` where the
    /// job did not take it.
    pub moved: Vec<Option<JobState>>,
    /// States of the jobs that did not take their users' word.
    pub unmoved: HashMap<JobId, String>,
    /// What the released jobs ask for.
    pub released: HashMap<JobId, JobSheet>,
}

/// Commits a round, all of it or nothing.
///
/// The connection is the caller's for good, and is to be dropped after an error: nothing else is
/// known of its state then.
///
/// # Errors
///
/// [`StoreError`]: the picture is ahead of the store, or the commit's outcome is unknown; read
/// the picture anew.
pub async fn commit(
    connection: &mut PgConnection,
    round: &Round,
    policy: &str,
    epoch: u64,
) -> Result<Findings, StoreError> {
    // Before the transaction begins: whoever waits for its locks need not wait for this.
    let record = match &round.record {
        Some(record) => Some(rounds::seal(record).await?),
        None => None,
    };
    let action = "begin a round";
    let mut transaction = connection.begin().await.map_err(StoreError::while_trying_to(action))?;
    leader::guard(&mut transaction, epoch).await?;
    write_nodes(&mut transaction, round).await?;
    moves::launch(&mut transaction, &round.ready).await?;
    moves::start(&mut transaction, &round.started).await?;
    moves::stop(&mut transaction, &round.stopping).await?;
    moves::reshare(&mut transaction, &round.reshared).await?;
    terms::amend(&mut transaction, &round.amended).await?;
    moves::record_moving(&mut transaction, &round.moving, policy, epoch).await?;
    moves::end(&mut transaction, &round.ended).await?;
    usage::record(&mut transaction, &round.usages).await?;
    let mut findings = command(&mut transaction, round).await?;
    moves::reserve(&mut transaction, &round.reservations, policy, epoch).await?;
    let gangs = round.reservations.iter().filter_map(|r| r.gang);
    let gangs: BTreeSet<JobId> = gangs.chain(round.ended.iter().filter_map(|e| e.gang)).collect();
    gangs::check_whole(&mut transaction, &gangs).await?;
    moves::record_waits(&mut transaction, &round.waits, policy, epoch).await?;
    for plan in &round.orders {
        nodes::order(&mut transaction, plan).await?;
    }
    for change in &round.words {
        operator::change(&mut transaction, change).await?;
    }
    operator::record(&mut transaction, &round.events).await?;
    if let Some(record) = &record {
        rounds::record(&mut transaction, record, epoch).await?;
    }
    let reserved: Vec<_> = round.reservations.iter().map(|r| r.job).collect();
    findings.sheets = load::sheets(&mut transaction, &reserved).await?;
    transaction.commit().await.map_err(StoreError::while_trying_to("commit a round"))?;
    Ok(findings)
}

async fn write_nodes(connection: &mut PgConnection, round: &Round) -> Result<(), StoreError> {
    for node in &round.attaches {
        nodes::attach(connection, node).await?;
    }
    for (node, generation, lost) in &round.raises {
        nodes::raise_generation(connection, *node, *generation, *lost).await?;
    }
    for (node, report) in &round.reports {
        nodes::report(connection, *node, report).await?;
    }
    for closed in &round.closed {
        nodes::close(connection, closed).await?;
    }
    Ok(())
}

async fn command(connection: &mut PgConnection, round: &Round) -> Result<Findings, StoreError> {
    let mut findings = Findings::default();
    if round.commands.is_empty() {
        return Ok(findings);
    }
    let commands = &round.commands;
    findings.moved = vec![None; commands.len()];
    // A job that was commanded twice needs two statements: one moves a row only once.
    let mut left: Vec<usize> = (0..commands.len()).collect();
    while !left.is_empty() {
        let mut seen = HashSet::new();
        let (now, later): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|place| seen.insert(commands[*place].job));
        let batch: Vec<_> = now.iter().map(|place| commands[*place]).collect();
        let moved = moves::command(connection, &batch).await?;
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
    findings.released = load::sheets(connection, &released).await?;
    findings.unmoved = load::states(connection, &unmoved).await?;
    Ok(findings)
}
