//! What NVML promises its readers, whatever instances exist.

use std::ffi::CStr;
use std::mem::{size_of, zeroed};
use std::ptr;

use nvml_wrapper::enum_wrappers::device::TemperatureSensor;
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::*;
use tessera_model::mig::catalog::{CatalogProfile, ComputeProfile};

use crate::rig::{Rig, every_model, index, open, raw};

/// Profile numbers of the newest header, and one more.
const PROFILES: std::ops::Range<u32> = 0..19;

#[test]
fn a_node_shows_its_gpus_as_a_driver_does() {
    let rig = Rig::new(&["a100-40gb", "a30-24gb"]);
    let nvml = &rig.nvml;

    assert_eq!(nvml.device_count().unwrap(), 2);
    assert_eq!(nvml.sys_driver_version().unwrap(), "580.95.05");
    assert_eq!(nvml.sys_nvml_version().unwrap(), "13.580.95.05");
    assert_eq!(nvml.sys_cuda_driver_version().unwrap(), 13_000);
    let a30 = nvml.device_by_index(1).unwrap();
    assert_eq!(a30.name().unwrap(), "NVIDIA A30");
    assert_eq!(a30.index().unwrap(), 1);
    assert_eq!(a30.minor_number().unwrap(), 1);
    assert_eq!(a30.memory_info().unwrap().total, 24_576 << 20);
    assert_eq!(a30.power_usage().unwrap(), 32_000);
    assert_eq!(a30.temperature(TemperatureSensor::Gpu).unwrap(), 30);
    assert_eq!(a30.cuda_compute_capability().unwrap().major, 8);
    assert!(a30.running_compute_processes().unwrap().is_empty());
    assert!(!a30.mig_is_mig_device_handle().unwrap());
    assert!(matches!(nvml.device_by_index(2), Err(NvmlError::InvalidArg)));

    let pci = a30.pci_info().unwrap();
    assert_eq!(pci.bus_id, "00000000:08:00.0");
    assert_eq!(pci.pci_device_id, 0x20B7_10DE);
    for id in ["00000000:08:00.0", "0000:08:00.0", "08:00.0"] {
        assert_eq!(nvml.device_by_pci_bus_id(id).unwrap().index().unwrap(), 1);
    }
    assert!(matches!(nvml.device_by_pci_bus_id("0"), Err(NvmlError::NotFound)));
    let uuid = a30.uuid().unwrap();
    assert!(uuid.starts_with("GPU-") && uuid.len() == 40, "{uuid}");
    assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(), 1);
    assert!(matches!(nvml.device_by_uuid("GPU-nobody"), Err(NvmlError::NotFound)));
}

#[test]
fn gpu_uuids_stay_with_the_node_and_differ_between_nodes() {
    let rig = Rig::new(&["a30-24gb", "a30-24gb"]);
    let other = Rig::new(&["a30-24gb"]);
    let uuid = |rig: &Rig, gpu| rig.nvml.device_by_index(gpu).unwrap().uuid().unwrap();
    let first = uuid(&rig, 0);
    assert_ne!(first, uuid(&rig, 1));
    assert_ne!(first, uuid(&other, 0));

    let Rig { nvml, folder, .. } = rig;
    nvml.shutdown().unwrap();
    let again = open(&folder, &["a30-24gb", "a30-24gb"], &[]).unwrap();
    assert_eq!(again.device_by_index(0).unwrap().uuid().unwrap(), first);
}

#[test]
fn the_energy_counter_runs_and_never_backwards() {
    let rig = Rig::new(&["a30-24gb"]);
    let device = rig.nvml.device_by_index(0).unwrap();

    let before = device.total_energy_consumption().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    let after = device.total_energy_consumption().unwrap();

    // 32 W over a tenth of a second.
    assert!(after - before >= 3_000, "{before} to {after} mJ");
}

#[test]
fn the_profile_table_is_the_catalogue_for_every_model() {
    for (key, model) in every_model() {
        let rig = Rig::new(&[key]);
        let device = rig.device(0);
        let mut seen = 0;
        for enumeration in PROFILES {
            // SAFETY: plain numbers, for which zero is a value.
            let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { zeroed() };
            let code =
                raw!(rig, nvmlDeviceGetGpuInstanceProfileInfo(device, enumeration, &mut info));
            let Some(entry) = model.profiles.iter().find(|p| p.enumeration == enumeration) else {
                assert_eq!(code, if enumeration < 18 { 3 } else { 2 }, "{key} {enumeration}");
                continue;
            };
            assert_eq!(code, 0, "{key} {enumeration}");
            assert_profile(key, entry, &info);
            assert_versioned(&rig, entry, &info);
            assert_placements(&rig, entry);
            assert_compute_profiles(&rig, entry);
            seen += 1;
        }
        assert_eq!(seen, model.profiles.len(), "{key}");
    }
}

