//! The worker process: one request, one reply, over standard input and output.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::{self, Read as _, Write as _};
use std::time::Duration;

use nvml_wrapper_sys::bindings::nvmlDevice_t;
use rustix::process::{Signal, set_parent_process_death_signal};
use tessera_frames::cluster::MigReport;
use tessera_model::GpuId;
use tessera_model::mig::{Geometry, ProfileId, Slot};

use super::calls::NvmlLibrary;
use super::messages::{NvmlReply, NvmlRequest};
use super::read::{self, ComputeSize, InstanceHandle};
use super::sample::Sampler;
use crate::shepherd::socket::{frame_bytes, take_frame};
use tessera_agent_core::nvml::error::NvmlCallError;
use tessera_agent_core::nvml::facts::{GpuFacts, InstanceFacts};

/// Serves requests until the agent goes away.
///
/// # Errors
///
/// Standard input or output broke: the agent is gone.
pub fn run(path: &OsStr) -> io::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let mut library = None;
    let mut buffer = Vec::new();
    let mut chunk = [0; 4096];
    let (mut input, mut output) = (io::stdin().lock(), io::stdout().lock());
    loop {
        while let Some(request) = take_frame::<NvmlRequest>(&mut buffer)? {
            let reply = match serve(path, &mut library, &request) {
                Ok(reply) => reply,
                Err(fault) => NvmlReply::Failed(fault),
            };
            output.write_all(&frame_bytes(&reply)?)?;
            output.flush()?;
        }
        match input.read(&mut chunk)? {
            0 => return Ok(()),
            bytes => buffer.extend_from_slice(&chunk[..bytes]),
        }
    }
}

mod change;

/// How often a GPU is read again at once if it changed during the reading, and the pause before.
const READS: u32 = 4;
const READ_PAUSE: Duration = Duration::from_millis(20);

/// The library with what was looked up: look-ups take long on a busy driver.
struct Loaded {
    library: NvmlLibrary,
    devices: BTreeMap<GpuId, nvmlDevice_t>,
    /// How GPUs with MIG mode on can be partitioned.
    geometries: BTreeMap<GpuId, Geometry>,
    /// What compute instances the profiles of these GPUs offer.
    sizes: BTreeMap<(GpuId, ProfileId), Vec<ComputeSize>>,
    sampler: Sampler,
}

fn serve(
    path: &OsStr,
    loaded: &mut Option<Loaded>,
    request: &NvmlRequest,
) -> Result<NvmlReply, NvmlCallError> {
    let loaded = match loaded {
        Some(loaded) => loaded,
        // Tried again with each request: a driver may be loaded later.
        None => loaded.insert(Loaded {
            library: NvmlLibrary::load(path)?,
            devices: BTreeMap::new(),
            geometries: BTreeMap::new(),
            sizes: BTreeMap::new(),
            sampler: Sampler::default(),
        }),
    };
    if request.mutates()
        && let Some(gpu) = request.gpu()
    {
        loaded.sampler.forget(gpu);
    }
    match request {
        NvmlRequest::List => loaded.list(),
        NvmlRequest::Read(gpu) => loaded.read(gpu).map(|facts| NvmlReply::Gpu(Box::new(facts))),
        NvmlRequest::Advice(gpu) => {
            let device = loaded.device(gpu)?;
            Ok(NvmlReply::Advice(loaded.library.recovery(device).ok()))
        }
        NvmlRequest::Look(gpu, slot) => {
            loaded.look(gpu, *slot).map(|found| NvmlReply::One(found.map(Box::new)))
        }
        NvmlRequest::Create(gpu, slot) => loaded.create(gpu, *slot),
        NvmlRequest::Cut(gpu, slot, cut) => loaded.cut(gpu, *slot, cut),
        NvmlRequest::Destroy(gpu, slot) => loaded.destroy(gpu, *slot),
        NvmlRequest::SetMigMode(gpu, on) => {
            let device = loaded.device(gpu)?;
            loaded.geometries.remove(gpu);
            loaded.sizes.retain(|(known, _), _| known != gpu);
            match loaded.library.set_mig_mode(device, *on)? {
                0 => Ok(NvmlReply::Done),
                code => Err(NvmlCallError { call: "nvmlDeviceSetMigMode".to_owned(), code }),
            }
        }
        NvmlRequest::Sample(gpu) => {
            let device = loaded.device(gpu)?;
            let sample = loaded.sampler.sample(&loaded.library, device, gpu)?;
            Ok(NvmlReply::Sample(Box::new(sample)))
        }
    }
}

