//! Kernel profiles and tallies that nodes report, apart from the rounds. None of it changes a job's
//! state, so it needs no leader and waits for no round.

use std::sync::Arc;

use tessera_frames::cluster::{
    KernelTally, PIECES_BYTES_MAX, PieceAssembly, ProfilePiece, ToAgent, pieces,
};
use tessera_kernel_queue::ProfileDelta;
use tessera_model::NodeId;
use tokio::sync::{Semaphore, mpsc};

use crate::store::{self, Pool, StoreError, kernel_profiles};

/// Maximum number of statements about kernels at once: a bound of their load on the database.
const AT_ONCE: usize = 2;
/// Maximum number of statements that wait; more reports are dropped, and the nodes send them again.
const WAITING_MAX: usize = 64;

/// Receives the frames about kernels of every node.
#[derive(Clone, Debug)]
pub struct KernelReports {
    pool: Pool,
    turn: Arc<Semaphore>,
    slots: Arc<Semaphore>,
}

/// Receives the frames about kernels of one node's connection.
#[derive(Debug)]
pub struct NodeKernelReports {
    reports: KernelReports,
    node: NodeId,
    outbox: mpsc::Sender<ToAgent>,
    assembly: PieceAssembly,
}

impl KernelReports {
    /// Writes through `pool`.
    pub fn new(pool: Pool) -> Self {
        let (turn, slots) = (Semaphore::new(AT_ONCE), Semaphore::new(WAITING_MAX));
        Self { pool, turn: Arc::new(turn), slots: Arc::new(slots) }
    }

    /// Opens the receiver of a node's connection.
    pub fn open_node(&self, node: NodeId, outbox: mpsc::Sender<ToAgent>) -> NodeKernelReports {
        NodeKernelReports {
            reports: self.clone(),
            node,
            outbox,
            assembly: PieceAssembly::default(),
        }
    }

    /// Runs a statement as soon as fewer than [`AT_ONCE`] others run.
    fn run_statement<F, W>(&self, work: W)
    where
        W: FnOnce(Pool) -> F + Send + 'static,
        F: Future<Output = Result<(), StoreError>> + Send,
    {
        let Ok(slots) = Arc::clone(&self.slots).try_acquire_owned() else {
            tracing::debug!(
                "too many reports of kernels at once: dropped, the node sends it again"
            );
            return;
        };
        let (pool, turn) = (self.pool.clone(), Arc::clone(&self.turn));
        tokio::spawn(async move {
            let Ok(_turn) = turn.acquire().await else { return };
            if let Err(error) = work(pool).await {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "kernel figures were not stored");
            }
            drop(slots);
        });
    }
}

impl NodeKernelReports {
    /// Receives a piece of a report. A complete report is added to its task's profile and acknowledged.
    pub fn receive_report(&mut self, number: u64, piece: ProfilePiece) {
        let Some((task, bytes)) = self.assembly.add(piece) else { return };
        let (node, outbox) = (self.node, self.outbox.clone());
        let Ok(learned) = serde_json::from_slice::<ProfileDelta>(&bytes) else {
            tracing::warn!(%node, task, "a report of kernels can't be read and is dropped");
            // Otherwise the node would send it forever.
            let _ = outbox.try_send(ToAgent::KernelReportAck { number });
            return;
        };
        self.reports.run_statement(move |pool| async move {
            let mut connection = store::acquire(&pool).await?;
            kernel_profiles::add_report(&mut connection, node, number, &task, &learned).await?;
            let _ = outbox.send(ToAgent::KernelReportAck { number }).await;
            Ok(())
        });
    }

    /// Sends the profile of a task to the node.
    pub fn send_profile(&self, task: String) {
        let outbox = self.outbox.clone();
        self.reports.run_statement(move |pool| async move {
            let mut connection = store::acquire(&pool).await?;
            let known = kernel_profiles::read_profile(&mut connection, &task).await?;
            drop(connection);
            let bytes = known.and_then(|known| serde_json::to_vec(&known).ok()).unwrap_or_default();
            if bytes.len() > PIECES_BYTES_MAX {
                tracing::warn!(
                    task,
                    bytes = bytes.len(),
                    "a kernel profile is too long to be sent"
                );
                return Ok(());
            }
            for piece in pieces(&task, &bytes) {
                if outbox.send(ToAgent::KernelProfile(piece)).await.is_err() {
                    break;
                }
            }
            Ok(())
        });
    }

    /// Stores the tallies of attempts.
    pub fn record_tallies(&self, batch: Vec<KernelTally>) {
        let node = self.node;
        self.reports.run_statement(move |pool| async move {
            let mut connection = store::acquire(&pool).await?;
            kernel_profiles::record_tallies(&mut connection, node, &batch).await
        });
    }
}
