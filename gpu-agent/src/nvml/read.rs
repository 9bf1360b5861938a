//! Reading the state of a GPU. Runs in the worker process.

use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT, NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlComputeInstance_t,
    nvmlComputeInstanceInfo_t, nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceProfileInfo_t,
};
use tessera_frames::cluster::{ComputeInstanceReport, MigReport};
use tessera_model::mig::compute::ComputeSlot;
use tessera_model::mig::{Geometry, MediaEngines, Profile, ProfileId, ProfileName, Slot};
use tessera_model::{Bytes, GpuId};

use super::calls::NvmlLibrary;
use tessera_agent_core::nvml::error::{ErrorHandling, NvmlCallError, return_code};
use tessera_agent_core::nvml::facts::{GpuFacts, InstanceFacts, InstanceUser};

/// CUDA's major capability of Hopper, the first generation whose MIG mode ends with the boot.
const HOPPER: i32 = 9;

/// A GPU instance with its handle, which is valid until the next change.
pub struct InstanceHandle {
    /// The driver's handle.
    pub handle: nvmlGpuInstance_t,
    /// The driver's number.
    pub number: u32,
    /// Its position and profile.
    pub slot: Slot,
}

/// Reads everything that the agent needs to know about a GPU. `known` is its geometry, if it was
/// read before with MIG mode on.
pub fn gpu(
    library: &NvmlLibrary,
    device: nvmlDevice_t,
    id: &GpuId,
    known: Option<&Geometry>,
) -> Result<GpuFacts, NvmlCallError> {
    let mig = match library.mig_mode(device) {
        Ok(true) => MigReport::On {
            geometry: known.map_or_else(|| geometry(library, device), |g| Ok(g.clone()))?,
        },
        Ok(false) => MigReport::Off,
        Err(fault) if fault.is_unsupported() => MigReport::Unsupported,
        Err(fault) => return Err(fault),
    };
    let instances = match &mig {
        MigReport::On { geometry } => instances(library, device, geometry)?,
        MigReport::Off | MigReport::Unsupported => Vec::new(),
    };
    let whole_used = || library.processes(device).map(|pids| !pids.is_empty());
    let used = instances.iter().any(|i| !i.users.is_empty()) || whole_used()?;
    Ok(GpuFacts {
        gpu: id.clone(),
        index: library.index(device)?,
        model: library.name(device)?,
        memory: Bytes::new(library.memory(device)?.0),
        mig,
        instances,
        bus: offered(library.bus(device))?
            .map(|(domain, bus, slot)| format!("{domain:04x}:{bus:02x}:{slot:02x}")),
        minor: offered(library.minor(device))?,
        recovery: offered(library.recovery(device))?,
        remap_pending: offered(library.remap_pending(device))?.unwrap_or(false),
        mode_volatile: offered(library.capability(device))?.is_some_and(|major| major >= HOPPER),
        used,
    })
}

/// Turns a figure that a GPU, driver or permission doesn't offer into `None`: the GPU can be used
/// without it.
fn offered<T>(result: Result<T, NvmlCallError>) -> Result<Option<T>, NvmlCallError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(fault) if fault.is_loss() => Err(fault),
        Err(_) => Ok(None),
    }
}

