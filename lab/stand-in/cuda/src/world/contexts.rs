//! Contexts: a process's hold on a device.

use std::io;
use std::ptr;

use tessera_stand_in::client::{DeviceClient, DeviceClientError};
use tessera_stand_in::cuda::board::SharedDevice;
use tessera_stand_in::cuda::schedule::{ClientEntry, ClientId};
use tessera_stand_in::cuda::visible;
use tessera_stand_in::device::{ClaimKind, ClaimPlace};
use tessera_stand_in::mps::client::MpsError;
use tessera_stand_in::node::SimulatedNode;
use tessera_stand_in::process::ProcessIdentity;

use super::{CudaContext, CudaDevice, DriverState, LaneKind};
use crate::abi::{CallResult, CudaCode, H, to_native};
use crate::complaints::complain;
use crate::thread_state::current_id;

/// The upper half of contexts' handles. Their numbers are never reused.
const KIND: usize = 0x5c01;
const STEP: usize = 16;

/// Returns the handle of a context.
pub fn context_handle(id: u64) -> H {
    ptr::without_provenance_mut((KIND << 32) + to_native(id) * STEP)
}

/// Returns the number of a context by its handle, dead or alive.
pub fn context_id(handle: H) -> CallResult<u64> {
    let number = handle.addr().checked_sub(KIND << 32).filter(|number| number % STEP == 0);
    number.and_then(|number| u64::try_from(number / STEP).ok()).ok_or(CudaCode::INVALID_CONTEXT)
}

/// Returns the devices of a process on its node.
pub fn devices_of_process(node: &SimulatedNode) -> CallResult<Vec<CudaDevice>> {
    let state = node.read().map_err(|error| {
        complain(&error.to_string());
        CudaCode::UNKNOWN
    })?;
    let variable = std::env::var("CUDA_VISIBLE_DEVICES").ok();
    let seen = visible::devices(&state, variable.as_deref()).into_iter();
    Ok(seen
        .map(|visible| CudaDevice { visible, board: None, primary: None, primary_flags: 0 })
        .collect())
}

impl DriverState {
    /// Returns the thread's current context, if it is valid.
    pub fn current(&self) -> CallResult<u64> {
        let id = current_id().ok_or(CudaCode::INVALID_CONTEXT)?;
        let context = self.contexts.get(&id).ok_or(CudaCode::CONTEXT_IS_DESTROYED)?;
        context.sticky.map_or(Ok(id), Err)
    }

    /// Finds a context by its handle, or the current one for no handle.
    pub fn context_or_current(&self, handle: H) -> CallResult<u64> {
        if handle.is_null() {
            return self.current();
        }
        let id = context_id(handle)?;
        let context = self.contexts.get(&id).ok_or(CudaCode::INVALID_CONTEXT)?;
        context.sticky.map_or(Ok(id), Err)
    }

    /// Finds a context that exists.
    pub fn context(&self, id: u64) -> CallResult<&CudaContext> {
        self.contexts.get(&id).ok_or(CudaCode::CONTEXT_IS_DESTROYED)
    }

    /// Makes a context on a device.
    pub fn create_context(&mut self, ordinal: i32, flags: u32, now: u64) -> CallResult<u64> {
        let device = usize::try_from(ordinal).map_err(|_| CudaCode::INVALID_DEVICE)?;
        let visible = self.device(ordinal)?.visible.clone();
        let kind = if self.mps.is_some() { ClaimKind::MpsClient } else { ClaimKind::Compute };
        let node = self.node.as_ref().ok_or(CudaCode::NOT_INITIALIZED)?;
        let claim =
            DeviceClient::open_as(node, &visible.text, kind).map_err(|error| refused(&error))?;
        claim.allocate(self.context_bytes).map_err(|error| refused(&error))?;
        self.open_board(device, now)?;
        let entry = ClientEntry {
            process: ProcessIdentity::current().ok_or(CudaCode::UNKNOWN)?,
            server: self.mps.as_ref().map(|mps| mps.client.server()),
            cap: self.mps.as_ref().map_or(1_000, |mps| mps.cap),
        };
        let board = self.devices[device].board.as_mut().ok_or(CudaCode::UNKNOWN)?;
        let bury = |schedule: &mut tessera_stand_in::cuda::schedule::DeviceSchedule| {
            schedule.bury(ProcessIdentity::is_alive);
            schedule.enter(entry)
        };
        let client = board
            .update(now, |_| {}, bury)
            .map_err(|error| board_failed(&error))?
            .map_err(|_| CudaCode::DEVICE_UNAVAILABLE)?;
        let id = self.number();
        let legacy = self.add_lane(id, LaneKind::Legacy, 0, 0);
        let context = CudaContext {
            device,
            flags,
            sticky: None,
            client,
            claim,
            legacy,
            per_thread: std::collections::BTreeMap::new(),
            pushed: 0,
            load: (now, 0, 0),
        };
        self.contexts.insert(id, context);
        Ok(id)
    }

