//! The conversation about certificates with a connected node, and with a machine that joins.
//!
//! Each has its own stream, apart from the frames of work, so that neither waits for the other. Agents open streams
//! for calls of jobs' processes in the same way: the first frame distinguishes them.

use std::net::SocketAddr;
use std::time::Duration;

use tessera_frames::certificates::{CertificateAnswer, CertificateRequest};
use tessera_model::NodeIdentity;
use tessera_wire::kernel_identity::sha256;
use tessera_wire::link::{FrameReader, FrameWriter, LinkError};
use tessera_wire::tls::LeafFacts;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, sleep_until};

use crate::calls::Calls;
use crate::clock;
use crate::node_certificates::NodeCertificates;
use crate::process_metrics;

/// How long a machine that joined may take to read its certificate, and an agent to state what a stream is for.
const READ_WITHIN: Duration = Duration::from_secs(5);
/// How long to wait before a node's certificate is recorded again, after the database did not answer.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Conversations that begin at once: an agent has one.
const STREAMS_BEGUN_MAX: usize = 1;
/// Code with which the connection of a revoked node is closed.
const REVOKED: u32 = 3;
/// Code with which a connection is closed whose certificate has expired.
const EXPIRED: u32 = 4;
/// Longest sleep to a certificate's end: the wall clock may be set meanwhile.
const LOOK_EVERY: Duration = Duration::from_secs(3_600);

/// Serves a machine that joins: one request and its answer.
pub(crate) async fn join(connection: &quinn::Connection, certificates: &NodeCertificates) {
    let Ok((send, receive)) = connection.accept_bi().await else { return };
    let (mut writer, mut reader) = (FrameWriter::new(send), FrameReader::new(receive));
    let answer = match reader.receive::<CertificateRequest>().await {
        Ok(Some(CertificateRequest::Join { token, request })) => {
            certificates.join(&token, &request, connection.remote_address()).await
        }
        Ok(_) | Err(_) => {
            let reason = "a machine that joins sends its token first".to_owned();
            CertificateAnswer::Refused { reason }
        }
    };
    if writer.send(&answer).await.is_ok() {
        writer.finish();
        // The machine closes the connection once it has read the answer.
        let _ = tokio::time::timeout(READ_WITHIN, connection.closed()).await;
    }
    connection.close(0_u32.into(), b"");
}

/// Closes the connection of a revoked node.
pub(crate) fn close_revoked(connection: &quinn::Connection) {
    connection.close(REVOKED.into(), b"the node's certificate was revoked");
}

/// What a node reported about its certificates.
struct NodeTrust {
    authorities: [u8; 32],
    issuer: String,
}

/// One node's stream about certificates.
struct Stream {
    writer: FrameWriter,
    reader: FrameReader,
    /// What the node trusts, once it reported that.
    trust: Option<NodeTrust>,
    /// What it was sent last: nothing is sent twice.
    sent: Option<(String, String)>,
}

/// Looks after the certificate of a connected node until the connection ends: renews them, sends new
/// authorities, and closes the connection once the certificate is revoked or has expired.
pub(crate) async fn keep_certificate(
    connection: quinn::Connection,
    (node, leaf): (NodeIdentity, LeafFacts),
    certificates: NodeCertificates,
    calls: Calls,
) {
    let mut revisions = certificates.revisions();
    let mut newest = leaf.clone();
    let _shown = process_metrics::NodeExpiry::show(node.name.as_str(), newest.expires);
    while let Err(error) = certificates.record(&node, &leaf).await {
        tracing::warn!(%error, node = %node.name, "the node's certificate is not recorded yet");
        sleep(RETRY_AFTER).await;
    }
    let mut stream: Option<Stream> = None;
    let (opened, mut begun) = mpsc::channel(STREAMS_BEGUN_MAX);
    loop {
        if certificates.refuses(node.id, &leaf.serial) {
            tracing::warn!(node = %node.name, "disconnected: its certificate was revoked");
            return close_revoked(&connection);
        }
        let left = newest.expires - clock::unix_secs();
        let Some(left) = u64::try_from(left).ok().filter(|left| *left > 0) else {
            tracing::warn!(node = %node.name, "disconnected: its certificate has expired");
            return connection.close(EXPIRED.into(), b"the node's certificate has expired");
        };
        if let Some(open) = &mut stream
            && send_authorities(open, &certificates).await.is_err()
        {
            stream = None;
        }
        let look = Instant::now() + Duration::from_secs(left).min(LOOK_EVERY);
        tokio::select! {
            accepted = connection.accept_bi() => match accepted {
                Ok(streams) => {
                    let from = connection.remote_address();
                    tokio::spawn(begin(streams, (node.clone(), from), calls.clone(), opened.clone()));
                }
                Err(_) => return,
            },
            Some(new) = begun.recv() => stream = Some(new),
            // A missing sender means that the controller stops.
            changed = revisions.changed() => if changed.is_err() { return },
            request = next_request(&mut stream) => {
                let serial = newest.serial.clone();
                let (node, from) = ((&node, serial.as_str()), connection.remote_address());
                let renewed = answer(&mut stream, request, node, (&certificates, from)).await;
                if let Some(facts) = renewed {
                    process_metrics::NodeExpiry::update(node.0.name.as_str(), facts.expires);
                    newest = facts;
                }
            }
            () = sleep_until(look) => {}
        }
    }
}

