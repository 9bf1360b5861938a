//! Compute instances.

use std::ffi::c_uint;

use nvml_wrapper_sys::bindings::{
    nvmlComputeInstance_t, nvmlComputeInstanceInfo_t, nvmlComputeInstancePlacement_t,
    nvmlComputeInstanceProfileInfo_t, nvmlComputeInstanceProfileInfo_v2_t,
    nvmlComputeInstanceProfileInfo_v3_t, nvmlDevice_t, nvmlGpuInstance_t,
};
use tessera_model::mig::MediaEngines;
use tessera_model::mig::catalog::ComputeProfile;
use tessera_stand_in::device::{ComputeInstance, ComputePlacement, GpuInstance};
use tessera_stand_in::latency;

use crate::abi::{NvmlCode, Opaque, OpaqueHandle, OutPointer, struct_version, text_array};
use crate::session::{NvmlCall, nvml};

/// One more than the highest profile number of the header that is imitated.
const PROFILE_COUNT: c_uint = 9;

/// `NVML_COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED`, the only way to share engines that exists.
const ENGINES_SHARED: c_uint = 0;

nvml! {
    fn nvmlGpuInstanceGetComputeInstanceProfileInfo(
        instance: nvmlGpuInstance_t,
        profile: c_uint,
        engines: c_uint,
        info: OutPointer<nvmlComputeInstanceProfileInfo_t>,
    ) |call| {
        let (_, plain) = by_enumeration(&call, instance, profile, engines)?;
        info.set(plain)
    }

    fn nvmlGpuInstanceGetComputeInstanceProfileInfoV(
        instance: nvmlGpuInstance_t,
        profile: c_uint,
        engines: c_uint,
        info: OutPointer<nvmlComputeInstanceProfileInfo_v2_t>,
    ) |call| {
        let (entry, plain) = by_enumeration(&call, instance, profile, engines)?;
        set_versioned(entry, plain, info)
    }

    fn nvmlGpuInstanceGetComputeInstancePossiblePlacements(
        instance: nvmlGpuInstance_t,
        profile_id: c_uint,
        placements: OutPointer<nvmlComputeInstancePlacement_t>,
        count: OutPointer<c_uint>,
    ) |call| {
        let (gpu, parent) = call.gpu_instance(instance)?;
        let profile = compute_profile(&call, gpu, parent, profile_id)?;
        count.set(u32::try_from(profile.starts.len()).map_err(|_| NvmlCode::UNKNOWN)?)?;
        if placements.is_null() {
            return Ok(());
        }
        let size = profile.compute_slices.into();
        profile.starts.iter().enumerate().try_for_each(|(index, start)| {
            let placement = nvmlComputeInstancePlacement_t { start: (*start).into(), size };
            placements.set_at(index, placement)
        })
    }

    fn nvmlGpuInstanceGetComputeInstanceRemainingCapacity(
        instance: nvmlGpuInstance_t,
        profile_id: c_uint,
        count: OutPointer<c_uint>,
    ) |call| {
        let (_, parent) = call.gpu_instance(instance)?;
        count.set(call.state.remaining_compute_capacity(parent.serial, profile_id)?)
    }

    fn nvmlGpuInstanceCreateComputeInstance(
        instance: nvmlGpuInstance_t,
        profile_id: c_uint,
        compute: OutPointer<nvmlComputeInstance_t>,
    ) |call| {
        create(&call, instance, profile_id, None, compute)
    }

    fn nvmlGpuInstanceCreateComputeInstanceWithPlacement(
        instance: nvmlGpuInstance_t,
        profile_id: c_uint,
        placement: OutPointer<nvmlComputeInstancePlacement_t>,
        compute: OutPointer<nvmlComputeInstance_t>,
    ) |call| {
        let nvmlComputeInstancePlacement_t { start, size } = placement.value()?;
        create(&call, instance, profile_id, Some(ComputePlacement { start, size }), compute)
    }

    fn nvmlComputeInstanceDestroy(compute: nvmlComputeInstance_t) |call| {
        let (gpu, _, found) = call.compute_instance(compute)?;
        let serial = found.serial;
        let takes = latency::compute_instance_part(latency::destroy());
        call.operate(gpu, takes, |state| state.destroy_compute_instance(serial))
    }

    /// Has no capacity: the caller's array must hold the profile's `instanceCount`.
    fn nvmlGpuInstanceGetComputeInstances(
        instance: nvmlGpuInstance_t,
        profile_id: c_uint,
        computes: OutPointer<nvmlComputeInstance_t>,
        count: OutPointer<c_uint>,
    ) |call| {
        let (gpu, parent) = call.gpu_instance(instance)?;
        compute_profile(&call, gpu, parent, profile_id)?;
        if computes.is_null() || count.is_null() {
            return Err(NvmlCode::INVALID_ARGUMENT);
        }
        let mut found = 0;
        for compute in parent.compute.iter().filter(|c| c.profile == profile_id) {
            let handle = OpaqueHandle::ComputeInstance(compute.serial);
            computes.set_at(found, nvmlComputeInstance_t::of(handle))?;
            found += 1;
        }
        count.set(u32::try_from(found).map_err(|_| NvmlCode::UNKNOWN)?)
    }

    fn nvmlGpuInstanceGetComputeInstanceById(
        instance: nvmlGpuInstance_t,
        id: c_uint,
        compute: OutPointer<nvmlComputeInstance_t>,
    ) |call| {
        let (_, parent) = call.gpu_instance(instance)?;
        let found = parent.compute.iter().find(|c| c.id == id).ok_or(NvmlCode::NOT_FOUND)?;
        compute.set(nvmlComputeInstance_t::of(OpaqueHandle::ComputeInstance(found.serial)))
    }

    fn nvmlComputeInstanceGetInfo_v2(
        compute: nvmlComputeInstance_t,
        info: OutPointer<nvmlComputeInstanceInfo_t>,
    ) |call| {
        let (gpu, parent, found) = call.compute_instance(compute)?;
        let profile = compute_profile(&call, gpu, parent, found.profile)?;
        info.set(instance_info(gpu, parent, found, profile))
    }
}