fn assert_profile(key: &str, entry: &CatalogProfile, info: &nvmlGpuInstanceProfileInfo_t) {
    let profile = &entry.profile;
    assert_eq!(info.id, profile.id.0, "{key}");
    assert_eq!(info.sliceCount, u32::from(profile.compute_slices));
    assert_eq!(info.instanceCount, u32::from(profile.max_instances));
    assert_eq!(info.multiprocessorCount, u32::from(profile.sms));
    assert_eq!(info.copyEngineCount, profile.copy_engines);
    assert_eq!(info.decoderCount, profile.media.decoders);
    assert_eq!(info.encoderCount, profile.media.encoders);
    assert_eq!(info.jpegCount, profile.media.jpeg);
    assert_eq!(info.ofaCount, profile.media.ofa);
    assert_eq!(info.memorySizeMB, profile.memory.mib());
}

fn assert_versioned(rig: &Rig, entry: &CatalogProfile, plain: &nvmlGpuInstanceProfileInfo_t) {
    let device = rig.device(0);
    // SAFETY: plain numbers, for which zero is a value.
    let mut info: nvmlGpuInstanceProfileInfo_v2_t = unsafe { zeroed() };
    assert_eq!(
        raw!(rig, nvmlDeviceGetGpuInstanceProfileInfoV(device, entry.enumeration, &mut info)),
        2,
        "a structure without a version"
    );
    info.version = version::<nvmlGpuInstanceProfileInfo_v2_t>(2);
    assert_eq!(
        raw!(rig, nvmlDeviceGetGpuInstanceProfileInfoV(device, entry.enumeration, &mut info)),
        0
    );
    assert_eq!(text(&info.name), format!("MIG {}", entry.profile.name));
    assert_eq!((info.id, info.memorySizeMB), (plain.id, plain.memorySizeMB));

    // SAFETY: as above.
    let mut newer: nvmlGpuInstanceProfileInfo_v3_t = unsafe { zeroed() };
    newer.version = version::<nvmlGpuInstanceProfileInfo_v3_t>(3);
    let shorter = ptr::from_mut(&mut newer).cast();
    assert_eq!(raw!(rig, nvmlDeviceGetGpuInstanceProfileInfoByIdV(device, plain.id, shorter)), 0);
    assert_eq!((newer.sliceCount, newer.ofaCount), (plain.sliceCount, plain.ofaCount));
    assert_eq!(text(&newer.name), format!("MIG {}", entry.profile.name));
}

fn assert_placements(rig: &Rig, entry: &CatalogProfile) {
    let device = rig.device(0);
    let id = entry.profile.id.0;
    let mut count = 0;
    let none = ptr::null_mut();
    assert_eq!(
        raw!(rig, nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, none, &mut count)),
        0
    );
    let mut placements = vec![nvmlGpuInstancePlacement_t { start: 99, size: 0 }; index(count)];
    let out = placements.as_mut_ptr();
    assert_eq!(
        raw!(rig, nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, id, out, &mut count)),
        0
    );
    let starts: Vec<_> = placements.iter().map(|p| p.start).collect();
    assert_eq!(starts, entry.profile.starts.iter().map(|s| u32::from(*s)).collect::<Vec<_>>());
    assert!(placements.iter().all(|p| p.size == u32::from(entry.profile.memory_slices)));
}

/// Compute profiles belong to an instance, so one is created, filled with each profile in turn, and
/// destroyed.
fn assert_compute_profiles(rig: &Rig, entry: &CatalogProfile) {
    let instance = rig.create(0, entry.profile.id.0, None).unwrap();
    for enumeration in 0..10 {
        // SAFETY: plain numbers, for which zero is a value.
        let mut info: nvmlComputeInstanceProfileInfo_t = unsafe { zeroed() };
        let code = raw!(
            rig,
            nvmlGpuInstanceGetComputeInstanceProfileInfo(instance, enumeration, 0, &mut info)
        );
        match entry.compute.iter().find(|c| c.enumeration == enumeration) {
            None => assert_eq!(code, if enumeration < 9 { 3 } else { 2 }),
            Some(compute) => {
                assert_eq!(code, 0, "{}", compute.name);
                assert_eq!(Some(info.id), compute.id);
                assert_eq!(info.sliceCount, u32::from(compute.compute_slices));
                assert_eq!(info.instanceCount, u32::from(compute.max_instances));
                assert_eq!(info.multiprocessorCount, u32::from(compute.sm.unwrap_or(0)));
                assert_fills(rig, instance, compute);
            }
        }
    }
    assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(instance)), 0);
}

