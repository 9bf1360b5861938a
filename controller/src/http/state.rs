//! What handlers share.

use std::sync::Arc;
use std::time::Duration;

use tessera_api_types::NodeDetails;
use tessera_model::spec::JobSpec;
use tessera_model::{JobId, JobRef};
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::{Mutex, MutexGuard, Semaphore, SemaphorePermit, mpsc, oneshot};
use tokio::time::timeout;

use super::change_log::ChangeLog;
use super::error::ApiError;
use super::limits::{Place, Places, Rates};
use super::watch::Watch;
use crate::ports::{Ports, Readiness, ToPlacer};
use crate::principal::Principal;
use crate::store::Reads;
use tessera_control::answers::{DeadlineForecast, WaitReasonRun, WaitingExplanation};

/// Timeout for what runs behind the handlers: longer than a commit that has to be retried, shorter
/// than a client's timeout.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Timeout for the reasons of waiting jobs: several rounds of a long queue.
const REASONS_WITHIN: Duration = Duration::from_millis(200);
/// Maximum number of live views of the cluster: each gets every move of every job.
const SUBSCRIBERS_MAX: usize = 1_024;
/// Maximum number of live views of one user.
const SUBSCRIBERS_EACH_MAX: usize = 32;
/// Maximum number of outputs that are read at once: each keeps a stream to a node open.
const LOGS_MAX: usize = 1_024;
/// Maximum number of outputs that one user reads at once.
const LOGS_EACH_MAX: usize = 256;
/// Maximum number of interactive sessions at once, and connections that are forwarded.
const SESSIONS_MAX: usize = 2_048;
/// Most of them of one user: people have a few, and a browser opens a dozen connections.
const SESSIONS_EACH_MAX: usize = 128;
/// Maximum number of requests that wait for an end at once.
const WAITS_MAX: usize = 4_096;
/// Maximum number of requests of one user that wait for an end at once.
const WAITS_EACH_MAX: usize = 1_024;
/// Maximum number of explanations that are computed at once: each keeps a core busy, and a copy of
/// the state of the cluster. Others wait.
const EXPLAINED_MAX: usize = 2;

/// What handlers share.
#[derive(Debug)]
pub(crate) struct State {
    pub(super) ports: Ports,
    pub(super) watch: Arc<Watch>,
    pub(super) change_log: Arc<ChangeLog>,
    pub(super) rates: Rates,
    subscribers: Arc<Places>,
    logs: Arc<Places>,
    waits: Arc<Places>,
    sessions: Arc<Places>,
    explaining: Semaphore,
    dependency_changes: Mutex<()>,
}

impl State {
    pub(super) fn new(ports: Ports) -> Self {
        Self {
            watch: Watch::over(&ports.job_changes, ports.reads.runtime()),
            change_log: ChangeLog::over(&ports.job_changes, ports.reads.runtime()),
            rates: Rates::default(),
            subscribers: Places::new(
                SUBSCRIBERS_MAX,
                SUBSCRIBERS_EACH_MAX,
                "too many live views are open",
            ),
            logs: Places::new(LOGS_MAX, LOGS_EACH_MAX, "too many job outputs are being read"),
            sessions: Places::new(
                SESSIONS_MAX,
                SESSIONS_EACH_MAX,
                "too many interactive sessions are open",
            ),
            waits: Places::new(WAITS_MAX, WAITS_EACH_MAX, "too many requests wait for jobs"),
            explaining: Semaphore::new(EXPLAINED_MAX),
            dependency_changes: Mutex::new(()),
            ports,
        }
    }

    pub(super) const fn reads(&self) -> &Reads {
        &self.ports.reads
    }

    /// Takes one of the places for live views.
    pub(super) fn subscribe(&self, caller: &Principal) -> Result<Place, ApiError> {
        self.subscribers.take(caller)
    }

    /// Takes one of the places for readers of outputs.
    pub(super) fn read_log(&self, caller: &Principal) -> Result<Place, ApiError> {
        self.logs.take(caller)
    }

    /// Takes one of the places for interactive sessions.
    pub(super) fn open_session(&self, caller: &Principal) -> Result<Place, ApiError> {
        self.sessions.take(caller)
    }

    /// Takes one of the places for requests that wait.
    pub(super) fn wait(&self, caller: &Principal) -> Result<Place, ApiError> {
        self.waits.take(caller)
    }

