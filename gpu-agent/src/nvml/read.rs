//! Reading how a GPU stands. Runs in the worker process.

use nvml_wrapper_sys::bindings::{
    NVML_COMPUTE_INSTANCE_PROFILE_COUNT, NVML_GPU_INSTANCE_PROFILE_COUNT, nvmlComputeInstance_t,
    nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceProfileInfo_t,
};
use tessera_model::mig::{Geometry, MediaEngines, Profile, ProfileId, ProfileName, Slot};
use tessera_model::{Bytes, GpuId};
use tessera_wire::frames::MigReport;

use super::calls::Library;
use super::fault::{Fault, Handling};
use super::messages::{GpuFacts, InstanceFacts, User};

/// A GPU instance with its handle, which is good until the next change.
pub struct Standing {
    /// The driver's handle.
    pub handle: nvmlGpuInstance_t,
    /// The driver's number.
    pub number: u32,
    /// Where it stands and what it is.
    pub slot: Slot,
}

/// Reads everything that the agent wants to know of a GPU.
pub fn gpu(library: &Library, device: nvmlDevice_t, id: &GpuId) -> Result<GpuFacts, Fault> {
    let mig = match library.mig_mode(device) {
        Ok(true) => MigReport::On { geometry: geometry(library, device)? },
        Ok(false) => MigReport::Off,
        Err(fault) if matches!(fault.handling(), Handling::Replan | Handling::Bug) => {
            MigReport::Unsupported
        }
        Err(fault) => return Err(fault),
    };
    let instances = match &mig {
        MigReport::On { geometry } => instances(library, device, geometry)?,
        MigReport::Off | MigReport::Unsupported => Vec::new(),
    };
    Ok(GpuFacts {
        gpu: id.clone(),
        index: library.index(device)?,
        model: library.name(device)?,
        memory: Bytes::new(library.memory(device)?),
        mig,
        instances,
    })
}

fn geometry(library: &Library, device: nvmlDevice_t) -> Result<Geometry, Fault> {
    let mut profiles = Vec::new();
    for number in 0..NVML_GPU_INSTANCE_PROFILE_COUNT {
        match library.profile(device, number) {
            Ok((info, name)) => profiles.extend(profile(library, device, &info, name)?),
            // The enumeration has gaps: each GPU has some of the profiles.
            Err(fault) if matches!(fault.handling(), Handling::Replan | Handling::Bug) => {}
            Err(fault) => return Err(fault),
        }
    }
    Ok(Geometry::new(profiles))
}

/// Returns `None` for a profile whose figures make no sense: nothing can be planned with it.
fn profile(
    library: &Library,
    device: nvmlDevice_t,
    info: &nvmlGpuInstanceProfileInfo_t,
    name: Option<String>,
) -> Result<Option<Profile>, Fault> {
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
    library: &Library,
    device: nvmlDevice_t,
    geometry: &Geometry,
) -> Result<Vec<InstanceFacts>, Fault> {
    let standing = standing(library, device, geometry)?;
    let migs = mig_devices(library, device)?;
    let mut facts = Vec::with_capacity(standing.len());
    for instance in standing {
        let mine: Vec<_> = migs.iter().filter(|(number, _)| *number == instance.number).collect();
        let mut users = Vec::new();
        for (_, mig) in &mine {
            users.extend(users_of(library, *mig)?);
        }
        let slice = match mine[..] {
            [(_, mig)] => library.uuid(*mig)?.parse().ok(),
            _ => None,
        };
        let profile = geometry.profile(instance.slot.profile);
        facts.push(InstanceFacts {
            slot: instance.slot,
            slice,
            memory: profile.map_or(Bytes::ZERO, |profile| profile.memory),
            sms: profile.map_or(0, |profile| profile.sms),
            users,
        });
    }
    facts.sort_by_key(|instance| instance.slot);
    Ok(facts)
}

/// Lists the GPU instances that stand.
pub fn standing(
    library: &Library,
    device: nvmlDevice_t,
    geometry: &Geometry,
) -> Result<Vec<Standing>, Fault> {
    let mut list = Vec::new();
    for profile in &geometry.profiles {
        let most = u32::from(profile.max_instances);
        for handle in library.instances(device, profile.id.0, most)? {
            let info = library.instance(handle)?;
            let slot = Slot {
                start: u8::try_from(info.placement.start).unwrap_or(u8::MAX),
                profile: ProfileId(info.profileId),
            };
            list.push(Standing { handle, number: info.id, slot });
        }
    }
    Ok(list)
}

/// Reads the geometry of a GPU in MIG mode.
pub fn mig_geometry(library: &Library, device: nvmlDevice_t) -> Result<Geometry, Fault> {
    geometry(library, device)
}

/// Lists the compute instances of an instance.
pub fn compute_instances(
    library: &Library,
    instance: nvmlGpuInstance_t,
) -> Result<Vec<nvmlComputeInstance_t>, Fault> {
    let mut list = Vec::new();
    for number in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
        let Some(profile) = optional(library.compute_profile(instance, number))? else { continue };
        list.extend(library.compute_instances(instance, profile.id, profile.instanceCount)?);
    }
    Ok(list)
}

/// Finds the compute profile that covers an instance of `slices` compute slices.
pub fn whole_compute_profile(
    library: &Library,
    instance: nvmlGpuInstance_t,
    slices: u32,
) -> Result<Option<u32>, Fault> {
    for number in 0..NVML_COMPUTE_INSTANCE_PROFILE_COUNT {
        let Some(profile) = optional(library.compute_profile(instance, number))? else { continue };
        if profile.sliceCount == slices {
            return Ok(Some(profile.id));
        }
    }
    Ok(None)
}

/// Lists the MIG devices that exist, with the numbers of their instances.
fn mig_devices(library: &Library, device: nvmlDevice_t) -> Result<Vec<(u32, nvmlDevice_t)>, Fault> {
    let mut list = Vec::new();
    for index in 0..library.mig_devices_max(device)? {
        if let Some(mig) = optional(library.mig_device(device, index))? {
            list.push((library.instance_of(mig)?, mig));
        }
    }
    Ok(list)
}

fn users_of(library: &Library, mig: nvmlDevice_t) -> Result<Vec<User>, Fault> {
    let pids = optional(library.processes(mig))?.unwrap_or_default();
    Ok(pids.into_iter().map(|pid| User { pid, ours: is_ours(pid) }).collect())
}

fn is_ours(pid: u32) -> bool {
    std::fs::read(format!("/proc/{pid}/environ")).is_ok_and(|environment| {
        environment.split(|byte| *byte == 0).any(|pair| pair.starts_with(b"TESSERA_ATTEMPT_ID="))
    })
}

/// Turns "there is none" into `None`.
fn optional<T>(result: Result<T, Fault>) -> Result<Option<T>, Fault> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(fault) => match fault.handling() {
            Handling::Absent | Handling::Replan => Ok(None),
            Handling::Bug if fault.code == 2 => Ok(None),
            Handling::Bug | Handling::InUse | Handling::Retry | Handling::Faulty => Err(fault),
        },
    }
}