fn geometry(library: &NvmlLibrary, device: nvmlDevice_t) -> Result<Geometry, NvmlCallError> {
    let mut profiles = Vec::new();
    for number in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
        match library.profile(device, number) {
            Ok((info, name)) => profiles.extend(profile(library, device, &info, name)?),
            // The enumeration has gaps: each GPU has some of the profiles.
            Err(fault) if fault.is_unsupported() || fault.is_bad_argument() => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(Geometry::new(profiles))
}

/// Returns `None` for a profile with invalid figures: nothing can be planned with it.
fn profile(
    library: &NvmlLibrary,
    device: nvmlDevice_t,
    info: &nvmlGpuInstanceProfileInfo_t,
    name: Option<String>,
) -> Result<Option<Profile>, NvmlCallError> {
    let placements = library.placements(device, info.id)?;
    let gigabytes = info.memorySizeMB.div_ceil(1024);
    let name = name.unwrap_or_else(|| format!("{}g.{gigabytes}gb", info.sliceCount));
    let small = |number: u32| u8::try_from(number).ok();
    let parse = || {
        let mut starts: Vec<u8> =
            placements.iter().map(|p| small(p.start)).collect::<Option<_>>()?;
        starts.sort_unstable();
        Some(Profile {
            id: ProfileId(info.id),
            name: name.parse::<ProfileName>().ok()?,
            compute_slices: small(info.sliceCount)?,
            memory_slices: placements.first().and_then(|p| small(p.size)).filter(|n| *n > 0)?,
            max_instances: small(info.instanceCount)?,
            memory: Bytes::from_mib(info.memorySizeMB),
            sms: u16::try_from(info.multiprocessorCount).ok()?,
            copy_engines: info.copyEngineCount,
            media: MediaEngines {
                decoders: info.decoderCount,
                encoders: info.encoderCount,
                jpeg: info.jpegCount,
                ofa: info.ofaCount,
            },
            starts,
        })
    };
    Ok(parse())
}

fn instances(
    library: &NvmlLibrary,
    device: nvmlDevice_t,
    geometry: &Geometry,
) -> Result<Vec<InstanceFacts>, NvmlCallError> {
    let standing = standing(library, device, geometry)?;
    let migs = mig_devices(library, device)?;
    let mut facts = Vec::with_capacity(standing.len());
    for instance in &standing {
        facts.push(instance_facts(library, geometry, &migs, instance)?);
    }
    facts.sort_by_key(|instance| instance.slot);
    Ok(facts)
}

/// Reads one of the existing instances.
pub fn one(
    library: &NvmlLibrary,
    device: nvmlDevice_t,
    geometry: &Geometry,
    instance: &InstanceHandle,
) -> Result<InstanceFacts, NvmlCallError> {
    instance_facts(library, geometry, &mig_devices(library, device)?, instance)
}

fn instance_facts(
    library: &NvmlLibrary,
    geometry: &Geometry,
    migs: &[(u32, nvmlDevice_t)],
    instance: &InstanceHandle,
) -> Result<InstanceFacts, NvmlCallError> {
    let mine: Vec<_> = migs.iter().filter(|(number, _)| *number == instance.number).collect();
    let mut users = Vec::new();
    for (_, mig) in &mine {
        users.extend(users_of(library, *mig)?);
    }
    let profile = geometry.profile(instance.slot.profile);
    let (mut slice, mut parts) = (None, Vec::new());
    for (_, mig) in &mine {
        let uuid = optional(library.uuid(*mig))?.and_then(|uuid| uuid.parse().ok());
        match part(library, instance, profile, *mig, mine.len())? {
            Extent::Whole => slice = uuid,
            Extent::Part { slot, sms } => {
                parts.push(ComputeInstanceReport { slot, slice: uuid, sms });
            }
            Extent::Unknown => {}
        }
    }
    parts.sort_by_key(|part| part.slot);
    // Its devices show it. Without a device it may be incomplete, or invisible.
    let compute = match mine.len() {
        0 => {
            let profiles = compute_profiles(library, instance.handle)?;
            compute_instances(library, instance.handle, &profiles)?.len()
        }
        seen => seen,
    };
    let compute =
        u32::try_from(compute).map_err(|_| out_of_range("nvmlGpuInstanceGetComputeInstances"))?;
    Ok(InstanceFacts {
        slot: instance.slot,
        number: instance.number,
        compute,
        slice,
        parts,
        memory: profile.map_or(Bytes::ZERO, |profile| profile.memory),
        sms: profile.map_or(0, |profile| profile.sms),
        users,
    })
}

/// How much of its GPU instance a MIG device covers.
enum Extent {
    Whole,
    Part { slot: ComputeSlot, sms: u16 },
    Unknown,
}

/// Finds out what a MIG device covers, one of `siblings` over an instance. Some drivers report no
/// extent of a single compute instance: then it covers the whole instance.
fn part(
    library: &NvmlLibrary,
    instance: &InstanceHandle,
    profile: Option<&Profile>,
    mig: nvmlDevice_t,
    siblings: usize,
) -> Result<Extent, NvmlCallError> {
    let reported = offered(library.attributes(mig))?;
    let alone = siblings == 1;
    if alone && reported.is_some_and(|t| t.computeInstanceSliceCount == t.gpuInstanceSliceCount) {
        return Ok(Extent::Whole);
    }
    let unknown = if alone && reported.is_none() { Extent::Whole } else { Extent::Unknown };
    let Some(compute) = optional(library.compute_of(instance.handle, mig))? else {
        return Ok(unknown);
    };
    let Some(slot) = optional(library.compute_info(compute))?.and_then(|info| slot_of(&info))
    else {
        return Ok(unknown);
    };
    if profile.is_some_and(|profile| profile.compute_slices == slot.slices) {
        return Ok(Extent::Whole);
    }
    let counted = profile.map_or(0, |profile| {
        let whole = u32::from(profile.compute_slices.max(1));
        u32::from(profile.sms) * u32::from(slot.slices) / whole
    });
    let sms = reported.map_or(counted, |reported| reported.multiprocessorCount);
    let sms = u16::try_from(sms).map_err(|_| out_of_range("nvmlDeviceGetAttributes_v2"))?;
    Ok(Extent::Part { slot, sms })
}

/// A figure of the driver that no GPU can have: the GPU counts as faulty, as for unknown errors.
fn out_of_range(call: &str) -> NvmlCallError {
    NvmlCallError { call: call.to_owned(), code: return_code::UNKNOWN }
}

/// Returns the position of a compute instance.
pub fn slot_of(info: &nvmlComputeInstanceInfo_t) -> Option<ComputeSlot> {
    Some(ComputeSlot {
        start: u8::try_from(info.placement.start).ok()?,
        slices: u8::try_from(info.placement.size).ok()?,
    })
}

/// Lists the existing GPU instances.
pub fn standing(
    library: &NvmlLibrary,
    device: nvmlDevice_t,
    geometry: &Geometry,
) -> Result<Vec<InstanceHandle>, NvmlCallError> {
    let mut list = Vec::new();
    for profile in &geometry.profiles {
        list.extend(standing_of(library, device, profile)?);
    }
    Ok(list)
}

/// Lists the GPU instances of one profile.
pub fn standing_of(
    library: &NvmlLibrary,
    device: nvmlDevice_t,
    profile: &Profile,
) -> Result<Vec<InstanceHandle>, NvmlCallError> {
    let mut list = Vec::new();
    for handle in library.instances(device, profile.id.0, u32::from(profile.max_instances))? {
        // One that another program destroyed in the meantime.
        let Some(info) = optional(library.instance(handle))? else { continue };
        let start = u8::try_from(info.placement.start)
            .map_err(|_| out_of_range("nvmlGpuInstanceGetInfo"))?;
        let slot = Slot { start, profile: ProfileId(info.profileId) };
        list.push(InstanceHandle { handle, number: info.id, slot });
    }
    Ok(list)
}

/// Reads the geometry of a GPU in MIG mode.
pub fn mig_geometry(
    library: &NvmlLibrary,
    device: nvmlDevice_t,
) -> Result<Geometry, NvmlCallError> {
    geometry(library, device)
}

/// A size of compute instance that a GPU instance offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ComputeSize {
    /// The driver's number of the profile.
    pub id: u32,
    /// Compute slices.
    pub slices: u32,
    /// The maximum number in the GPU instance.
    pub most: u32,
}

