//! The agents' connections: accepts them, reads their frames, writes ours.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::Addr;
use tessera_frames::cluster::{Hello, ToAgent, ToController};
use tessera_model::{ControllerId, NodeId, NodeIdentity, NodeName};
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};
use tessera_wire::receipt::ReceiptKey;
use tessera_wire::tls::{self, LeafFacts, TlsError};
use tokio::sync::mpsc;

use super::agent_link::{AgentLink, LinkClosed, LinkFrames, LinkOpened, LinkRenews};
use super::intake::Chain;
use super::placer::Placer;
use crate::calls::Calls;
use crate::certificate_streams;
use crate::connections::{ConnectionCaps, SourceKey};
use crate::figures::FigureCache;
use crate::kernel_reports::{KernelReports, NodeKernelReports};
use crate::node_certificates::NodeCertificates;
use crate::process_metrics::{self, Listener};

/// How long a peer may take to complete the handshake and send its hello.
const HELLO_DEADLINE: Duration = Duration::from_secs(10);
/// Maximum number of connections of nodes in all: many times the nodes of a cluster.
const LINKS_MAX: usize = 4_096;
/// Maximum number of connections of one node: those before the last one end within the time that
/// silence may last.
const LINKS_EACH_MAX: usize = 8;
/// Maximum number of peers in total that are in the handshake or have not sent their hello. Others
/// are refused, and try again.
const GREETINGS_MAX: usize = 256;
/// Maximum number of such peers at one address: nodes behind it connect one after another.
const GREETINGS_EACH_MAX: usize = 64;
/// Frames on their way to one agent: a full queue means that the agent is stuck, and its
/// connection is given up.
const OUTBOX_MAX: usize = 4_096;
/// Frames that are handed to the placer at once.
const INBOX_BATCH_MAX: usize = 256;
/// What this controller gave nodes, and what they bring back.
#[derive(Debug)]
pub struct NodeReceipts {
    /// This controller.
    pub controller: ControllerId,
    /// What the node proves its receipts with.
    pub key: ReceiptKey,
}

impl NodeReceipts {
    /// Takes a receipt out of a hello that it doesn't prove.
    fn check(&self, node: NodeId, hello: &mut Hello) {
        let (generation, epoch) = (hello.generation, hello.highest_epoch);
        if !self.key.proves(&hello.receipt, self.controller, node, generation, epoch) {
            hello.receipt.clear();
        }
    }

    /// Signs what a welcome gives.
    fn sign(&self, node: NodeId, frame: &mut ToAgent) {
        if let ToAgent::Welcome(welcome) = frame {
            let (generation, epoch) = (welcome.generation, welcome.epoch);
            welcome.receipt = self.key.sign(self.controller, node, generation, epoch);
        }
    }
}

/// What the agents' connections work with.
#[derive(Clone, Debug)]
pub struct LinkParts {
    /// What was given to nodes.
    pub receipts: Arc<NodeReceipts>,
    /// Nodes' certificates.
    pub certificates: NodeCertificates,
    /// The newest measurements of GPUs.
    pub figures: FigureCache,
    /// What nodes report of kernels.
    pub kernels: KernelReports,
    /// Calls of jobs' processes.
    pub calls: Calls,
}

