//! `tessera simulate --since … --check`: recorded rounds, decided again.

use serde::Serialize;
use serde_json::{Map, Value};
use tessera_placement::policy::with_settings;
use tessera_placement::record::{Brain, Record, Replayed, Tape};
use tessera_placement::{Policy, policy};
use time::OffsetDateTime;
use utoipa::ToSchema;

use super::bar::Bar;
use super::period::{Period, exact, shown};
use crate::cli::failure::Failure;
use crate::cli::session::Session;
use crate::types::RecordedRound;

/// The name that stands for whatever policy decided, with the settings that it had.
pub const LIVE: &str = "live";

/// What came of recorded rounds that were decided again.
#[derive(Debug, Serialize, ToSchema)]
pub struct HistoryCheck {
    /// Beginning of the period.
    #[serde(with = "time::serde::rfc3339")]
    pub since: OffsetDateTime,
    /// Its end.
    #[serde(with = "time::serde::rfc3339")]
    pub until: OffsetDateTime,
    /// Who decided now: `live`, or a policy's name.
    pub policy: String,
    /// What was set otherwise.
    #[schema(value_type = Object)]
    pub set: Value,
    /// Rounds that were decided again.
    pub rounds: u64,
    /// Decisions of these.
    pub decisions: u64,
    /// Rounds that came out equal, bit for bit.
    pub equal: u64,
    /// Who decided then: each policy, version and settings, with its rounds.
    pub decided_by: Vec<DecidedBy>,
    /// The first difference; absent where there is none.
    pub first_difference: Option<RoundDifference>,
}

/// A policy that decided recorded rounds.
#[derive(Debug, Serialize, ToSchema)]
pub struct DecidedBy {
    /// Its name.
    pub policy: String,
    /// The controller's version.
    pub version: String,
    /// Its settings.
    #[schema(value_type = Object)]
    pub settings: Value,
    /// Rounds of the period that it decided.
    pub rounds: u64,
}

/// Where a round comes out otherwise.
#[derive(Debug, Serialize, ToSchema)]
pub struct RoundDifference {
    /// The round's number.
    pub round: u64,
    /// When it was decided.
    #[serde(with = "time::serde::rfc3339")]
    pub at: OffsetDateTime,
    /// The job that the first differing decision is about; absent for a GPU that is arranged anew.
    pub job: Option<u64>,
    /// What was decided then.
    pub recorded: String,
    /// What is decided now.
    pub decided: String,
}

/// Who is to decide now.
#[derive(Debug)]
pub struct Wanted<'a> {
    /// [`LIVE`], or a policy of controllers.
    pub policy: &'a str,
    /// Settings that are to be other than they were.
    pub set: Map<String, Value>,
}

impl Wanted<'_> {
    /// Makes the policy for a chain that `brain` decided.
    fn policy(&self, brain: &Brain) -> Result<Box<dyn Policy>, Failure> {
        let (name, mut settings) = match self.policy {
            LIVE => (brain.policy.as_str(), brain.settings.clone()),
            name => (name, Value::Null),
        };
        if !self.set.is_empty() {
            let mut all = settings.as_object().cloned().unwrap_or_default();
            all.extend(self.set.clone());
            settings = Value::Object(all);
        }
        with_settings(name, &settings).map_err(|bad| Failure::Usage(bad.to_string()))
    }

    /// Refuses a name before anything is fetched.
    fn check(&self) -> Result<(), Failure> {
        if self.policy == LIVE || policy::by_name(self.policy).is_some() {
            return Ok(());
        }
        let names = policy::NAMES.join(", ");
        Err(Failure::Usage(format!(
            "recorded rounds can be decided again by {LIVE} (whoever decided them) or {names}; {:?} \
             is none of these (without --check every policy of the simulator can be named)",
            self.policy
        )))
    }
}

/// Has the recorded rounds of a period decided again.
pub async fn run(session: &Session, period: Period, wanted: Wanted<'_>) -> Result<u8, Failure> {
    wanted.check()?;
    let mut check = HistoryCheck {
        since: period.since,
        until: period.until,
        policy: wanted.policy.to_owned(),
        set: Value::Object(wanted.set.clone()),
        rounds: 0,
        decisions: 0,
        equal: 0,
        decided_by: Vec::new(),
        first_difference: None,
    };
    let bar = Bar::counting("rounds decided again");
    let mut reader = Reader { tape: Tape::default(), policy: None, wanted };
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
    told_of_gaps(session, &period, oldest, &check)?;
    session.print(&check, drawn)?;
    Ok(u8::from(check.first_difference.is_some()))
}

/// Says what of the period is not there; fails if that is all of it.
fn told_of_gaps(
    session: &Session,
    period: &Period,
    oldest: Option<OffsetDateTime>,
    check: &HistoryCheck,
) -> Result<(), Failure> {
    let refused = |text: String| Err(Failure::Refused(text));
    match oldest {
        None => refused(
            "no round was recorded yet: rounds are recorded as jobs are placed, by controllers of \
             this version on"
                .to_owned(),
        ),
        Some(oldest) if period.until < oldest => refused(format!(
            "rounds {} are not kept any more: the oldest is of {}; choose a later --until, and \
             keep them longer with the controller's --keep-rounds",
            period.words(),
            shown(oldest)
        )),
        Some(oldest) if check.rounds == 0 => refused(format!(
            "no round was recorded {}: nothing was placed then; the oldest is of {}, so choose an \
             earlier --since or a later --until",
            period.words(),
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

/// Goes through chains.
struct Reader<'a> {
    tape: Tape,
    policy: Option<Box<dyn Policy>>,
    wanted: Wanted<'a>,
}

impl Reader<'_> {
    fn read(
        &mut self,
        round: RecordedRound,
        period: &Period,
        check: &mut HistoryCheck,
    ) -> Result<(), Failure> {
        let bad = |problem: String| Failure::Refused(format!("round {}: {problem}", round.round));
        let record: Record =
            serde_json::from_value(round.record).map_err(|problem| bad(problem.to_string()))?;
        if let Some(brain) = &record.brain {
            self.policy = Some(self.wanted.policy(brain)?);
        }
        let policy = self.policy.as_deref().filter(|_| period.has(round.at));
        let again = self.tape.read(record, policy).map_err(|problem| bad(problem.to_string()))?;
        let Some(brain) = self.tape.brain().filter(|_| again.decided.is_some()) else {
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

fn count(check: &mut HistoryCheck, brain: &Brain, again: &Replayed) {
    check.rounds += 1;
    check.decisions += u64::try_from(again.recorded.len()).unwrap_or(u64::MAX);
    let Brain { policy, version, settings } = brain;
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
            format!(", while this is {}", env!("CARGO_PKG_VERSION"))
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
