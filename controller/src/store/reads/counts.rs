//! How many jobs are in each state.

use std::collections::BTreeMap;

use sqlx::PgConnection;
use tessera_api_types::JobCounts;
use tessera_model::ids::BadId;
use tessera_model::life::JobState;

use crate::store::StoreError;
use crate::store::columns::{RowRef, row_count};

/// Counts the jobs by state; every state is named.
pub(super) async fn by_state(at: &mut PgConnection) -> Result<JobCounts, StoreError> {
    let rows = sqlx::query!(r#"SELECT state, count(*) AS "jobs!" FROM jobs GROUP BY state"#)
        .fetch_all(at)
        .await
        .map_err(StoreError::while_trying_to("count jobs"))?;
    let mut by_state: BTreeMap<String, u64> =
        JobState::ALL.iter().map(|state| (state.word().to_owned(), 0)).collect();
    let mut total = 0;
    for row in rows {
        let state: JobState =
            row.state.parse().map_err(RowRef::new("jobs", &row.state).corrupt::<BadId>("state"))?;
        let jobs = row_count(row.jobs);
        by_state.insert(state.word().to_owned(), jobs);
        total += jobs;
    }
    Ok(JobCounts { by_state, total })
}