/// Accepts agents and machines that join until the endpoint is closed.
pub async fn serve(endpoint: quinn::Endpoint, placer: Addr<Placer>, parts: LinkParts) {
    static SESSIONS: AtomicU64 = AtomicU64::new(1);
    let greetings = ConnectionCaps::new(GREETINGS_MAX, GREETINGS_EACH_MAX);
    let links = ConnectionCaps::new(LINKS_MAX, LINKS_EACH_MAX);
    while let Some(incoming) = endpoint.accept().await {
        if !incoming.remote_address_validated() {
            // A peer that does not get this answer has forged its address: nothing is kept of it. Where no
            // retry is possible, the handshake is refused.
            if let Err(unsent) = incoming.retry() {
                unsent.into_incoming().refuse();
            }
            continue;
        }
        let Some(greeted) = greetings.admit(SourceKey::from(incoming.remote_address())) else {
            process_metrics::count_refused_connection(Listener::Agents);
            incoming.refuse();
            continue;
        };
        let (placer, parts, links) = (placer.clone(), parts.clone(), links.clone());
        let session = SESSIONS.fetch_add(1, Ordering::Relaxed);
        tokio::spawn(async move {
            let from = incoming.remote_address();
            let greeting = tokio::time::timeout(
                HELLO_DEADLINE,
                Box::pin(receive_greeting(incoming, &parts.certificates)),
            )
            .await;
            drop(greeted);
            match greeting {
                Ok(Ok(Some(greeting))) => match links.admit(greeting.peer.id) {
                    Some(_counted) => exchange_frames(session, greeting, placer, parts).await,
                    None => {
                        process_metrics::count_refused_connection(Listener::Agents);
                        greeting.connection.close(3_u32.into(), b"too many connections");
                    }
                },
                Ok(Ok(None)) => tracing::debug!(%from, "a machine requested to join"),
                Ok(Err(problem)) => {
                    tracing::warn!(%from, problem = %Chain(&problem), "agent refused");
                }
                Err(_) => tracing::warn!(%from, "agent did not send its hello in time"),
            }
        });
    }
}

struct Greeting {
    connection: quinn::Connection,
    peer: NodeIdentity,
    leaf: LeafFacts,
    hello: Box<Hello>,
    writer: FrameWriter,
    reader: FrameReader,
}