/// As many compute instances as the profile allows fit, and not one more.
fn assert_fills(rig: &Rig, instance: nvmlGpuInstance_t, compute: &ComputeProfile) {
    let id = compute.id.unwrap();
    let mut left = 0;
    let remaining = |left: &mut u32| {
        raw!(rig, nvmlGpuInstanceGetComputeInstanceRemainingCapacity(instance, id, left))
    };
    assert_eq!(remaining(&mut left), 0);
    assert_eq!(left, u32::from(compute.max_instances), "{}", compute.name);

    let made: Vec<_> = (0..left).map(|_| rig.create_compute(instance, id).unwrap()).collect();

    assert_eq!(rig.create_compute(instance, id), Err(23), "{}", compute.name);
    assert_eq!(remaining(&mut left), 0);
    assert_eq!(left, 0);
    for compute in made {
        assert_eq!(raw!(rig, nvmlComputeInstanceDestroy(compute)), 0);
    }
}

#[test]
fn with_mig_off_partition_calls_are_not_supported_and_utilisation_is() {
    let rig = Rig::with(&["h100-80gb-sxm"], &[("TESSERA_SIM_MIG", "off")]);
    let device = rig.device(0);
    let safe = rig.nvml.device_by_index(0).unwrap();
    let (mut number, mut pointer, mut many) = (0, ptr::null_mut(), [ptr::null_mut(); 8]);
    // SAFETY: plain numbers, for which zero is a value.
    let mut info: nvmlGpuInstanceProfileInfo_t = unsafe { zeroed() };
    let list = many.as_mut_ptr();
    let none = ptr::null_mut();

    assert_eq!(safe.mig_mode().unwrap().current, 0);
    assert_eq!(safe.mig_device_count().unwrap(), 0);
    assert!(matches!(safe.mig_device_by_index(0), Err(NvmlError::NotSupported)));
    for code in [
        raw!(rig, nvmlDeviceGetGpuInstanceProfileInfo(device, 0, &mut info)),
        raw!(rig, nvmlDeviceGetGpuInstancePossiblePlacements_v2(device, 19, none, &mut number)),
        raw!(rig, nvmlDeviceGetGpuInstanceRemainingCapacity(device, 19, &mut number)),
        raw!(rig, nvmlDeviceCreateGpuInstance(device, 19, &mut pointer)),
        raw!(rig, nvmlDeviceGetGpuInstances(device, 19, list, &mut number)),
        raw!(rig, nvmlDeviceGetGpuInstanceById(device, 0, &mut pointer)),
    ] {
        assert_eq!(code, 3);
    }
    assert_eq!(safe.utilization_rates().unwrap().gpu, 0);
    let on = Rig::new(&["h100-80gb-sxm"]);
    let on = on.nvml.device_by_index(0).unwrap();
    assert!(matches!(on.utilization_rates(), Err(NvmlError::NotSupported)));
}

#[test]
fn null_pointers_short_buffers_and_foreign_versions_are_refused() {
    let rig = Rig::new(&["a100-40gb"]);
    let device = rig.device(0);
    let mut name = [0; 4];

    assert_eq!(raw!(rig, nvmlDeviceGetCount_v2(ptr::null_mut())), 2);
    assert_eq!(raw!(rig, nvmlDeviceGetName(device, name.as_mut_ptr(), 4)), 7);
    assert_eq!(raw!(rig, nvmlDeviceGetUUID(device, ptr::null_mut(), 80)), 2);
    assert_eq!(raw!(rig, nvmlDeviceCreateGpuInstance(device, 19, ptr::null_mut())), 2);
    let nowhere = ptr::null();
    let mut instance = ptr::null_mut();
    assert_eq!(
        raw!(rig, nvmlDeviceCreateGpuInstanceWithPlacement(device, 19, nowhere, &mut instance)),
        2
    );
    let state = rig.node.read().unwrap();
    assert!(state.gpus[0].instances.is_empty(), "a refused call makes nothing");

    // SAFETY: plain numbers, for which zero is a value.
    let mut memory: nvmlMemory_v2_t = unsafe { zeroed() };
    memory.version = version::<nvmlMemory_v2_t>(1);
    assert_eq!(raw!(rig, nvmlDeviceGetMemoryInfo_v2(device, &mut memory)), 25);
    memory.version = version::<nvmlMemory_v2_t>(2);
    assert_eq!(raw!(rig, nvmlDeviceGetMemoryInfo_v2(device, &mut memory)), 0);
    assert_eq!(memory.free + memory.used + memory.reserved, memory.total);
}

