//! Questions to nodes that change nothing, and the requests that wait for their answers.

use std::collections::HashMap;

use tessera_api_types as api;
use tessera_frames::cluster::Finding;
use tessera_model::NodeId;
use tokio::sync::oneshot;

/// Maximum number of questions that wait at a time; the oldest is given up for one more.
const WAITING_MAX: usize = 64;

/// Receives an answer; `None` if there will be none.
pub(super) type Reply = oneshot::Sender<Option<Vec<api::DoctorFinding>>>;

/// The questions that wait for answers.
#[derive(Debug, Default)]
pub(super) struct Questions {
    waiting: HashMap<u64, (NodeId, Reply)>,
    newest: u64,
}

impl Questions {
    /// Adds a question. Returns the token by which its answer is recognised.
    pub(super) fn add(&mut self, node: NodeId, reply: Reply) -> u64 {
        // Requesters may be gone.
        self.waiting.retain(|_, (_, reply)| !reply.is_closed());
        if self.waiting.len() >= WAITING_MAX
            && let Some(oldest) = self.waiting.keys().min().copied()
        {
            self.waiting.remove(&oldest);
        }
        self.newest += 1;
        self.waiting.insert(self.newest, (node, reply));
        self.newest
    }

    /// Forwards an answer, if the question went to this node.
    pub(super) fn answer(&mut self, node: NodeId, token: u64, findings: Vec<Finding>) {
        if self.waiting.get(&token).is_none_or(|(questioned, _)| *questioned != node) {
            return;
        }
        let Some((_, reply)) = self.waiting.remove(&token) else { return };
        let findings = findings.into_iter().map(|finding| api::DoctorFinding {
            check: finding.check,
            level: finding.level.as_str().to_owned(),
            gpu: finding.gpu,
            text: finding.text,
            remedy: finding.remedy,
        });
        // Fails if the requester is gone.
        let _ = reply.send(Some(findings.collect()));
    }

    /// A node went away: it answers nothing any more.
    pub(super) fn forget(&mut self, node: NodeId) {
        let gone: Vec<_> = self
            .waiting
            .iter()
            .filter(|(_, (questioned, _))| *questioned == node)
            .map(|(t, _)| *t)
            .collect();
        for token in gone {
            if let Some((_, reply)) = self.waiting.remove(&token) {
                let _ = reply.send(None);
            }
        }
    }
}