/// Why an agent's connection is refused.
#[derive(Debug, thiserror::Error)]
enum GreetingError {
    #[error("the connection failed")]
    Connection(#[from] quinn::ConnectionError),
    #[error("the peer's certificate is not that of a node")]
    Certificate(#[source] TlsError),
    #[error("the certificate of {name} was revoked")]
    Revoked { name: NodeName },
    #[error("the hello could not be read")]
    Hello(#[source] LinkError),
    #[error("{name} did not send a hello first")]
    NoHello { name: NodeName },
}

/// Completes the handshake with a peer. A machine that joins is served here, and nothing more is to
/// be done then.
async fn receive_greeting(
    incoming: quinn::Incoming,
    certificates: &NodeCertificates,
) -> Result<Option<Greeting>, GreetingError> {
    let connection = incoming.await?;
    if tls::peer_joins(&connection) {
        certificate_streams::join(&connection, certificates).await;
        return Ok(None);
    }
    let peer = tls::peer_node(&connection).map_err(GreetingError::Certificate)?;
    let leaf = tls::peer_leaf(&connection).map_err(GreetingError::Certificate)?;
    // Before any frame is read.
    if certificates.refuses(peer.id, &leaf.serial) {
        certificate_streams::close_revoked(&connection);
        return Err(GreetingError::Revoked { name: peer.name });
    }
    let (send, receive) = connection.accept_bi().await?;
    let mut reader = FrameReader::new(receive);
    match reader.receive().await.map_err(GreetingError::Hello)? {
        Some(ToController::Hello(hello)) => Ok(Some(Greeting {
            connection,
            peer,
            leaf,
            hello: Box::new(hello),
            writer: FrameWriter::new(send),
            reader,
        })),
        _ => Err(GreetingError::NoHello { name: peer.name }),
    }
}

async fn exchange_frames(session: u64, greeting: Greeting, placer: Addr<Placer>, parts: LinkParts) {
    let LinkParts { receipts, certificates, figures, kernels, calls } = parts;
    let Greeting { connection, peer, leaf, mut hello, writer, reader } = greeting;
    let node = peer.id;
    receipts.check(node, &mut hello);
    let name = peer.name.clone();
    let (outbox, orders) = mpsc::channel(OUTBOX_MAX);
    let attending = tokio::spawn(certificate_streams::keep_certificate(
        connection.clone(),
        (peer.clone(), leaf),
        certificates,
        calls,
    ));
    let link = AgentLink::new(outbox.clone(), connection.clone());
    if placer.send(LinkOpened { session, peer, hello, link }).await.is_err() {
        attending.abort();
        return;
    }
    let writing = tokio::spawn(write_all(writer, orders, connection.clone(), (node, receipts)));
    let inbox = AgentInbox { session, node, name: &name, placer: &placer, figures: &figures };
    let kernels = kernels.open_node(node, outbox.clone());
    let ended = inbox.read_all(reader, &outbox, kernels).await;
    tracing::info!(node = %name, reason = ended, "agent disconnected");
    connection.close(0_u32.into(), b"");
    writing.abort();
    attending.abort();
    // The placer is gone only if the process is ending.
    let _ = placer.send(LinkClosed { session, node }).await;
}

/// Reads the frames of one agent.
struct AgentInbox<'d> {
    session: u64,
    node: NodeId,
    name: &'d NodeName,
    placer: &'d Addr<Placer>,
    figures: &'d FigureCache,
}

impl AgentInbox<'_> {
    /// Reads until the connection ends, and returns why it did.
    async fn read_all(
        &self,
        mut reader: FrameReader,
        outbox: &mpsc::Sender<ToAgent>,
        mut kernels: NodeKernelReports,
    ) -> String {
        let Self { session, node, .. } = *self;
        loop {
            let first = match reader.receive::<ToController>().await {
                Ok(Some(frame)) => frame,
                Ok(None) => return "it closed the connection".to_owned(),
                Err(error) => return Chain(&error).to_string(),
            };
            let mut frames = Vec::new();
            let mut next = Some(first);
            while let Some(frame) = next {
                match frame {
                    ToController::Renew { sent, generation } => {
                        let renewal = LinkRenews { session, node, sent, generation };
                        if let Ok(Some(grant)) = self.placer.send(renewal).await
                            && outbox.send(grant).await.is_err()
                        {
                            return "its outbox is closed".to_owned();
                        }
                    }
                    ToController::Figures(figures) => self.figures.show(self.name, *figures),
                    ToController::KernelReport { number, piece } => {
                        kernels.receive_report(number, piece);
                    }
                    ToController::KernelWanted { task } => kernels.send_profile(task),
                    ToController::KernelTallies(batch) => kernels.record_tallies(batch),
                    frame => frames.push(frame),
                }
                if frames.len() >= INBOX_BATCH_MAX {
                    break;
                }
                next = match reader.take_buffered() {
                    Ok(frame) => frame,
                    Err(error) => return error.to_string(),
                };
            }
            let received = LinkFrames { session, node, frames };
            if !received.frames.is_empty() && self.placer.send(received).await.is_err() {
                return "the controller stops".to_owned();
            }
        }
    }
}

async fn write_all(
    mut writer: FrameWriter,
    mut orders: mpsc::Receiver<ToAgent>,
    connection: quinn::Connection,
    (node, receipts): (NodeId, Arc<NodeReceipts>),
) {
    while let Some(mut first) = orders.recv().await {
        receipts.sign(node, &mut first);
        let mut last = matches!(first, ToAgent::Refused { .. });
        let mut queued = writer.queue(&first);
        // Whatever waits already goes out in the same write.
        while queued.is_ok()
            && !last
            && let Ok(mut order) = orders.try_recv()
        {
            receipts.sign(node, &mut order);
            last = matches!(order, ToAgent::Refused { .. });
            queued = writer.queue(&order);
        }
        let sent = match queued {
            Ok(()) => writer.flush().await,
            Err(error) => Err(error),
        };
        if let Err(error) = sent {
            tracing::debug!(%error, "frames were not sent");
            return;
        }
        if last {
            writer.finish();
            // Gives the refusal time to arrive before the connection is torn down.
            tokio::time::sleep(Duration::from_millis(200)).await;
            connection.close(2_u32.into(), b"refused");
            return;
        }
    }
}