#[test]
fn handles_that_were_never_given_out_are_invalid_arguments() {
    let rig = Rig::new(&["a100-40gb"]);
    let mut name = [0; 96];

    for number in [0, 1, 7, 8, 9, 17, 18, 19, 4096, usize::MAX, usize::MAX - 5] {
        if number == rig.device(0).addr() {
            continue;
        }
        let device: nvmlDevice_t = ptr::without_provenance_mut(number);
        let instance: nvmlGpuInstance_t = ptr::without_provenance_mut(number);
        let compute: nvmlComputeInstance_t = ptr::without_provenance_mut(number);
        assert_eq!(raw!(rig, nvmlDeviceGetName(device, name.as_mut_ptr(), 96)), 2, "{number}");
        assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(instance)), 2, "{number}");
        assert_eq!(raw!(rig, nvmlComputeInstanceDestroy(compute)), 2, "{number}");
    }
}

#[test]
fn nothing_works_before_initialisation_or_after_the_last_shutdown() {
    let rig = Rig::new(&["a30-24gb"]);
    let mut count = 0;

    assert_eq!(raw!(rig, nvmlInit_v2()), 0, "a second initialisation is counted");
    assert_eq!(raw!(rig, nvmlShutdown()), 0);
    assert_eq!(raw!(rig, nvmlDeviceGetCount_v2(&mut count)), 0);
    assert_eq!(raw!(rig, nvmlShutdown()), 0);
    assert_eq!(raw!(rig, nvmlDeviceGetCount_v2(&mut count)), 1);
    assert_eq!(raw!(rig, nvmlShutdown()), 1);
}

#[test]
fn a_node_that_cannot_be_is_refused_at_initialisation() {
    for (gpus, variables) in [
        (&["rtx-pro-5000-48gb@guide-610"][..], &[][..]),
        (&["rtx-pro-4500-32gb"], &[]),
        (&["a100"], &[]),
        (&["a30-24gb"], &[("TESSERA_SIM_MIG", "maybe")]),
        (&["a30-24gb"], &[("TESSERA_SIM_LATENCY", "fast")]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let opened = open(&folder, gpus, variables).map(|_| ());
        assert!(matches!(opened, Err(NvmlError::DriverNotLoaded)), "{gpus:?}: {opened:?}");
    }
    let rig = Rig::new(&["a30-24gb"]);
    let Rig { nvml, folder, .. } = rig;
    nvml.shutdown().unwrap();
    assert!(open(&folder, &["a100-40gb"], &[]).is_err(), "the folder holds another node");
}

#[test]
fn every_code_has_its_name() {
    let rig = Rig::new(&["a30-24gb"]);
    let name = |code| {
        let function = rig.nvml.lib().nvmlErrorString.as_ref().unwrap();
        // SAFETY: takes a number and returns a text that lives as long as the library.
        let name = unsafe { CStr::from_ptr(function(code)) };
        name.to_str().unwrap().to_owned()
    };

    assert_eq!(name(19), "In use by another client");
    assert_eq!(name(23), "Insufficient Resources");
    let known: std::collections::BTreeSet<_> = (0..=30).map(name).collect();
    assert_eq!(known.len(), 31);
    assert_eq!(name(12_345), "Unknown Error");
}

#[test]
fn a_gpu_that_is_in_use_says_by_whom_in_the_wrappers_words() {
    let rig = Rig::with(&["a30-24gb"], &[("TESSERA_SIM_MIG", "off")]);
    let device = rig.nvml.device_by_index(0).unwrap();
    let client =
        tessera_stand_in::client::DeviceClient::open(&rig.node, &device.uuid().unwrap()).unwrap();
    client.allocate(1 << 30).unwrap();
    client.set_load(50).unwrap();

    let listed = device.running_compute_processes().unwrap();

    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].pid, std::process::id());
    assert_eq!(listed[0].used_gpu_memory, UsedGpuMemory::Used(1 << 30));
    assert_eq!(listed[0].gpu_instance_id, None);
    assert_eq!(device.memory_info().unwrap().used, 1 << 30);
    assert_eq!(device.utilization_rates().unwrap().gpu, 50);
    // Half of four slices at 17 W each, above 32 W.
    assert_eq!(device.power_usage().unwrap(), 66_000);
}

fn version<T>(number: u32) -> u32 {
    u32::try_from(size_of::<T>()).unwrap() | number << 24
}

fn text(array: &[std::ffi::c_char]) -> String {
    let bytes = array.iter().map(|c| c.cast_unsigned()).take_while(|c| *c != 0).collect();
    String::from_utf8(bytes).unwrap()
}
