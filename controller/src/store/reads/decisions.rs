//! Recorded decisions.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use sqlx::PgConnection;
use tessera_api_types::{CandidateView, DecisionPage, DecisionView};
use tessera_model::mig::{PlanStep, ProfileId, ProfileName};
use tessera_model::{DecisionId, JobId, JobRef};
use tessera_placement::{Explanation, JobPlacement, PlacementCandidate};
use time::OffsetDateTime;

use super::page::PageSize;
use super::targets;
use crate::principal::JobScope;
use crate::store::StoreError;
use crate::store::columns::{RowRef, job_number};

/// Lists decisions, newest first. Ids rise with time, so that their order is that of the page.
pub(super) async fn page(
    at: &mut PgConnection,
    job: Option<JobId>,
    scope: &JobScope,
    before: Option<DecisionId>,
    size: PageSize,
) -> Result<DecisionPage, StoreError> {
    let mut ids = match job {
        Some(job) => ids_of_job(at, job, scope, before, size).await?,
        None => ids(at, scope, before, size).await?,
    };
    let more = size.cut(&mut ids);
    let items = rows(at, &ids).await?;
    let next_cursor = items.last().filter(|_| more).map(|decision| decision.id.clone());
    Ok(DecisionPage { items, next_cursor })
}

/// Returns one decision about a job that exists for the caller.
pub(super) async fn one_of(
    at: &mut PgConnection,
    id: DecisionId,
    scope: &JobScope,
) -> Result<Option<DecisionView>, StoreError> {
    let Some(decision) = one(at, id).await? else { return Ok(None) };
    if *scope == JobScope::everyone() {
        return Ok(Some(decision));
    }
    let job = JobRef::Job(JobId::from_number(decision.job_id));
    Ok(targets::number_of(at, job, scope).await?.map(|_| decision))
}

/// Returns one decision.
pub(super) async fn one(
    at: &mut PgConnection,
    id: DecisionId,
) -> Result<Option<DecisionView>, StoreError> {
    Ok(rows(at, &[id.as_uuid()]).await?.pop())
}

/// Returns the decision about a job's newest attempt; for a job that never had one, the newest.
pub(super) async fn newest_of(
    at: &mut PgConnection,
    job: JobId,
) -> Result<Option<DecisionView>, StoreError> {
    let id = sqlx::query_scalar!(
        r#"
        SELECT COALESCE(
                   (SELECT decision FROM attempts WHERE job = $1 ORDER BY number DESC LIMIT 1),
                   (SELECT decision FROM decisions WHERE job = $1 ORDER BY at DESC LIMIT 1))
        "#,
        job_number(job),
    )
    .fetch_one(&mut *at)
    .await
    .map_err(StoreError::while_trying_to("find a job's newest decision"))?;
    match id {
        Some(id) => one(at, DecisionId::from_uuid(id)).await,
        None => Ok(None),
    }
}

async fn ids(
    at: &mut PgConnection,
    scope: &JobScope,
    before: Option<DecisionId>,
    size: PageSize,
) -> Result<Vec<uuid::Uuid>, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT decision
          FROM decisions AS d
         WHERE decision < COALESCE($1, 'ffffffff-ffff-ffff-ffff-ffffffffffff'::uuid)
           AND ($3::text[] IS NULL OR EXISTS (
                   SELECT FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
                    WHERE j.job = d.job AND s.user_name = ANY ($3)))
         ORDER BY decision DESC
         LIMIT $2
        "#,
        before.map(DecisionId::as_uuid),
        size.rows(),
        scope.users() as Option<&[String]>,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list decisions"))
}

