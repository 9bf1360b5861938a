//! The node's handle of the endpoint: it admits attempts and returns the variables of their programs.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use rand::TryRngCore as _;
use tessera_frames::kernel::variables;
use tessera_kernel_queue::{TaskKey, TaskProfile};
use tessera_model::{AttemptId, GpuId, SliceId};
use tessera_wire::kernel_identity::to_hex;

use super::errors::AdmitError;
use super::planes::GpuPlanes;
use super::{KernelOrder, KernelSettings, SharedNumbers, Token, files, gate};
use tessera_agent_core::environment::with_first_path;
use tessera_agent_core::kernel::Admission;

/// The node's handle of the endpoint.
#[derive(Clone, Debug)]
pub struct EndpointHandle {
    pub(super) planes: Arc<GpuPlanes>,
}

impl EndpointHandle {
    /// Admits an attempt, and returns the variables with which its processes join.
    ///
    /// `environment_so_far` holds the program's other variables. Its library paths are extended.
    ///
    /// # Errors
    ///
    /// [`AdmitError`]: the attempt must not start in the kernel tier.
    pub fn admit(
        &self,
        admission: Admission,
        environment_so_far: &BTreeMap<String, String>,
    ) -> Result<Vec<(String, String)>, AdmitError> {
        let token = self.token_of(&admission)?;
        // The queue serves the page there once it has taken the admission.
        let gate = gate::path(&self.settings().gates, &admission.slice);
        let address = self.planes.admit(admission, token.clone())?;
        Ok(self.environment(address, &token, &gate, environment_so_far))
    }

    /// Admits the live attempts of an earlier agent again, and removes the others.
    ///
    /// Returns the admitted ones.
    pub fn adopt(&self, is_alive: impl Fn(AttemptId) -> bool) -> Vec<Admission> {
        let mut adopted = Vec::new();
        for (admission, token) in files::read_live_admissions(&self.settings().data, is_alive) {
            adopted.push(admission.clone());
            let attempt = admission.attempt;
            if let Err(error) = self.planes.admit(admission, token) {
                tracing::error!(%attempt, %error, "a running attempt loses its kernel queue");
            }
        }
        adopted
    }

    /// Ends the admission of an attempt that is over or will never run.
    pub fn end_attempt(&self, attempt: AttemptId) {
        files::remove_admission(&self.settings().data, attempt);
        if !self.planes.end_attempt(attempt) {
            tracing::error!(%attempt, "cannot notify the kernel queue of an attempt's end");
        }
    }

    /// Passes on the controller's profile of a task to the queues of all GPUs.
    pub fn share_profile(&self, task: &TaskKey, profile: &TaskProfile) {
        let learn =
            || KernelOrder::Learn { task: task.clone(), profile: Box::new(profile.clone()) };
        let refused = self.planes.order_all(learn);
        if refused > 0 {
            tracing::warn!(%task, refused, "cannot pass on a profile: the task is measured again");
        }
    }

    /// Ends the queue of a slice as a bug would, to measure what follows. Returns whether its GPU has a queue.
    pub fn fail_queue(&self, gpu: &GpuId, slice: SliceId) -> bool {
        self.planes.order_one(gpu, KernelOrder::Fail(slice))
    }

    /// Returns the shim's library.
    pub fn shim(&self) -> &Path {
        &self.settings().shim
    }

    /// Returns the shared numbers of the endpoint.
    pub fn numbers(&self) -> &SharedNumbers {
        &self.planes.shared().numbers
    }

    fn settings(&self) -> &KernelSettings {
        &self.planes.shared().settings
    }

    /// Returns the attempt's token, which an earlier start may have stored.
    fn token_of(&self, admission: &Admission) -> Result<Token, AdmitError> {
        if let Some((_, token)) = files::read_admission(&self.settings().data, admission.attempt) {
            return Ok(token);
        }
        let mut bytes = [0; 32];
        rand::rngs::OsRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
        let token = Token(bytes);
        files::write_admission(&self.settings().data, admission, &token)?;
        Ok(token)
    }

    fn environment(
        &self,
        address: SocketAddr,
        token: &Token,
        gate: &std::path::Path,
        environment_so_far: &BTreeMap<String, String>,
    ) -> Vec<(String, String)> {
        let shim = self.settings().shim.display().to_string();
        let folder = self.settings().shim.parent().map(|folder| folder.display().to_string());
        let put_first = |name: &str, own: &str| {
            (name.to_owned(), with_first_path(environment_so_far.get(name), own))
        };
        let mut all = vec![
            put_first("LD_PRELOAD", &shim),
            (variables::ENDPOINT.to_owned(), address.to_string()),
            (variables::TOKEN.to_owned(), to_hex(&token.0)),
            (
                variables::CERTIFICATE.to_owned(),
                to_hex(&self.planes.shared().identity.fingerprint().0),
            ),
        ];
        if let Some(folder) = folder {
            all.push(put_first("LD_LIBRARY_PATH", &folder));
        }
        all.push((variables::GATE.to_owned(), gate.display().to_string()));
        all
    }
}
