//! MIG mode, and the reset that some models need to change it.

use super::{DeviceRefusal, DeviceState};

/// The progress of a change of mode: NVML's activation status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModeActivation {
    /// The mode is in force.
    Done,
    /// The GPU isn't idle: make it so and try again.
    InUse,
}

impl DeviceState {
    /// Sets the MIG mode of a GPU.
    ///
    /// The change needs an idle GPU: no client, and no instance when it goes off. If it isn't,
    /// models that change mode by a reset keep the requested mode as their pending one, as `nvml.h`
    /// states; the others drop it.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::InvalidArgument`] if there is no such GPU.
    pub fn set_mig_mode(&mut self, gpu: usize, on: bool) -> Result<ModeActivation, DeviceRefusal> {
        let idle = self.is_idle(gpu);
        let target = self.gpus.get_mut(gpu).ok_or(DeviceRefusal::InvalidArgument)?;
        if target.mig == on {
            target.mig_pending = on;
            return Ok(ModeActivation::Done);
        }
        if !idle {
            if target.model().mode_change_needs_reset {
                target.mig_pending = on;
            }
            return Ok(ModeActivation::InUse);
        }
        target.mig = on;
        target.mig_pending = on;
        Ok(ModeActivation::Done)
    }

    /// Leaves a pending mode that only a reset from outside brings about, as on machines
    /// that pass the GPU through.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::InvalidArgument`] if there is no such GPU.
    pub fn set_pending_mig_mode(&mut self, gpu: usize, on: bool) -> Result<(), DeviceRefusal> {
        self.gpus.get_mut(gpu).ok_or(DeviceRefusal::InvalidArgument)?.mig_pending = on;
        Ok(())
    }

    /// Resets a GPU: every instance is removed, and the pending mode takes effect.
    ///
    /// # Errors
    ///
    /// [`DeviceRefusal::InvalidArgument`] if there is no such GPU, [`DeviceRefusal::InUse`] while any process
    /// uses it.
    pub fn reset(&mut self, gpu: usize) -> Result<(), DeviceRefusal> {
        if self.claims_on_gpu(gpu).next().is_some() {
            return Err(DeviceRefusal::InUse);
        }
        let target = self.gpus.get_mut(gpu).ok_or(DeviceRefusal::InvalidArgument)?;
        target.instances.clear();
        target.mig = target.mig_pending;
        Ok(())
    }

    /// Leaves every GPU as a restart of its machine does: without clients and instances. MIG
    /// mode is kept by the models that need a reset to change it, and lost by the newer ones.
    ///
    /// # Source
    ///
    /// GPUStack, `nvidia-mig.md`, limitations; not checked on hardware.
    pub fn reboot(&mut self) {
        self.claims.clear();
        for gpu in &mut self.gpus {
            gpu.instances.clear();
            gpu.mig = gpu.mig_pending && gpu.model().mode_change_needs_reset;
            gpu.mig_pending = gpu.mig;
        }
    }

    fn is_idle(&self, gpu: usize) -> bool {
        self.claims_on_gpu(gpu).next().is_none()
            && self.gpus.get(gpu).is_none_or(|g| g.instances.is_empty())
    }
}
