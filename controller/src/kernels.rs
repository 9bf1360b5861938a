//! What nodes say of kernels, beside the rounds: profiles come in and go out, tallies are kept.
//! None of it moves a job, so that no leader is needed for it, and none of it waits for a round.

use std::sync::Arc;

use tessera_kernel_queue::Learned;
use tessera_model::NodeId;
use tessera_wire::ToAgent;
use tessera_wire::frames::{Assembly, KernelTally, PIECES_BYTES_MAX, Piece, pieces};
use tokio::sync::{Semaphore, mpsc};

use crate::store::{self, Pool, StoreError, kernels};

/// Statements about kernels at once: they never take more of the database than this.
const AT_ONCE: usize = 2;
/// Statements that may wait; beyond, what comes is dropped and comes again.
const WAITING_MAX: usize = 64;

/// Where frames about kernels are taken in.
#[derive(Clone, Debug)]
pub struct KernelBook {
    pool: Pool,
    turn: Arc<Semaphore>,
    room: Arc<Semaphore>,
}

/// One node's side of it.
#[derive(Debug)]
pub struct KernelDesk {
    book: KernelBook,
    node: NodeId,
    outbox: mpsc::Sender<ToAgent>,
    assembly: Assembly,
}

impl KernelBook {
    /// Takes the database in.
    pub fn new(pool: Pool) -> Self {
        let (turn, room) = (Semaphore::new(AT_ONCE), Semaphore::new(WAITING_MAX));
        Self { pool, turn: Arc::new(turn), room: Arc::new(room) }
    }

    /// Opens a node's side, for one connection.
    pub fn desk(&self, node: NodeId, outbox: mpsc::Sender<ToAgent>) -> KernelDesk {
        KernelDesk { book: self.clone(), node, outbox, assembly: Assembly::default() }
    }

    /// Has a statement run when its turn comes.
    fn run<F, W>(&self, work: W)
    where
        W: FnOnce(Pool) -> F + Send + 'static,
        F: Future<Output = Result<(), StoreError>> + Send,
    {
        let Ok(room) = Arc::clone(&self.room).try_acquire_owned() else {
            tracing::debug!("too much is said of kernels at once: it comes again");
            return;
        };
        let (pool, turn) = (self.pool.clone(), Arc::clone(&self.turn));
        tokio::spawn(async move {
            let Ok(_turn) = turn.acquire().await else { return };
            if let Err(error) = work(pool).await {
                let cause = std::error::Error::source(&error).map(ToString::to_string);
                tracing::warn!(%error, cause, "kernel figures not kept");
            }
            drop(room);
        });
    }
}

impl KernelDesk {
    /// Takes a piece of a report in; the whole is added to what is known and acknowledged.
    pub fn report(&mut self, number: u64, piece: Piece) {
        let Some((task, bytes)) = self.assembly.add(piece) else { return };
        let (node, outbox) = (self.node, self.outbox.clone());
        let Ok(learned) = serde_json::from_slice::<Learned>(&bytes) else {
            tracing::warn!(%node, task, "a report of kernels can't be read and is dropped");
            // It would come for ever.
            let _ = outbox.try_send(ToAgent::KernelReportAck { number });
            return;
        };
        self.book.run(move |pool| async move {
            let mut connection = store::acquire(&pool).await?;
            kernels::learn(&mut connection, node, number, &task, &learned).await?;
            let _ = outbox.send(ToAgent::KernelReportAck { number }).await;
            Ok(())
        });
    }

    /// Answers with what is known of a task.
    pub fn wanted(&self, task: String) {
        let outbox = self.outbox.clone();
        self.book.run(move |pool| async move {
            let mut connection = store::acquire(&pool).await?;
            let known = kernels::profile(&mut connection, &task).await?;
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

    /// Keeps what attempts did.
    pub fn tallies(&self, batch: Vec<KernelTally>) {
        let node = self.node;
        self.book.run(move |pool| async move {
            let mut connection = store::acquire(&pool).await?;
            kernels::record(&mut connection, node, &batch).await
        });
    }
}