    /// Requests from the placer why a job waits; such questions are answered one after another.
    pub(super) async fn explain_wait(
        &self,
        job: JobId,
    ) -> Result<Option<WaitingExplanation>, ApiError> {
        let _turn = self.turn_to_explain().await?;
        self.query(|reply| ToPlacer::Explain { job, reply }).await
    }

    /// Forecasts the deadline of a job that was not accepted yet.
    pub(super) async fn forecast_deadline(
        &self,
        spec: Arc<JobSpec>,
    ) -> Result<Option<DeadlineForecast>, ApiError> {
        let _turn = self.turn_to_explain().await?;
        self.query(|reply| ToPlacer::ForecastDeadline { spec, reply }).await
    }

    /// Waits until no other request changes what a job waits for. Two changes at once could close a circle which
    /// neither of them sees. Only the leader takes changes, so a lock of this process is enough.
    pub(super) async fn turn_to_change_dependencies(&self) -> Result<MutexGuard<'_, ()>, ApiError> {
        let turn = timeout(ANSWER_WITHIN, self.dependency_changes.lock()).await;
        turn.map_err(|_| ApiError::Overloaded {
            reason: "too many changes of dependencies are being made",
        })
    }

    /// Waits until one more explanation may be computed: each takes many rounds of the policy.
    async fn turn_to_explain(&self) -> Result<SemaphorePermit<'_>, ApiError> {
        match timeout(ANSWER_WITHIN, self.explaining.acquire()).await {
            Ok(Ok(turn)) => Ok(turn),
            Ok(Err(_)) | Err(_) => {
                Err(ApiError::Overloaded { reason: "too many explanations are being computed" })
            }
        }
    }

    /// Sends the placer a question, and waits for its answer.
    pub(super) async fn query<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> ToPlacer,
    ) -> Result<T, ApiError> {
        send(&self.ports.placer, question).await.map_err(|error| self.explained(error))
    }

    /// Lists why jobs wait, from the leader's memory; `None` if that has no answer at once. The store has the same
    /// reasons, and takes longer with tens of thousands of jobs.
    pub(super) async fn wait_reasons(&self) -> Option<Vec<WaitReasonRun>> {
        let answer = self.query(|reply| ToPlacer::ListWaitReasons { reply });
        timeout(REASONS_WITHIN, answer).await.ok()?.ok()?.filter(|_| self.epoch() != 0)
    }

    /// Describes the nodes, by name.
    pub(super) async fn nodes(&self) -> Result<Vec<NodeDetails>, ApiError> {
        self.query(|reply| ToPlacer::DescribeNodes { reply }).await
    }

    /// Returns the leader's epoch; 0 while this controller doesn't serve.
    pub(super) fn epoch(&self) -> u64 {
        match *self.ports.readiness.borrow() {
            Readiness::Ready { epoch } => epoch,
            Readiness::NotReady { .. } => 0,
        }
    }

    /// Names what is really missing, where something behind the handlers gave no answer.
    pub(super) fn explained(&self, error: ApiError) -> ApiError {
        match (error, &*self.ports.readiness.borrow()) {
            (ApiError::Unavailable { .. }, Readiness::NotReady { reason }) => {
                ApiError::Unavailable { reason: reason.clone() }
            }
            (error, _) => error,
        }
    }
}

/// Sends a message that carries its own way back, and waits for the answer.
pub(super) async fn send<M, T>(
    mailbox: &mpsc::Sender<M>,
    message: impl FnOnce(oneshot::Sender<T>) -> M,
) -> Result<T, ApiError> {
    let (reply, answer) = oneshot::channel();
    mailbox.try_send(message(reply)).map_err(|refused| match refused {
        TrySendError::Full(_) => ApiError::Overloaded { reason: "too many requests are waiting" },
        TrySendError::Closed(_) => stopped(),
    })?;
    match timeout(ANSWER_WITHIN, answer).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(stopped()),
        Err(_) => Err(ApiError::Unavailable {
            reason: "no response in time: the request may still be carried out".to_owned(),
        }),
    }
}

fn stopped() -> ApiError {
    ApiError::Unavailable { reason: "the controller is starting or stopping".to_owned() }
}

/// Returns the error for a job that does not exist.
pub(super) fn no_job(job: JobRef) -> ApiError {
    ApiError::NotFound { what: format!("there is no job {job}") }
}
