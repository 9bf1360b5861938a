//! GPM: the driver's counters of activity, also for each GPU instance. Hopper and newer GPUs have them.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    NvmlLib, nvmlDevice_t, nvmlGpmMetric_t, nvmlGpmMetricsGet_t, nvmlGpmSample_t, nvmlGpmSupport_t,
};

use super::{FUNCTION_NOT_FOUND, NvmlLibrary, SUCCESS, filled};
use tessera_agent_core::nvml::error::NvmlCallError;

/// `NVML_GPM_SUPPORT_VERSION` and `NVML_GPM_METRICS_GET_VERSION`: plain numbers, unlike other versions.
const VERSION: c_uint = 1;
/// `NVML_GPM_METRIC_SM_UTIL`: the part of the multiprocessors that were busy, in percent.
const SM_UTIL: c_uint = 2;

/// A sample of the driver's counters. The driver owns what it points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CounterSample(nvmlGpmSample_t);

impl NvmlLibrary {
    /// Returns whether a GPU has counters of activity.
    pub fn has_counters(&self, device: nvmlDevice_t) -> bool {
        let support = filled(|place: *mut nvmlGpmSupport_t| {
            // SAFETY: `filled` passes a valid place.
            unsafe { (*place).version = VERSION };
            call!(self.nvmlGpmQueryDeviceSupport(device, place))
        });
        support.is_ok_and(|support| support.isSupportedDevice != 0)
    }

    /// Allocates a sample; [`Self::free_counters`] frees it.
    pub fn new_counters(&self) -> Result<CounterSample, NvmlCallError> {
        filled(|place| call!(self.nvmlGpmSampleAlloc(place))).map(CounterSample)
    }

    /// Takes a sample of one GPU instance, by the driver's number.
    pub fn sample_counters(
        &self,
        device: nvmlDevice_t,
        instance: u32,
        into: CounterSample,
    ) -> Result<(), NvmlCallError> {
        call!(self.nvmlGpmMigSampleGet(device, instance, into.0))
    }

    /// Returns how many of the multiprocessors were busy between two samples of an instance, in thousandths of the instance's;
    /// `None` if the driver does not report it.
    pub fn busy_between(&self, earlier: CounterSample, later: CounterSample) -> Option<u16> {
        let metrics = filled(|place: *mut nvmlGpmMetricsGet_t| {
            // SAFETY: `filled` passes a valid place, all zeroes.
            unsafe {
                (*place).version = VERSION;
                (*place).numMetrics = 1;
                (*place).sample1 = earlier.0;
                (*place).sample2 = later.0;
                (*place).metrics[0].metricId = SM_UTIL;
            }
            call!(self.nvmlGpmMetricsGet(place))
        });
        let nvmlGpmMetric_t { nvmlReturn, value, .. } = metrics.ok()?.metrics[0];
        (nvmlReturn == SUCCESS).then(|| thousandths(value)).flatten()
    }

    /// Frees a sample.
    pub fn free_counters(&self, sample: CounterSample) {
        // A refusal can't be handled: the memory is freed when the worker process ends.
        let _ = call!(self.nvmlGpmSampleFree(sample.0));
    }
}

/// Returns a percentage in thousandths; `None` if it is no number. Only zero is zero: a job that does little is not idle.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "between 0 and 1,000 by then"
)]
fn thousandths(percent: f64) -> Option<u16> {
    let least = u16::from(percent > 0.0);
    let rounded = || (percent * 10.0).round().clamp(0.0, 1_000.0) as u16;
    percent.is_finite().then(|| rounded().max(least))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_percentage_is_no_figure() {
        assert_eq!(thousandths(12.34), Some(123));
        assert_eq!((thousandths(0.0), thousandths(0.000_1)), (Some(0), Some(1)));
        assert_eq!((thousandths(-1.0), thousandths(250.0)), (Some(0), Some(1_000)));
        assert_eq!((thousandths(f64::NAN), thousandths(f64::INFINITY)), (None, None));
    }
}