async fn ids_of_job(
    at: &mut PgConnection,
    job: JobId,
    scope: &JobScope,
    before: Option<DecisionId>,
    size: PageSize,
) -> Result<Vec<uuid::Uuid>, StoreError> {
    sqlx::query_scalar!(
        r#"
        SELECT decision
          FROM decisions
         WHERE job = $1 AND ($2::uuid IS NULL OR decision < $2)
           AND ($4::text[] IS NULL OR EXISTS (
                   SELECT FROM jobs AS j JOIN submissions AS s ON s.first_job = j.submission
                    WHERE j.job = $1 AND s.user_name = ANY ($4)))
         ORDER BY decision DESC
         LIMIT $3
        "#,
        job_number(job),
        before.map(DecisionId::as_uuid),
        size.rows(),
        scope.users() as Option<&[String]>,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the decisions about a job"))
}

/// Reads decisions by id, newest first. Profiles of the GPU come along only where layout steps
/// have to be named.
async fn rows(at: &mut PgConnection, ids: &[uuid::Uuid]) -> Result<Vec<DecisionView>, StoreError> {
    let rows = sqlx::query_as!(
        DecisionRow,
        r#"
        SELECT d.decision, d.job, d.at, d.outcome, d.reason, d.policy, d.placement, d.explanation,
               n.name AS "node?",
               CASE WHEN json_array_length(d.placement -> 'steps') > 0
                    THEN g.report #> '{mig,On,geometry,profiles}' END AS profiles
          FROM decisions AS d
          LEFT JOIN gpus AS g ON g.gpu = d.placement ->> 'gpu'
          LEFT JOIN nodes AS n ON n.node = g.node
         WHERE d.decision = ANY ($1)
         ORDER BY d.decision DESC
        "#,
        ids,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("read decisions"))?;
    rows.into_iter().map(DecisionView::try_from).collect()
}

struct DecisionRow {
    decision: uuid::Uuid,
    job: i64,
    at: OffsetDateTime,
    outcome: String,
    reason: Option<String>,
    policy: String,
    placement: Option<Value>,
    explanation: Value,
    node: Option<String>,
    profiles: Option<Value>,
}

impl TryFrom<DecisionRow> for DecisionView {
    type Error = StoreError;

    fn try_from(row: DecisionRow) -> Result<Self, StoreError> {
        let id = DecisionId::from_uuid(row.decision);
        let at = RowRef::new(TABLE, id);
        let why: Explanation = serde_json::from_value(row.explanation)
            .map_err(at.corrupt::<serde_json::Error>("explanation"))?;
        let place: Option<JobPlacement> = row
            .placement
            .map(serde_json::from_value)
            .transpose()
            .map_err(at.corrupt::<serde_json::Error>("placement"))?;
        let names = profile_names(row.profiles);
        let steps = place.iter().flat_map(|place| &place.steps);
        Ok(Self {
            id: id.to_string(),
            at: row.at,
            job_id: at.number("job", row.job)?,
            outcome: row.outcome,
            reason: row.reason,
            policy: row.policy,
            summary: why.summary,
            would_start_if: why.would_start_if,
            node: row.node,
            steps: steps.map(|step| step_text(*step, &names)).collect(),
            gpu: place.map(|place| place.gpu.to_string()),
            candidates: why.candidates.into_iter().map(candidate_view).collect(),
            candidates_left_out: why.candidates_left_out,
        })
    }
}

const TABLE: &str = "decisions";

/// Shows a candidate as the API does.
pub(crate) fn candidate_view(candidate: PlacementCandidate) -> CandidateView {
    CandidateView {
        node: candidate.node.to_string(),
        gpu: candidate.gpu.to_string(),
        gpu_index: candidate.gpu_index,
        profile: candidate.profile,
        start_slice: candidate.start,
        memory_bytes: candidate.memory.get(),
        chosen: candidate.chosen,
        verdict: candidate.verdict,
        reachability_after: candidate.reachability_after,
    }
}

#[derive(Deserialize)]
struct NamedProfile {
    id: ProfileId,
    name: ProfileName,
}

/// Names that can't be read cost a step its name, not the decision its answer: the report may
/// be younger than the decision.
fn profile_names(profiles: Option<Value>) -> BTreeMap<ProfileId, ProfileName> {
    let profiles: Vec<NamedProfile> =
        profiles.and_then(|list| serde_json::from_value(list).ok()).unwrap_or_default();
    profiles.into_iter().map(|profile| (profile.id, profile.name)).collect()
}

fn step_text(step: PlanStep, names: &BTreeMap<ProfileId, ProfileName>) -> String {
    let (verb, slot) = match step {
        PlanStep::Destroy(slot) => ("destroy", slot),
        PlanStep::Create(slot) => ("create", slot),
        PlanStep::Cut(slot, _) => ("cut", slot),
    };
    match names.get(&slot.profile) {
        Some(name) => format!("{verb} {name}@{}", slot.start),
        None => format!("{verb} profile {}@{}", slot.profile.0, slot.start),
    }
}