impl Loaded {
    fn list(&mut self) -> Result<NvmlReply, NvmlCallError> {
        self.devices.clear();
        self.geometries.clear();
        self.sizes.clear();
        for index in 0..self.library.count()? {
            // One lost GPU must not hide the others.
            let Ok(device) = self.library.device(index) else { continue };
            let Ok(uuid) = self.library.uuid(device) else { continue };
            if let Ok(gpu) = uuid.parse() {
                self.devices.insert(gpu, device);
            }
        }
        Ok(NvmlReply::Gpus(self.devices.keys().cloned().collect()))
    }

    fn device(&mut self, gpu: &GpuId) -> Result<nvmlDevice_t, NvmlCallError> {
        if !self.devices.contains_key(gpu) {
            self.list()?;
        }
        self.devices
            .get(gpu)
            .copied()
            .ok_or_else(|| NvmlCallError { call: "nvmlDeviceGetHandleByUUID".to_owned(), code: 28 })
    }

    fn read(&mut self, gpu: &GpuId) -> Result<GpuFacts, NvmlCallError> {
        let mut tries = 1;
        loop {
            match self.read_once(gpu) {
                Err(fault) if fault.is_fleeting() && tries < READS => {
                    tries += 1;
                    std::thread::sleep(READ_PAUSE);
                }
                Err(fault) => {
                    // The next read begins from nothing: a reset GPU has other handles.
                    self.devices.remove(gpu);
                    return Err(fault);
                }
                Ok(facts) => return Ok(facts),
            }
        }
    }

    fn read_once(&mut self, gpu: &GpuId) -> Result<GpuFacts, NvmlCallError> {
        let device = self.device(gpu)?;
        let known = self.geometries.get(gpu);
        let facts = read::gpu(&self.library, device, gpu, known)?;
        if known.is_none() && matches!(facts.mig, MigReport::On { .. }) {
            self.geometry(gpu)?;
        }
        Ok(facts)
    }

    /// Returns the geometry, which is kept once two readings in a row agree: a profile that a
    /// driver in trouble leaves out must not be missing forever.
    fn geometry(&mut self, gpu: &GpuId) -> Result<Geometry, NvmlCallError> {
        if let Some(known) = self.geometries.get(gpu) {
            return Ok(known.clone());
        }
        let device = self.device(gpu)?;
        let mut last = read::mig_geometry(&self.library, device)?;
        for _ in 1..READS {
            let again = read::mig_geometry(&self.library, device)?;
            if again == last {
                self.geometries.insert(gpu.clone(), again);
                break;
            }
            last = again;
        }
        Ok(last)
    }

    /// Returns what compute instances a GPU instance offers: it is kept, like the geometry, once
    /// two readings agree.
    fn sizes(
        &mut self,
        gpu: &GpuId,
        of: &InstanceHandle,
    ) -> Result<Vec<ComputeSize>, NvmlCallError> {
        let key = (gpu.clone(), of.slot.profile);
        if let Some(known) = self.sizes.get(&key) {
            return Ok(known.clone());
        }
        let sizes = read::compute_profiles(&self.library, of.handle)?;
        if !sizes.is_empty() && read::compute_profiles(&self.library, of.handle)? == sizes {
            self.sizes.insert(key, sizes.clone());
        }
        Ok(sizes)
    }

    fn find(&mut self, gpu: &GpuId, slot: Slot) -> Result<Option<InstanceHandle>, NvmlCallError> {
        let device = self.device(gpu)?;
        let geometry = self.geometry(gpu)?;
        let Some(profile) = geometry.profile(slot.profile) else { return Ok(None) };
        let standing = read::standing_of(&self.library, device, profile)?;
        Ok(standing.into_iter().find(|instance| instance.slot == slot))
    }

    /// Reads one slot, and reads it again if it changed during the reading.
    fn look(&mut self, gpu: &GpuId, slot: Slot) -> Result<Option<InstanceFacts>, NvmlCallError> {
        match self.look_once(gpu, slot) {
            Err(fault) if fault.is_fleeting() => self.look_once(gpu, slot),
            other => other,
        }
    }

    fn look_once(
        &mut self,
        gpu: &GpuId,
        slot: Slot,
    ) -> Result<Option<InstanceFacts>, NvmlCallError> {
        let device = self.device(gpu)?;
        let geometry = self.geometry(gpu)?;
        match self.find(gpu, slot)? {
            Some(found) => read::one(&self.library, device, &geometry, &found).map(Some),
            None => Ok(None),
        }
    }
}