fn instance_info(
    gpu: usize,
    parent: &GpuInstance,
    compute: &ComputeInstance,
    profile: &ComputeProfile,
) -> nvmlComputeInstanceInfo_t {
    nvmlComputeInstanceInfo_t {
        device: nvmlDevice_t::of(OpaqueHandle::Gpu(gpu)),
        gpuInstance: nvmlGpuInstance_t::of(OpaqueHandle::GpuInstance(parent.serial)),
        id: compute.id,
        profileId: compute.profile,
        placement: nvmlComputeInstancePlacement_t {
            start: compute.start.into(),
            size: profile.compute_slices.into(),
        },
    }
}

fn compute_profile(
    call: &NvmlCall,
    gpu: usize,
    parent: &GpuInstance,
    id: c_uint,
) -> Result<&'static ComputeProfile, NvmlCode> {
    parent.compute_profile(call.gpu_state(gpu), id).ok_or(NvmlCode::NOT_SUPPORTED)
}

fn by_enumeration(
    call: &NvmlCall,
    instance: nvmlGpuInstance_t,
    profile: c_uint,
    engines: c_uint,
) -> Result<(&'static ComputeProfile, nvmlComputeInstanceProfileInfo_t), NvmlCode> {
    let (gpu, parent) = call.gpu_instance(instance)?;
    if profile >= PROFILE_COUNT || engines != ENGINES_SHARED {
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    let whole = parent.profile(call.gpu_state(gpu));
    let entry =
        whole.compute.iter().find(|c| c.enumeration == profile).ok_or(NvmlCode::NOT_SUPPORTED)?;
    let MediaEngines { decoders, encoders, jpeg, ofa } = whole.profile.media;
    let plain = nvmlComputeInstanceProfileInfo_t {
        // A profile without an id can't be created, so there is nothing to report.
        id: entry.id.ok_or(NvmlCode::NOT_SUPPORTED)?,
        sliceCount: entry.compute_slices.into(),
        instanceCount: entry.max_instances.into(),
        multiprocessorCount: entry.sm.unwrap_or(0).into(),
        sharedCopyEngineCount: whole.profile.copy_engines,
        sharedDecoderCount: decoders,
        sharedEncoderCount: encoders,
        sharedJpegCount: jpeg,
        sharedOfaCount: ofa,
    };
    Ok((entry, plain))
}

fn set_versioned(
    entry: &ComputeProfile,
    plain: nvmlComputeInstanceProfileInfo_t,
    info: OutPointer<nvmlComputeInstanceProfileInfo_v2_t>,
) -> Result<(), NvmlCode> {
    let name = text_array(&format!("MIG {}", entry.name));
    let version = info.version()?;
    if version == struct_version::<nvmlComputeInstanceProfileInfo_v2_t>(2) {
        return info.set(nvmlComputeInstanceProfileInfo_v2_t {
            version,
            id: plain.id,
            sliceCount: plain.sliceCount,
            instanceCount: plain.instanceCount,
            multiprocessorCount: plain.multiprocessorCount,
            sharedCopyEngineCount: plain.sharedCopyEngineCount,
            sharedDecoderCount: plain.sharedDecoderCount,
            sharedEncoderCount: plain.sharedEncoderCount,
            sharedJpegCount: plain.sharedJpegCount,
            sharedOfaCount: plain.sharedOfaCount,
            name,
        });
    }
    if version != struct_version::<nvmlComputeInstanceProfileInfo_v3_t>(3) {
        // The header names this code for this call, unlike for other versioned structures.
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    info.cast::<nvmlComputeInstanceProfileInfo_v3_t>().set(nvmlComputeInstanceProfileInfo_v3_t {
        version,
        id: plain.id,
        sliceCount: plain.sliceCount,
        instanceCount: plain.instanceCount,
        multiprocessorCount: plain.multiprocessorCount,
        sharedCopyEngineCount: plain.sharedCopyEngineCount,
        sharedDecoderCount: plain.sharedDecoderCount,
        sharedEncoderCount: plain.sharedEncoderCount,
        sharedJpegCount: plain.sharedJpegCount,
        sharedOfaCount: plain.sharedOfaCount,
        name,
        capabilities: u32::from(entry.name.contains("+gfx")),
    })
}

fn create(
    call: &NvmlCall,
    instance: nvmlGpuInstance_t,
    profile_id: c_uint,
    at: Option<ComputePlacement>,
    compute: OutPointer<nvmlComputeInstance_t>,
) -> Result<(), NvmlCode> {
    let (gpu, parent) = call.gpu_instance(instance)?;
    if compute.is_null() {
        return Err(NvmlCode::INVALID_ARGUMENT);
    }
    let serial = parent.serial;
    let slices = compute_profile(call, gpu, parent, profile_id)?.compute_slices;
    let takes = latency::compute_instance_part(latency::create(slices));
    let made =
        call.operate(gpu, takes, |state| state.create_compute_instance(serial, profile_id, at))?;
    compute.set(nvmlComputeInstance_t::of(OpaqueHandle::ComputeInstance(made)))
}
