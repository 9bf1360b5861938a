//! `tessera simulate --since … --check`: decides recorded rounds again.

use serde::Serialize;
use serde_json::{Map, Value};
use tessera_placement::policy::with_settings;
use tessera_placement::record::{DecidingPolicy, ReplayedRound, RoundRecord, RoundReplay};
use tessera_placement::{Policy, policy};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::bar::SimulationProgress;
use super::period::{HistoryPeriod, exact, shown};
use crate::failure::CommandFailure;
use crate::session::CommandSession;
use tessera_api_types::RecordedRound;

/// Stands for the policy that decided the rounds, with its recorded settings.
pub const LIVE: &str = "live";

/// The result of deciding recorded rounds again.
#[derive(Debug, Serialize, ToSchema)]
pub struct HistoryCheck {
    /// Start of the period.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// End of the period.
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    /// The policy that decided again: `live`, or a name.
    pub policy: String,
    /// Changed settings.
    #[schema(value_type = Object)]
    pub set: Value,
    /// Number of rounds that were decided again.
    pub rounds: u64,
    /// Number of their decisions.
    pub decisions: u64,
    /// Number of rounds with bit-for-bit equal decisions.
    pub equal: u64,
    /// The original policies with version, settings and number of rounds.
    pub decided_by: Vec<DecidedBy>,
    /// The first difference; absent if there is none.
    pub first_difference: Option<RoundDifference>,
}

/// A policy that decided recorded rounds.
#[derive(Debug, Serialize, ToSchema)]
pub struct DecidedBy {
    /// Its name.
    pub policy: String,
    /// The controller's version.
    pub version: String,
    #[schema(value_type = Object)]
    pub settings: Value,
    /// Number of the period's rounds that it decided.
    pub rounds: u64,
}

/// A difference between the recorded and the repeated decision.
#[derive(Debug, Serialize, ToSchema)]
pub struct RoundDifference {
    /// The round's number.
    pub round: u64,
    /// When it was decided.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The job of the first differing decision; absent for a rearranged GPU.
    pub job: Option<u64>,
    /// The recorded decision.
    pub recorded: String,
    /// The repeated decision.
    pub decided: String,
}

/// The policy that decides again.
#[derive(Debug)]
pub struct ReplayPolicy<'a> {
    /// [`LIVE`], or a policy of controllers.
    pub policy: &'a str,
    /// Changed settings.
    pub set: Map<String, Value>,
}

impl ReplayPolicy<'_> {
    /// Builds the policy for a chain that `brain` decided.
    fn policy(&self, brain: &DecidingPolicy) -> Result<Box<dyn Policy>, CommandFailure> {
        let (name, mut settings) = match self.policy {
            LIVE => (brain.policy.as_str(), brain.settings.clone()),
            name => (name, Value::Null),
        };
        if !self.set.is_empty() {
            let mut all = settings.as_object().cloned().unwrap_or_default();
            all.extend(self.set.clone());
            settings = Value::Object(all);
        }
        with_settings(name, &settings).map_err(CommandFailure::usage)
    }

    /// Checks the name before anything is fetched.
    fn check(&self) -> Result<(), CommandFailure> {
        if self.policy == LIVE || policy::by_name(self.policy).is_some() {
            return Ok(());
        }
        let names = policy::NAMES.join(", ");
        Err(CommandFailure::usage(format!(
            "--check does not support the policy {:?}; use {LIVE} (the policy that decided the \
             rounds) or {names}; without --check all policies of the simulator are available",
            self.policy
        )))
    }
}

/// Decides the recorded rounds of a period again.
pub async fn run(
    session: &CommandSession,
    period: HistoryPeriod,
    chosen: ReplayPolicy<'_>,
) -> Result<u8, CommandFailure> {
    chosen.check()?;
    let mut check = HistoryCheck {
        since: period.since,
        until: period.until,
        policy: chosen.policy.to_owned(),
        set: Value::Object(chosen.set.clone()),
        rounds: 0,
        decisions: 0,
        equal: 0,
        decided_by: Vec::new(),
        first_difference: None,
    };
    let bar = SimulationProgress::counting("rounds decided again");
    let mut reader = RoundReader { replay: RoundReplay::default(), policy: None, chosen };
    let (since, mut cursor) = (exact(period.since), None);
    let oldest = loop {
        let page = session.client.recorded_rounds(&since, cursor.as_deref()).await?;
        let mut over = page.next_cursor.is_none();
        for round in page.items {
            over |= round.at > period.until;
            if over && round.at > period.until {
                break;
            }
            reader.read(round, &period, &mut check)?;
            bar.set(check.rounds);
        }
        if over {
            break page.oldest_at;
        }
        cursor = page.next_cursor;
    };
    bar.finish();
    report_gaps(session, &period, oldest, &check)?;
    session.print(&check, drawn)?;
    Ok(u8::from(check.first_difference.is_some()))
}