/// Lists the sizes of compute instance that an instance offers.
pub fn compute_profiles(
    library: &NvmlLibrary,
    instance: nvmlGpuInstance_t,
) -> Result<Vec<ComputeSize>, NvmlCallError> {
    let mut list = Vec::new();
    for number in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
        let Some(info) = optional(library.compute_profile(instance, number))? else { continue };
        list.push(ComputeSize { id: info.id, slices: info.sliceCount, most: info.instanceCount });
    }
    Ok(list)
}

/// Lists the compute instances of an instance.
pub fn compute_instances(
    library: &NvmlLibrary,
    instance: nvmlGpuInstance_t,
    sizes: &[ComputeSize],
) -> Result<Vec<nvmlComputeInstance_t>, NvmlCallError> {
    let mut list = Vec::new();
    for size in sizes {
        list.extend(library.compute_instances(instance, size.id, size.most)?);
    }
    Ok(list)
}

/// Lists the MIG devices that exist, with the numbers of their instances.
pub fn mig_devices(
    library: &NvmlLibrary,
    device: nvmlDevice_t,
) -> Result<Vec<(u32, nvmlDevice_t)>, NvmlCallError> {
    let mut list = Vec::new();
    for index in 0..library.mig_devices_max(device)? {
        // A device may be listed for a while after its instance is gone.
        if let Some(mig) = optional(library.mig_device(device, index))?
            && let Some(number) = optional(library.instance_of(mig))?
        {
            list.push((number, mig));
        }
    }
    Ok(list)
}

fn users_of(library: &NvmlLibrary, mig: nvmlDevice_t) -> Result<Vec<InstanceUser>, NvmlCallError> {
    let pids = optional(library.processes(mig))?.unwrap_or_default();
    Ok(pids.into_iter().map(|pid| InstanceUser { pid, ours: is_ours(pid) }).collect())
}

fn is_ours(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
        // A process of an attempt, or of a slice's MPS daemon.
        let marks: [&[u8]; 2] = [b"TESSERA_ATTEMPT_ID=", b"TESSERA_MPS="];
        environment.split(|byte| *byte == 0).any(|pair| marks.iter().any(|m| pair.starts_with(m)))
    })
}

/// Turns "there is none" into `None`; handles of removed objects are invalid arguments.
fn optional<T>(result: Result<T, NvmlCallError>) -> Result<Option<T>, NvmlCallError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(fault)
            if fault.handling() == ErrorHandling::Absent
                || fault.is_unsupported()
                || fault.is_bad_argument() =>
        {
            Ok(None)
        }
        Err(fault) => Err(fault),
    }
}
