//! Event sets: XID errors that the fault list raises.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{c_uint, c_ulonglong};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper_sys::bindings::{nvmlDevice_t, nvmlEventData_t, nvmlEventSet_t};
use tessera_stand_in::faults::{InjectedEvent, RaisedEvents};

use crate::abi::{NvmlCode, Opaque, OpaqueHandle, OutPointer};
use crate::session::{NvmlCall, complain, nvml};

/// How often a waiting set looks at the fault list: events need not be instant, only soon.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// What stands for "no instance" in an event.
const NO_INSTANCE: c_uint = c_uint::MAX;

/// `nvmlEventTypeXidCriticalError`, the only type of event that is ever raised.
const XID: c_ulonglong = 8;

/// The event sets of one session, by number.
#[derive(Default)]
pub struct EventSets(Mutex<(u64, BTreeMap<u64, EventSet>)>);

#[derive(Default)]
struct EventSet {
    gpus: BTreeSet<u32>,
    /// Lines that were delivered, or that were there before the GPU was registered.
    past: BTreeSet<String>,
}

nvml! {
    fn nvmlEventSetCreate(set: OutPointer<nvmlEventSet_t>) |call| {
        if set.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let number = call.session.events.with(|sets| {
            sets.0 += 1;
            sets.1.insert(sets.0, EventSet::default());
            sets.0
        });
        set.set(nvmlEventSet_t::of(OpaqueHandle::EventSet(number)))
    }

    fn nvmlDeviceGetSupportedEventTypes(device: nvmlDevice_t, types: OutPointer<c_ulonglong>) |call| {
        call.gpu(device)?;
        types.set(XID)
    }

    fn nvmlDeviceRegisterEvents(
        device: nvmlDevice_t,
        types: c_ulonglong,
        set: nvmlEventSet_t,
    ) |call| {
        let gpu = u32::try_from(call.gpu(device)?).map_err(|_| NvmlCode::UNKNOWN)?;
        if types & !XID != 0 {
            return Err(NvmlCode::NOT_SUPPORTED);
        }
        let raised = events(&call)?;
        call.session.events.change(set, |known| {
            known.gpus.insert(gpu);
            let past = raised.shared.into_iter().filter(|past| past.gpu == gpu);
            known.past.extend(past.map(|past| past.line));
        })
    }

    fn nvmlEventSetWait_v2(
        set: nvmlEventSet_t,
        data: OutPointer<nvmlEventData_t>,
        timeout_ms: c_uint,
    ) |call| {
        let deadline = Instant::now() + Duration::from_millis(timeout_ms.into());
        loop {
            if let Some((gpu, event)) = next_event(&call, set)? {
                return data.set(event_data(gpu, event));
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(NvmlCode::TIMEOUT);
            }
            thread::sleep(left.min(LOOK_EVERY));
        }
    }

    fn nvmlEventSetFree(set: nvmlEventSet_t) |call| {
        let OpaqueHandle::EventSet(number) = set.handle()? else { return Err(NvmlCode::INVALID_ARGUMENT) };
        let removed = call.session.events.with(|sets| sets.1.remove(&number));
        removed.map(drop).ok_or(NvmlCode::INVALID_ARGUMENT)
    }
}

/// Takes the next event of a set's GPUs.
fn next_event(
    call: &NvmlCall,
    set: nvmlEventSet_t,
) -> Result<Option<(usize, InjectedEvent)>, NvmlCode> {
    let gpus = call.session.events.change(set, |known| known.gpus.clone())?;
    for gpu in gpus {
        // As documented: a GPU that is lost ends the wait.
        let lost = call.session.injector.is_lost(gpu);
        if lost.map_err(|error| complain(&error, NvmlCode::UNKNOWN))? {
            return Err(NvmlCode::GPU_IS_LOST);
        }
    }
    let RaisedEvents { own, shared } = events(call)?;
    let raised: Vec<_> = own.into_iter().chain(shared).collect();
    call.session.events.change(set, |known| {
        known.past.retain(|line| raised.iter().any(|raised| raised.line == *line));
        let next = raised.into_iter().find(|raised| {
            known.gpus.contains(&raised.gpu) && !known.past.contains(&raised.line)
        })?;
        known.past.insert(next.line);
        Some((usize::try_from(next.gpu).ok()?, next.event))
    })
}

fn event_data(gpu: usize, event: InjectedEvent) -> nvmlEventData_t {
    nvmlEventData_t {
        device: nvmlDevice_t::of(OpaqueHandle::Gpu(gpu)),
        eventType: XID,
        eventData: event.xid.into(),
        gpuInstanceId: event.gpu_instance.unwrap_or(NO_INSTANCE),
        computeInstanceId: event.compute_instance.unwrap_or(NO_INSTANCE),
    }
}

fn events(call: &NvmlCall) -> Result<RaisedEvents, NvmlCode> {
    call.session.injector.events().map_err(|error| complain(&error, NvmlCode::UNKNOWN))
}

impl EventSets {
    fn with<T>(&self, change: impl FnOnce(&mut (u64, BTreeMap<u64, EventSet>)) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn change<T>(
        &self,
        set: nvmlEventSet_t,
        change: impl FnOnce(&mut EventSet) -> T,
    ) -> Result<T, NvmlCode> {
        let OpaqueHandle::EventSet(number) = set.handle()? else {
            return Err(NvmlCode::INVALID_ARGUMENT);
        };
        self.with(|sets| sets.1.get_mut(&number).map(change)).ok_or(NvmlCode::INVALID_ARGUMENT)
    }
}