/// Reports parts of the period that are not recorded; fails if nothing is.
fn report_gaps(
    session: &CommandSession,
    period: &HistoryPeriod,
    oldest: Option<OffsetDateTime>,
    check: &HistoryCheck,
) -> Result<(), CommandFailure> {
    let refused = |text: String| Err(CommandFailure::refused(text));
    match oldest {
        None => refused(
            "no round was recorded yet; a controller records rounds when it places jobs".to_owned(),
        ),
        Some(oldest) if period.until < oldest => refused(format!(
            "rounds {} were deleted: the oldest is of {}; choose a later --until, or keep rounds \
             longer with the controller's --keep-rounds",
            period.describe(),
            shown(oldest)
        )),
        Some(oldest) if check.rounds == 0 => refused(format!(
            "no round was recorded {}, since nothing was placed; the oldest is of {}: choose an \
             earlier --since or a later --until",
            period.describe(),
            shown(oldest)
        )),
        Some(oldest) => {
            if period.since < oldest {
                session.remark(&format!(
                    "rounds before {} are not kept (the controller's --keep-rounds)",
                    shown(oldest)
                ));
            }
            Ok(())
        }
    }
}

/// Reads chains of rounds.
struct RoundReader<'a> {
    replay: RoundReplay,
    policy: Option<Box<dyn Policy>>,
    chosen: ReplayPolicy<'a>,
}

impl RoundReader<'_> {
    fn read(
        &mut self,
        round: RecordedRound,
        period: &HistoryPeriod,
        check: &mut HistoryCheck,
    ) -> Result<(), CommandFailure> {
        let number = round.round;
        let bad = |problem: &dyn std::fmt::Display| {
            CommandFailure::refused(format!("round {number}: {problem}"))
        };
        let record: RoundRecord =
            serde_json::from_value(round.record).map_err(|problem| bad(&problem))?;
        if let Some(brain) = &record.policy {
            self.policy = Some(self.chosen.policy(brain)?);
        }
        let policy = self.policy.as_deref().filter(|_| period.has(round.at));
        let again = self.replay.read_record(record, policy).map_err(|problem| bad(&problem))?;
        let Some(brain) = self.replay.policy().filter(|_| again.decided.is_some()) else {
            return Ok(());
        };
        count(check, brain, &again);
        let difference = again.difference();
        let digest = again.digest.map(|digest| hex(&digest));
        if difference.is_none() && digest.as_deref() == Some(round.digest.as_str()) {
            check.equal += 1;
        } else if check.first_difference.is_none() {
            check.first_difference = Some(match difference {
                Some(found) => RoundDifference {
                    round: round.round,
                    at: round.at,
                    job: found.job.map(tessera_model::JobId::number),
                    recorded: found.recorded,
                    decided: found.decided,
                },
                None => RoundDifference {
                    round: round.round,
                    at: round.at,
                    job: None,
                    recorded: format!("digest {}, so the record was changed since", round.digest),
                    decided: format!("digest {}", digest.unwrap_or_default()),
                },
            });
        }
        Ok(())
    }
}

fn count(check: &mut HistoryCheck, brain: &DecidingPolicy, again: &ReplayedRound) {
    check.rounds += 1;
    check.decisions += again.recorded.len() as u64;
    let DecidingPolicy { policy, version, settings } = brain;
    let same = |by: &&mut DecidedBy| {
        by.policy == *policy && by.version == *version && by.settings == *settings
    };
    match check.decided_by.iter_mut().find(same) {
        Some(by) => by.rounds += 1,
        None => check.decided_by.push(DecidedBy {
            policy: policy.clone(),
            version: version.clone(),
            settings: settings.clone(),
            rounds: 1,
        }),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn drawn(check: &HistoryCheck) -> String {
    let mut text = String::new();
    for by in &check.decided_by {
        let others = if by.version == env!("CARGO_PKG_VERSION") {
            String::new()
        } else {
            format!("; this is version {}", env!("CARGO_PKG_VERSION"))
        };
        text += &format!(
            "{} rounds were decided by {} of version {}{others}\n",
            by.rounds, by.policy, by.version
        );
    }
    let HistoryCheck { rounds, decisions, equal, .. } = check;
    match &check.first_difference {
        None => text += &format!("{rounds} rounds, {decisions} decisions, all equal\n"),
        Some(first) => {
            let about = first.job.map_or_else(String::new, |job| format!(", job {job}"));
            text += &format!(
                "{} of {rounds} rounds differ; the first is round {} of {}{about}:\n  recorded: \
                 {}\n  now:      {}\n",
                rounds - equal,
                first.round,
                shown(first.at),
                first.recorded,
                first.decided
            );
        }
    }
    text
}
