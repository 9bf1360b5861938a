//! The node's way to the endpoint: admits attempts, and says what their programs need.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use rand::TryRngCore as _;
use tessera_model::AttemptId;
use tessera_wire::kernel::identity::{Fingerprint, to_hex};
use tessera_wire::kernel::variables;
use tokio::sync::mpsc;

use super::{Board, KernelOrder, KernelSettings, Token, files, gate};
use crate::core::kernel::Admission;

/// Why an attempt can't join its slice's queue.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// Its token can't be made or written down.
    #[error("the attempt's token can't be kept: {0}")]
    Token(#[from] io::Error),
    /// The endpoint's thread doesn't keep up, or is gone.
    #[error("the kernel queue takes no orders")]
    Busy,
}

/// Where the node talks to the endpoint.
#[derive(Clone, Debug)]
pub struct Desk {
    pub(super) settings: KernelSettings,
    pub(super) address: SocketAddr,
    pub(super) fingerprint: Fingerprint,
    pub(super) orders: mpsc::Sender<KernelOrder>,
    pub(super) board: Board,
}

impl Desk {
    /// Lets an attempt's processes join, and returns the variables that make them do so.
    /// `found` are the program's variables so far: those that name libraries are added to.
    ///
    /// # Errors
    ///
    /// [`Refused`]: the attempt must not start as one of the kernel tier.
    pub fn admit(
        &self,
        admission: Admission,
        found: &BTreeMap<String, String>,
    ) -> Result<Vec<(String, String)>, Refused> {
        let token = self.token(&admission)?;
        let gate = match gate::make(&self.settings.gates, &admission.slice) {
            Ok(path) => Some(path),
            Err(error) => {
                tracing::warn!(%error, "no gate page: early stops go by messages");
                None
            }
        };
        let environment = self.environment(&token, gate, found);
        let order = KernelOrder::Admit { admission, token };
        self.orders.try_send(order).map_err(|_| Refused::Busy)?;
        Ok(environment)
    }

    /// Lets what an earlier agent admitted join again; forgets those that `is_alive` denies.
    ///
    /// Returns those that may join.
    pub fn adopt(&self, is_alive: impl Fn(AttemptId) -> bool) -> Vec<Admission> {
        let mut adopted = Vec::new();
        for (admission, token) in files::adopt(&self.settings.data, is_alive) {
            adopted.push(admission.clone());
            // There is room for as many as there are attempts.
            let _ = self.orders.try_send(KernelOrder::Admit { admission, token });
        }
        adopted
    }

    /// Tells that an attempt is over, or will never run.
    pub fn ended(&self, attempt: AttemptId) {
        files::forget(&self.settings.data, attempt);
        if let Err(refused) = self.orders.try_send(KernelOrder::Ended(attempt)) {
            tracing::error!(%attempt, %refused, "the kernel queue was not told of an end");
        }
    }

    /// Hands on what is known of a task elsewhere.
    pub fn learn(&self, order: KernelOrder) {
        if let Err(refused) = self.orders.try_send(order) {
            tracing::warn!(%refused, "a profile was not handed on: the task is measured");
        }
    }

    /// Returns where the endpoint's numbers are.
    pub const fn board(&self) -> &Board {
        &self.board
    }

    /// Returns the attempt's token: the one it has, if an earlier start got so far.
    fn token(&self, admission: &Admission) -> Result<Token, Refused> {
        if let Some((_, token)) = files::kept(&self.settings.data, admission.attempt) {
            return Ok(token);
        }
        let mut bytes = [0; 32];
        rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
        let token = Token(bytes);
        files::keep(&self.settings.data, admission, &token)?;
        Ok(token)
    }

    fn environment(
        &self,
        token: &Token,
        gate: Option<std::path::PathBuf>,
        found: &BTreeMap<String, String>,
    ) -> Vec<(String, String)> {
        let shim = self.settings.shim.display().to_string();
        let folder = self.settings.shim.parent().map(|folder| folder.display().to_string());
        let before = |name: &str, own: String, separator: &str| {
            let value = match found.get(name).filter(|value| !value.is_empty()) {
                Some(others) => format!("{own}{separator}{others}"),
                None => own,
            };
            (name.to_owned(), value)
        };
        let mut all = vec![
            before("LD_PRELOAD", shim, ":"),
            (variables::ENDPOINT.to_owned(), self.address.to_string()),
            (variables::TOKEN.to_owned(), to_hex(&token.0)),
            (variables::CERTIFICATE.to_owned(), to_hex(&self.fingerprint.0)),
        ];
        if let Some(folder) = folder {
            all.push(before("LD_LIBRARY_PATH", folder, ":"));
        }
        if let Some(gate) = gate {
            all.push((variables::GATE.to_owned(), gate.display().to_string()));
        }
        all
    }
}
