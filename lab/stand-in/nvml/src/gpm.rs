//! GPM: counters of activity for each GPU instance, on Hopper and newer.
//!
//! A sample holds how busy its instance was when it was taken: simulated clients state a load, and count nothing. Between
//! two samples the instance was as busy as in the later one.

use std::collections::BTreeMap;
use std::ffi::c_uint;
use std::sync::{Mutex, PoisonError};

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
};

use crate::abi::{NvmlCode, Opaque, OpaqueHandle, OutPointer};
use crate::session::{NvmlCall, nvml};

/// The version of both structures: a plain number.
const VERSION: c_uint = 1;

/// The first major compute capability with GPM: Hopper.
const HOPPER: u32 = 9;

/// `NVML_GPM_METRIC_SM_UTIL`: busy multiprocessors, in percent.
const SM_UTIL: c_uint = 2;

/// What samples hold, by number: nothing until they are taken, then the load in percent.
#[derive(Default)]
pub struct GpmSamples(Mutex<(u64, BTreeMap<u64, Option<u32>>)>);

nvml! {
    fn nvmlGpmQueryDeviceSupport(device: nvmlDevice_t, support: OutPointer<nvmlGpmSupport_t>) |call| {
        let gpu = call.gpu(device)?;
        if support.version()? != VERSION {
            return Err(NvmlCode::ARGUMENT_VERSION_MISMATCH);
        }
        support.set(nvmlGpmSupport_t {
            version: VERSION,
            isSupportedDevice: has_gpm(&call, gpu).into(),
        })
    }

    fn nvmlGpmSampleAlloc(sample: OutPointer<nvmlGpmSample_t>) |call| {
        if sample.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let number = call.session.samples.with(|samples| {
            samples.0 += 1;
            samples.1.insert(samples.0, None);
            samples.0
        });
        sample.set(nvmlGpmSample_t::of(OpaqueHandle::GpmSample(number)))
    }

    fn nvmlGpmSampleFree(sample: nvmlGpmSample_t) |call| {
        let number = number_of(sample)?;
        let freed = call.session.samples.with(|samples| samples.1.remove(&number));
        freed.map(drop).ok_or(NvmlCode::INVALID_ARGUMENT)
    }

    fn nvmlGpmMigSampleGet(
        device: nvmlDevice_t,
        instance: c_uint,
        sample: nvmlGpmSample_t,
    ) |call| {
        let gpu = call.gpu(device)?;
        if !has_gpm(&call, gpu) {
            return Err(NvmlCode::NOT_SUPPORTED);
        }
        let load = call.state.instance_load(gpu, instance).ok_or(NvmlCode::INVALID_ARGUMENT)?;
        let number = number_of(sample)?;
        call.session.samples.with(|samples| {
            let held = samples.1.get_mut(&number).ok_or(NvmlCode::INVALID_ARGUMENT)?;
            *held = Some(load);
            Ok(())
        })
    }

    fn nvmlGpmMetricsGet(metrics: OutPointer<nvmlGpmMetricsGet_t>) |call| {
        if metrics.version()? != VERSION {
            return Err(NvmlCode::ARGUMENT_VERSION_MISMATCH);
        }
        let mut answer = metrics.value()?;
        let taken = |sample| {
            let number = number_of(sample)?;
            let held = call.session.samples.with(|samples| samples.1.get(&number).copied());
            held.flatten().ok_or(NvmlCode::INVALID_ARGUMENT)
        };
        taken(answer.sample1)?;
        let load = taken(answer.sample2)?;
        let count = usize::try_from(answer.numMetrics).map_err(|_| NvmlCode::INVALID_ARGUMENT)?;
        let asked = answer.metrics.get_mut(..count).ok_or(NvmlCode::INVALID_ARGUMENT)?;
        for metric in asked {
            let is_known = metric.metricId == SM_UTIL;
            metric.nvmlReturn = if is_known { 0 } else { NvmlCode::NOT_SUPPORTED.0 };
            metric.value = if is_known { f64::from(load) } else { 0.0 };
        }
        metrics.set(answer)
    }
}

fn has_gpm(call: &NvmlCall, gpu: usize) -> bool {
    let capability = &call.gpu_state(gpu).model().compute_capability;
    let major = capability.split('.').next().and_then(|major| major.parse::<u32>().ok());
    major.is_some_and(|major| major >= HOPPER)
}

fn number_of(sample: nvmlGpmSample_t) -> Result<u64, NvmlCode> {
    match sample.handle()? {
        OpaqueHandle::GpmSample(number) => Ok(number),
        OpaqueHandle::Gpu(_)
        | OpaqueHandle::Mig(_)
        | OpaqueHandle::GpuInstance(_)
        | OpaqueHandle::ComputeInstance(_)
        | OpaqueHandle::EventSet(_) => Err(NvmlCode::INVALID_ARGUMENT),
    }
}

impl GpmSamples {
    fn with<T>(&self, change: impl FnOnce(&mut (u64, BTreeMap<u64, Option<u32>>)) -> T) -> T {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
