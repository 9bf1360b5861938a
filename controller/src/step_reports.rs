//! Reports of steps on their way to the store.

use tokio::runtime::Handle;

use crate::store::steps::{self, ReportedStep};
use crate::store::{Pool, StoreError, acquire};

/// Where handlers record steps. Cheap to clone.
#[derive(Clone, Debug)]
pub struct StepReports {
    pool: Pool,
    runtime: Handle,
}

impl StepReports {
    /// Records through `pool`, whose connections are to live on `runtime`.
    pub const fn new(pool: Pool, runtime: Handle) -> Self {
        Self { pool, runtime }
    }

    /// Records a start or an end, and returns whether it was recorded.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unavailable`].
    pub async fn record(&self, step: ReportedStep) -> Result<bool, StoreError> {
        let pool = self.pool.clone();
        // In its own task: a request that is dropped leaves no statement half done.
        let task = self.runtime.spawn(async move {
            let mut at = acquire(&pool).await?;
            steps::record(&mut at, &step).await
        });
        task.await.unwrap_or_else(|_| Err(StoreError::stopping()))
    }
}
