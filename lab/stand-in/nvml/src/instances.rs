//! GPU instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlDevice_t, nvmlGpuInstance_t, nvmlGpuInstanceInfo_t, nvmlGpuInstancePlacement_t,
    nvmlGpuInstanceProfileInfo_t, nvmlGpuInstanceProfileInfo_v2_t, nvmlGpuInstanceProfileInfo_v3_t,
};
use tessera_model::mig::MediaEngines;
use tessera_model::mig::catalog::CatalogProfile;
use tessera_stand_in::device::SlotPlacement;
use tessera_stand_in::latency;

use crate::abi::{NvmlCode, Opaque, OpaqueHandle, OutPointer, struct_version, text_array};
use crate::session::{NvmlCall, nvml};

/// One more than the highest profile number of the header that is imitated.
const PROFILE_COUNT: c_uint = 18;

/// `NVML_GPU_INSTANCE_PROFILE_CAPS_GFX`.
const CAN_DO_GRAPHICS: c_uint = 2;

nvml! {
    fn nvmlDeviceGetGpuInstanceProfileInfo(
        device: nvmlDevice_t,
        profile: c_uint,
        info: OutPointer<nvmlGpuInstanceProfileInfo_t>,
    ) |call| {
        info.set(plain_info(by_enumeration(&call, device, profile)?))
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoV(
        device: nvmlDevice_t,
        profile: c_uint,
        info: OutPointer<nvmlGpuInstanceProfileInfo_v2_t>,
    ) |call| {
        set_versioned(by_enumeration(&call, device, profile)?, info)
    }

    fn nvmlDeviceGetGpuInstanceProfileInfoByIdV(
        device: nvmlDevice_t,
        profile_id: c_uint,
        info: OutPointer<nvmlGpuInstanceProfileInfo_v2_t>,
    ) |call| {
        set_versioned(call.gpu_state(call.gpu(device)?).mig_profile(profile_id)?, info)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements(
        device: nvmlDevice_t,
        profile_id: c_uint,
        placements: OutPointer<nvmlGpuInstancePlacement_t>,
        count: OutPointer<c_uint>,
    ) |call| {
        possible_placements(&call, device, profile_id, placements, count)
    }

    fn nvmlDeviceGetGpuInstancePossiblePlacements_v2(
        device: nvmlDevice_t,
        profile_id: c_uint,
        placements: OutPointer<nvmlGpuInstancePlacement_t>,
        count: OutPointer<c_uint>,
    ) |call| {
        possible_placements(&call, device, profile_id, placements, count)
    }

    fn nvmlDeviceGetGpuInstanceRemainingCapacity(
        device: nvmlDevice_t,
        profile_id: c_uint,
        count: OutPointer<c_uint>,
    ) |call| {
        let gpu = call.gpu(device)?;
        count.set(call.state.remaining_capacity(gpu, profile_id)?)
    }

    fn nvmlDeviceCreateGpuInstance(
        device: nvmlDevice_t,
        profile_id: c_uint,
        instance: OutPointer<nvmlGpuInstance_t>,
    ) |call| {
        create(&call, device, profile_id, None, instance)
    }

    fn nvmlDeviceCreateGpuInstanceWithPlacement(
        device: nvmlDevice_t,
        profile_id: c_uint,
        placement: OutPointer<nvmlGpuInstancePlacement_t>,
        instance: OutPointer<nvmlGpuInstance_t>,
    ) |call| {
        let nvmlGpuInstancePlacement_t { start, size } = placement.value()?;
        create(&call, device, profile_id, Some(SlotPlacement { start, size }), instance)
    }

    fn nvmlGpuInstanceDestroy(instance: nvmlGpuInstance_t) |call| {
        let (gpu, found) = call.gpu_instance(instance)?;
        let serial = found.serial;
        let takes = latency::gpu_instance_part(latency::destroy());
        call.operate(gpu, takes, |state| state.destroy_gpu_instance(serial))
    }

    /// Has no capacity: the caller's array must hold the profile's `instanceCount`.
    fn nvmlDeviceGetGpuInstances(
        device: nvmlDevice_t,
        profile_id: c_uint,
        instances: OutPointer<nvmlGpuInstance_t>,
        count: OutPointer<c_uint>,
    ) |call| {
        let gpu_state = call.gpu_state(call.gpu(device)?);
        gpu_state.mig_profile(profile_id)?;
        if instances.is_null() || count.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let mut found = 0;
        for instance in gpu_state.instances.iter().filter(|i| i.slot.profile.0 == profile_id) {
            instances.set_at(found, nvmlGpuInstance_t::of(OpaqueHandle::GpuInstance(instance.serial)))?;
            found += 1;
        }
        count.set(u32::try_from(found).map_err(|_| NvmlCode::UNKNOWN)?)
    }

    fn nvmlDeviceGetGpuInstanceById(
        device: nvmlDevice_t,
        id: c_uint,
        instance: OutPointer<nvmlGpuInstance_t>,
    ) |call| {
        let gpu_state = call.gpu_state(call.gpu(device)?);
        gpu_state.require_mig()?;
        let found = gpu_state.instances.iter().find(|i| i.id == id).ok_or(NvmlCode::NOT_FOUND)?;
        instance.set(nvmlGpuInstance_t::of(OpaqueHandle::GpuInstance(found.serial)))
    }

    fn nvmlGpuInstanceGetInfo(
        instance: nvmlGpuInstance_t,
        info: OutPointer<nvmlGpuInstanceInfo_t>,
    ) |call| {
        let (gpu, found) = call.gpu_instance(instance)?;
        info.set(nvmlGpuInstanceInfo_t {
            device: nvmlDevice_t::of(OpaqueHandle::Gpu(gpu)),
            id: found.id,
            profileId: found.slot.profile.0,
            placement: nvmlGpuInstancePlacement_t {
                start: found.slot.start.into(),
                size: found.profile(call.gpu_state(gpu)).profile.memory_slices.into(),
            },
        })
    }
}

fn by_enumeration(
    call: &NvmlCall,
    device: nvmlDevice_t,
    profile: c_uint,
) -> Result<&'static CatalogProfile, NvmlCode> {
    let gpu_state = call.gpu_state(call.gpu(device)?);
    if profile >= PROFILE_COUNT {
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    gpu_state.require_mig()?;
    gpu_state
        .model()
        .profiles
        .iter()
        .find(|p| p.enumeration == profile)
        .ok_or(NvmlCode::NOT_SUPPORTED)
}

fn plain_info(entry: &CatalogProfile) -> nvmlGpuInstanceProfileInfo_t {
    let profile = &entry.profile;
    let MediaEngines { decoders, encoders, jpeg, ofa } = profile.media;
    nvmlGpuInstanceProfileInfo_t {
        id: profile.id.0,
        isP2pSupported: 0,
        sliceCount: profile.compute_slices.into(),
        instanceCount: profile.max_instances.into(),
        multiprocessorCount: profile.sms.into(),
        copyEngineCount: profile.copy_engines,
        decoderCount: decoders,
        encoderCount: encoders,
        jpegCount: jpeg,
        ofaCount: ofa,
        memorySizeMB: profile.memory.mib(),
    }
}

fn set_versioned(
    entry: &CatalogProfile,
    info: OutPointer<nvmlGpuInstanceProfileInfo_v2_t>,
) -> Result<(), NvmlCode> {
    let plain = plain_info(entry);
    let label = format!("MIG {}", entry.profile.name);
    let version = info.version()?;
    if version == struct_version::<nvmlGpuInstanceProfileInfo_v2_t>(2) {
        return info.set(nvmlGpuInstanceProfileInfo_v2_t {
            version,
            id: plain.id,
            isP2pSupported: plain.isP2pSupported,
            sliceCount: plain.sliceCount,
            instanceCount: plain.instanceCount,
            multiprocessorCount: plain.multiprocessorCount,
            copyEngineCount: plain.copyEngineCount,
            decoderCount: plain.decoderCount,
            encoderCount: plain.encoderCount,
            jpegCount: plain.jpegCount,
            ofaCount: plain.ofaCount,
            memorySizeMB: plain.memorySizeMB,
            name: text_array(&label),
        });
    }
    if version != struct_version::<nvmlGpuInstanceProfileInfo_v3_t>(3) {
        // The header names this code for these calls, unlike for other versioned structures.
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    let graphics = entry.profile.name.as_str().contains("+gfx");
    info.cast::<nvmlGpuInstanceProfileInfo_v3_t>().set(nvmlGpuInstanceProfileInfo_v3_t {
        version,
        id: plain.id,
        sliceCount: plain.sliceCount,
        instanceCount: plain.instanceCount,
        multiprocessorCount: plain.multiprocessorCount,
        copyEngineCount: plain.copyEngineCount,
        decoderCount: plain.decoderCount,
        encoderCount: plain.encoderCount,
        jpegCount: plain.jpegCount,
        ofaCount: plain.ofaCount,
        memorySizeMB: plain.memorySizeMB,
        name: text_array(&label),
        capabilities: if graphics { CAN_DO_GRAPHICS } else { 0 },
    })
}

/// Writes all placements, or only their number where the caller has no array yet.
fn possible_placements(
    call: &NvmlCall,
    device: nvmlDevice_t,
    profile_id: c_uint,
    placements: OutPointer<nvmlGpuInstancePlacement_t>,
    count: OutPointer<c_uint>,
) -> Result<(), NvmlCode> {
    let profile = &call.gpu_state(call.gpu(device)?).mig_profile(profile_id)?.profile;
    count.set(u32::try_from(profile.starts.len()).map_err(|_| NvmlCode::UNKNOWN)?)?;
    if placements.is_null() {
        return Ok(());
    }
    let size = profile.memory_slices.into();
    profile.starts.iter().enumerate().try_for_each(|(index, start)| {
        placements.set_at(index, nvmlGpuInstancePlacement_t { start: (*start).into(), size })
    })
}

fn create(
    call: &NvmlCall,
    device: nvmlDevice_t,
    profile_id: c_uint,
    at: Option<SlotPlacement>,
    instance: OutPointer<nvmlGpuInstance_t>,
) -> Result<(), NvmlCode> {
    let gpu = call.gpu(device)?;
    if instance.is_null() {
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    let slices = call.gpu_state(gpu).profile(profile_id).map_or(0, |p| p.profile.compute_slices);
    let takes = latency::gpu_instance_part(latency::create(slices));
    let made = call.operate(gpu, takes, |state| state.create_gpu_instance(gpu, profile_id, at))?;
    instance.set(nvmlGpuInstance_t::of(OpaqueHandle::GpuInstance(made)))
}
