//! What operators say: words that stay in force, and the record of who said what.

use std::fmt;

use sqlx::PgConnection;
use tessera_model::mig::{ProfileId, Slot};
use tessera_model::{GpuId, Millis, NodeId};

use super::StoreError;
use super::load::corrupt;

/// A kind of word that stays in force until it is taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// No new attempts; those that run finish.
    Drained,
    /// No new attempts, and hands off the layout there.
    Quarantined,
    /// The layout stays as it is.
    Pinned,
}

impl Kind {
    /// Returns the word of the store and the API.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Drained => "drained",
            Self::Quarantined => "quarantined",
            Self::Pinned => "pinned",
        }
    }
}

/// What a word is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// A whole node.
    Node(NodeId),
    /// A whole GPU.
    Gpu(GpuId),
    /// One instance, or the place where it stood.
    Slice(GpuId, Slot),
}

/// A word in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Word {
    /// What was said.
    pub kind: Kind,
    /// Of what.
    pub target: Target,
    /// By whom.
    pub by: String,
    /// Why.
    pub reason: Option<String>,
    /// When, milliseconds since 1970.
    pub said_unix: Millis,
}

impl fmt::Display for Word {
    /// Such as `drained (maintenance, by ada)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.reason {
            Some(reason) => write!(f, "{} ({reason}, by {})", self.kind.word(), self.by),
            None => write!(f, "{} (by {})", self.kind.word(), self.by),
        }
    }
}

/// A change of the words in force.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is said, or said anew.
    Say(Word),
    /// It is taken back.
    Lift(Kind, Target),
}

/// One line of the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// A stable word for what happened, such as `drained`.
    pub kind: &'static str,
    /// On which node, by name.
    pub node: Option<String>,
    /// To which GPU.
    pub gpu: Option<GpuId>,
    /// On whose word.
    pub by: Option<String>,
    /// A sentence.
    pub text: String,
}

struct Columns {
    node: Option<uuid::Uuid>,
    gpu: Option<String>,
    start: Option<i16>,
    profile: Option<i32>,
}

impl From<&Target> for Columns {
    fn from(target: &Target) -> Self {
        let (node, gpu, slot) = match target {
            Target::Node(node) => (Some(*node), None, None),
            Target::Gpu(gpu) => (None, Some(gpu), None),
            Target::Slice(gpu, slot) => (None, Some(gpu), Some(slot)),
        };
        Self {
            node: node.map(NodeId::as_uuid),
            gpu: gpu.map(ToString::to_string),
            start: slot.map(|slot| i16::from(slot.start)),
            profile: slot.map(|slot| i32::try_from(slot.profile.0).unwrap_or(i32::MAX)),
        }
    }
}

/// Changes the words in force. A word that is said anew keeps its moment, and one that isn't in
/// force may be taken back: both are harmless.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn change(connection: &mut PgConnection, change: &Change) -> Result<(), StoreError> {
    let action = "note an operator's word";
    match change {
        Change::Say(word) => {
            let at = Columns::from(&word.target);
            sqlx::query!(
                r#"
                INSERT INTO operator_words (word, node, gpu, start, profile_id, by_user, reason)
                VALUES ($1, $2, $3, $4, $5, $6, $7)
                ON CONFLICT (word, node, gpu, start, profile_id) DO UPDATE
                   SET by_user = EXCLUDED.by_user, reason = EXCLUDED.reason
                "#,
                word.kind.word(),
                at.node,
                at.gpu,
                at.start,
                at.profile,
                word.by,
                word.reason,
            )
            .execute(connection)
            .await
        }
        Change::Lift(kind, target) => {
            let at = Columns::from(target);
            sqlx::query!(
                r#"
                DELETE FROM operator_words
                 WHERE word = $1 AND node IS NOT DISTINCT FROM $2 AND gpu IS NOT DISTINCT FROM $3
                   AND start IS NOT DISTINCT FROM $4 AND profile_id IS NOT DISTINCT FROM $5
                "#,
                kind.word(),
                at.node,
                at.gpu,
                at.start,
                at.profile,
            )
            .execute(connection)
            .await
        }
    }
    .map_err(StoreError::while_trying_to(action))
    .map(drop)
}

/// Adds lines to the record.
///
/// # Errors
///
/// [`StoreError::Unavailable`].
pub async fn record(connection: &mut PgConnection, events: &[EventRow]) -> Result<(), StoreError> {
    for event in events {
        sqlx::query!(
            "INSERT INTO cluster_events (kind, node, gpu, by_user, text) VALUES ($1, $2, $3, $4, $5)",
            event.kind,
            event.node,
            event.gpu.as_ref().map(GpuId::as_str),
            event.by,
            event.text,
        )
        .execute(&mut *connection)
        .await
        .map_err(StoreError::while_trying_to("record what an operator did"))?;
    }
    Ok(())
}

/// Reads the words in force.
///
/// # Errors
///
/// [`StoreError::Unavailable`]; [`StoreError::Corrupt`] if a row can't be understood.
pub async fn words(connection: &mut PgConnection) -> Result<Vec<Word>, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT word, node, gpu, start, profile_id, by_user, reason,
               (EXTRACT(EPOCH FROM said_at) * 1000)::bigint AS "said!"
          FROM operator_words ORDER BY said_at
        "#
    )
    .fetch_all(connection)
    .await
    .map_err(StoreError::while_trying_to("read what operators said"))?;
    rows.into_iter()
        .map(|row| {
            let bad = |problem: &str| corrupt("operator_words", &row.by_user, problem);
            let kind = [Kind::Drained, Kind::Quarantined, Kind::Pinned]
                .into_iter()
                .find(|kind| kind.word() == row.word)
                .ok_or_else(|| bad("an unknown word"))?;
            let gpu = row.gpu.as_deref().map(str::parse).transpose();
            let gpu: Option<GpuId> = gpu.map_err(|_| bad("no GPU's id"))?;
            let slot = match (row.start, row.profile_id) {
                (Some(start), Some(profile)) => Some(Slot {
                    start: u8::try_from(start).map_err(|_| bad("no memory slice"))?,
                    profile: ProfileId(u32::try_from(profile).map_err(|_| bad("no profile"))?),
                }),
                _ => None,
            };
            let target = match (row.node, gpu, slot) {
                (Some(node), None, None) => Target::Node(NodeId::from_uuid(node)),
                (None, Some(gpu), None) => Target::Gpu(gpu),
                (None, Some(gpu), Some(slot)) => Target::Slice(gpu, slot),
                _ => return Err(bad("it names no one thing")),
            };
            Ok(Word {
                kind,
                target,
                by: row.by_user,
                reason: row.reason,
                said_unix: Millis::new(u64::try_from(row.said).unwrap_or(0)),
            })
        })
        .collect()
}