/// Reads the first frame of a stream that an agent opened: a call is carried, and a conversation about certificates is
/// handed on.
async fn begin(
    (send, receive): (quinn::SendStream, quinn::RecvStream),
    (node, from): (NodeIdentity, SocketAddr),
    calls: Calls,
    opened: mpsc::Sender<Stream>,
) {
    let mut reader = FrameReader::new(receive);
    let first = tokio::time::timeout(READ_WITHIN, reader.receive::<CertificateRequest>()).await;
    match first {
        Ok(Ok(Some(CertificateRequest::Call { attempt }))) => {
            let streams = (send, reader.into_stream());
            if let Err(error) = calls.carry((&node, from), attempt, streams).await {
                tracing::debug!(node = %node.name, %error, "a call of a job broke");
            }
        }
        Ok(Ok(Some(CertificateRequest::Trusts { authorities, issuer }))) => {
            let writer = FrameWriter::new(send);
            let trust = Some(NodeTrust { authorities, issuer });
            // Fails only if the connection has ended.
            let _ = opened.send(Stream { writer, reader, trust, sent: None }).await;
        }
        Ok(_) | Err(_) => {}
    }
}

/// Waits for the node's next frame; without a stream it never comes. Safe to cancel.
async fn next_request(
    stream: &mut Option<Stream>,
) -> Result<Option<CertificateRequest>, LinkError> {
    match stream {
        Some(stream) => stream.reader.receive().await,
        None => std::future::pending().await,
    }
}

/// Answers a frame, and returns the certificate that was issued, if one was. A stream that can no
/// longer be used is dropped.
async fn answer(
    stream: &mut Option<Stream>,
    request: Result<Option<CertificateRequest>, LinkError>,
    node: (&NodeIdentity, &str),
    (certificates, from): (&NodeCertificates, std::net::SocketAddr),
) -> Option<LeafFacts> {
    let open = stream.as_mut()?;
    match request {
        Ok(Some(CertificateRequest::Trusts { authorities, issuer })) => {
            open.trust = Some(NodeTrust { authorities, issuer });
            None
        }
        Ok(Some(CertificateRequest::Renew { request })) => {
            let (answer, issued) = match certificates.renew(node, &request, from).await {
                Ok((answer, facts)) => (answer, Some(facts)),
                Err(refusal) => {
                    tracing::warn!(node = %node.0.name, %refusal, "certificate not renewed");
                    let reason = refusal.to_string();
                    (CertificateAnswer::Refused { reason }, None)
                }
            };
            if open.writer.send(&answer).await.is_err() {
                *stream = None;
            }
            issued
        }
        // A peer with a certificate has already joined, and calls have their own streams.
        Ok(Some(CertificateRequest::Join { .. } | CertificateRequest::Call { .. }) | None)
        | Err(_) => {
            *stream = None;
            None
        }
    }
}

/// Sends a node the authorities to trust, if it trusts others, or has a certificate of another one.
async fn send_authorities(
    stream: &mut Stream,
    certificates: &NodeCertificates,
) -> Result<(), LinkError> {
    let (Some(trust), Some((authorities, name))) = (&stream.trust, certificates.trusted()) else {
        return Ok(());
    };
    let (newest, renew) = ((authorities, name), |name: &str| trust.issuer != name);
    let differs = trust.authorities != sha256(newest.0.as_bytes()) || renew(&newest.1);
    if !differs || stream.sent.as_ref() == Some(&newest) {
        return Ok(());
    }
    let renew = renew(&newest.1);
    let authorities = newest.0.clone();
    stream.sent = Some(newest);
    stream.writer.send(&CertificateAnswer::Authorities { authorities, renew }).await
}