    fn open_board(&mut self, device: usize, now: u64) -> CallResult {
        if self.devices[device].board.is_some() {
            return Ok(());
        }
        let board = match (&self.node, self.virtual_time) {
            (Some(node), false) => {
                let name = match self.devices[device].visible.place {
                    ClaimPlace::Gpu(gpu) => format!("cuda-gpu{gpu}.board"),
                    ClaimPlace::Compute(serial) => format!("cuda-compute{}.board", serial.0),
                };
                SharedDevice::open(&node.folder().join(name), self.rules, now)
                    .map_err(|error| board_failed(&error))?
            }
            (Some(_) | None, _) => SharedDevice::private(self.rules, now),
        };
        self.devices[device].board = Some(board);
        Ok(())
    }

    /// Ends a context: what was under way ends with it.
    pub fn destroy_context(&mut self, id: u64, now: u64) -> CallResult {
        let context = self.contexts.remove(&id).ok_or(CudaCode::CONTEXT_IS_DESTROYED)?;
        self.leave_board(context.device, context.client, now);
        self.memory.free_context(id);
        let lanes = &mut self.lanes;
        self.streams.retain(|lane| lanes.get(lane).is_some_and(|lane| lane.context != id));
        lanes.retain(|_, lane| lane.context != id);
        self.hosts.retain(|host| lanes.contains_key(&host.lane));
        self.modules.retain(|module| module.context != id);
        self.functions.retain(|function| function.context != id);
        self.events.retain(|event| event.context != id);
        Ok(())
    }

    fn leave_board(&mut self, device: usize, client: ClientId, now: u64) {
        if let Some(board) = &mut self.devices[device].board {
            // If the file fails, the context still ends with the process.
            let _ = board.update(now, |_| {}, |schedule| schedule.leave(client));
        }
    }

    /// Counts device memory on a context.
    pub fn take_memory(&mut self, context: u64, bytes: u64) -> CallResult {
        if let Some(mps) = &mut self.mps {
            mps.client.allocate(bytes).map_err(|error| mps_code(&error))?;
        }
        let taken = self.context(context)?.claim.allocate(bytes);
        if let (Err(_), Some(mps)) = (&taken, &mut self.mps) {
            mps.client.free(bytes).map_err(|error| mps_code(&error))?;
        }
        taken.map_err(|error| refused(&error))
    }

    /// Returns device memory of a context.
    pub fn give_memory(&mut self, context: u64, bytes: u64) -> CallResult {
        if let Some(mps) = &mut self.mps {
            mps.client.free(bytes).map_err(|error| mps_code(&error))?;
        }
        self.context(context)?.claim.free(bytes).map_err(|error| refused(&error))
    }
}

pub fn board_failed(error: &io::Error) -> CudaCode {
    complain(&format!("the device's file can't be used: {error}"));
    CudaCode::UNKNOWN
}

fn refused(error: &DeviceClientError) -> CudaCode {
    match error {
        DeviceClientError::OutOfMemory(_) => CudaCode::OUT_OF_MEMORY,
        DeviceClientError::NoSlice { .. } | DeviceClientError::InMigMode { .. } => {
            CudaCode::DEVICE_UNAVAILABLE
        }
        DeviceClientError::NoProc | DeviceClientError::Node(_) => {
            complain(&error.to_string());
            CudaCode::UNKNOWN
        }
    }
}

/// Returns the driver's code for an MPS server's answer.
pub fn mps_code(error: &MpsError) -> CudaCode {
    match error {
        MpsError::NoDaemon(_) => CudaCode::MPS_CONNECTION_FAILED,
        MpsError::Gone(_) => CudaCode::MPS_RPC_FAILURE,
        MpsError::Refused(name) => match name.as_str() {
            "CUDA_ERROR_OUT_OF_MEMORY" => CudaCode::OUT_OF_MEMORY,
            "CUDA_ERROR_ILLEGAL_ADDRESS" => CudaCode::ILLEGAL_ADDRESS,
            "CUDA_ERROR_LAUNCH_FAILED" => CudaCode::LAUNCH_FAILED,
            "CUDA_ERROR_MPS_SERVER_NOT_READY" => CudaCode::MPS_SERVER_NOT_READY,
            "CUDA_ERROR_MPS_MAX_CLIENTS_REACHED" => CudaCode::MPS_MAX_CLIENTS_REACHED,
            "CUDA_ERROR_MPS_MAX_CONNECTIONS_REACHED" => CudaCode::MPS_MAX_CONNECTIONS_REACHED,
            "CUDA_ERROR_MPS_CLIENT_TERMINATED" => CudaCode::MPS_CLIENT_TERMINATED,
            "CUDA_ERROR_MPS_CONNECTION_FAILED" => CudaCode::MPS_CONNECTION_FAILED,
            _ => CudaCode::MPS_RPC_FAILURE,
        },
    }
}
