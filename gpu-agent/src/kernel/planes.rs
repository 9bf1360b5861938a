//! The planes of a node's GPUs. Each starts when the first attempt is admitted to its GPU.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use tessera_agent_core::kernel::Admission;
use tessera_model::{AttemptId, GpuId};

use super::errors::AdmitError;
use super::parts::PlaneShared;
use super::plane::GpuPlane;
use super::{KernelOrder, Token};

/// Most GPUs with kernel queues: no node has more.
const GPUS_MAX: usize = 16;

/// The planes of all GPUs of a node.
#[derive(Debug)]
pub struct GpuPlanes {
    shared: PlaneShared,
    running: Mutex<RunningPlanes>,
}

#[derive(Debug, Default)]
struct RunningPlanes {
    by_gpu: BTreeMap<GpuId, GpuPlane>,
    /// The GPU of each admitted attempt.
    attempts: BTreeMap<AttemptId, GpuId>,
    stopped: bool,
}

impl GpuPlanes {
    /// Returns the planes of a node, of which none runs yet.
    pub const fn new(shared: PlaneShared) -> Self {
        let running =
            RunningPlanes { by_gpu: BTreeMap::new(), attempts: BTreeMap::new(), stopped: false };
        Self { shared, running: Mutex::new(running) }
    }

    /// Returns what all planes share.
    pub const fn shared(&self) -> &PlaneShared {
        &self.shared
    }

    /// Admits an attempt to the plane of its GPU, which is started if necessary. Returns where its processes connect.
    ///
    /// # Errors
    ///
    /// [`AdmitError`].
    pub fn admit(&self, admission: Admission, token: Token) -> Result<SocketAddr, AdmitError> {
        let (attempt, gpu) = (admission.attempt, admission.gpu.clone());
        let mut running = self.lock();
        if running.stopped {
            return Err(AdmitError::Busy);
        }
        if !running.by_gpu.contains_key(&gpu) {
            if running.by_gpu.len() >= GPUS_MAX {
                return Err(AdmitError::TooManyGpus);
            }
            running.by_gpu.insert(gpu.clone(), GpuPlane::start(&gpu, &self.shared)?);
        }
        let plane = running.by_gpu.get(&gpu).ok_or(AdmitError::Busy)?;
        let address = plane.address;
        let order = KernelOrder::Admit { admission, token };
        plane.orders.try_send(order).map_err(|_| AdmitError::Busy)?;
        running.attempts.insert(attempt, gpu);
        Ok(address)
    }

    /// Ends an attempt at the plane that admitted it, however many orders wait there. Returns whether that plane
    /// still runs.
    pub fn end_attempt(&self, attempt: AttemptId) -> bool {
        let mut running = self.lock();
        let Some(gpu) = running.attempts.remove(&attempt) else { return true };
        let plane = running.by_gpu.get(&gpu);
        plane.is_none_or(|plane| plane.ends.send(attempt).is_ok())
    }

    /// Gives each plane an order, and returns how many did not accept it.
    pub fn order_all(&self, order: impl Fn() -> KernelOrder) -> usize {
        let running = self.lock();
        running.by_gpu.values().filter(|plane| plane.orders.try_send(order()).is_err()).count()
    }

    /// Gives the plane of one GPU an order. Returns whether it accepted it.
    pub fn order_one(&self, gpu: &GpuId, order: KernelOrder) -> bool {
        self.lock().by_gpu.get(gpu).is_some_and(|plane| plane.orders.try_send(order).is_ok())
    }

    /// Ends all planes, and waits for their threads.
    pub fn stop(&self) {
        let mut running = self.lock();
        running.stopped = true;
        let planes = std::mem::take(&mut running.by_gpu);
        drop(running);
        let threads: Vec<JoinHandle<()>> = planes.into_values().map(GpuPlane::stop).collect();
        for thread in threads {
            let _ = thread.join();
        }
    }

    fn lock(&self) -> MutexGuard<'_, RunningPlanes> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
