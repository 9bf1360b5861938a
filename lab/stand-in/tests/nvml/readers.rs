//! The guarantees of any NVML for programs that only read: the stand-in, and a driver's where one
//! is at hand (`TESSERA_NVML=/path/to/libnvidia-ml.so.1`). It keeps the stand-in honest.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::mem::zeroed;
use std::ptr;

use nvml_wrapper::{Device, Nvml};
use nvml_wrapper_sys::bindings::{nvmlGpuInstancePlacement_t, nvmlGpuInstanceProfileInfo_t};

use crate::rig::{Rig, every_model, index};

#[test]
fn the_stand_in_keeps_what_readers_rely_on() {
    for (key, _) in every_model() {
        assert_readable(&Rig::new(&[key, key]).nvml);
        assert_readable(&Rig::with(&[key], &[("TESSERA_SIM_MIG", "off")]).nvml);
    }
}

#[test]
fn a_driver_at_hand_keeps_what_readers_rely_on() {
    let Some(library) = std::env::var_os("TESSERA_NVML") else { return };
    assert_readable(&Nvml::builder().lib_path(OsStr::new(&library)).init().unwrap());
}

fn assert_readable(nvml: &Nvml) {
    let version = nvml.sys_driver_version().unwrap();
    assert!(version.split('.').all(|part| part.parse::<u32>().is_ok()), "{version}");
    let mut uuids = BTreeSet::new();
    for index in 0..nvml.device_count().unwrap() {
        let device = nvml.device_by_index(index).unwrap();
        let uuid = device.uuid().unwrap();
        assert!(uuid.starts_with("GPU-"), "{uuid}");
        assert_eq!(nvml.device_by_uuid(uuid.as_str()).unwrap().index().unwrap(), index);
        assert!(uuids.insert(uuid));
        assert!(device.name().unwrap().starts_with("NVIDIA"));
        let bus = device.pci_info().unwrap().bus_id;
        assert_eq!(nvml.device_by_pci_bus_id(bus.as_str()).unwrap().index().unwrap(), index);
        let memory = device.memory_info().unwrap();
        assert!(memory.total > 0 && memory.free + memory.used <= memory.total);
        assert!(!device.mig_is_mig_device_handle().unwrap());
        match device.mig_mode() {
            Ok(mode) if mode.current == 1 => assert_partitionable(nvml, &device),
            Ok(_) => assert_eq!(first_codes(nvml, &device), BTreeSet::from([3])),
            Err(_) => {}
        }
    }
}

/// Returns what the calls that need MIG mode answer for the profiles that all headers know.
fn first_codes(nvml: &Nvml, device: &Device<'_>) -> BTreeSet<u32> {
    (0..5).map(|enumeration| profile(nvml, device, enumeration).0).collect()
}

fn assert_partitionable(nvml: &Nvml, device: &Device<'_>) {
    let mut ids = BTreeSet::new();
    for enumeration in 0..17 {
        let (code, info) = profile(nvml, device, enumeration);
        assert!(matches!(code, 0 | 2 | 3), "{enumeration} answers {code}");
        if code != 0 {
            continue;
        }
        assert!(ids.insert(info.id), "profile {} is listed twice", info.id);
        assert!(info.instanceCount >= 1 && info.memorySizeMB > 0);
        let placements = placements(nvml, device, info.id);
        assert!(placements.len() >= index(info.instanceCount));
        assert!(placements.iter().all(|p| p.size == placements[0].size && p.size > 0));
        let starts: BTreeSet<_> = placements.iter().map(|p| p.start).collect();
        assert_eq!(starts.len(), placements.len());
    }
    assert!(!ids.is_empty());
}

fn profile(
    nvml: &Nvml,
    device: &Device<'_>,
    enumeration: u32,
) -> (u32, nvmlGpuInstanceProfileInfo_t) {
    let request = nvml.lib().nvmlDeviceGetGpuInstanceProfileInfo.as_ref().unwrap();
    // SAFETY: plain numbers, for which zero is a value; the handle is the library's own.
    unsafe {
        let mut info = zeroed();
        (request(device.handle(), enumeration, &mut info), info)
    }
}

fn placements(nvml: &Nvml, device: &Device<'_>, id: u32) -> Vec<nvmlGpuInstancePlacement_t> {
    let request = nvml.lib().nvmlDeviceGetGpuInstancePossiblePlacements_v2.as_ref().unwrap();
    let mut count = 0;
    // SAFETY: the second call's array is as long as the first call returned.
    unsafe {
        assert_eq!(request(device.handle(), id, ptr::null_mut(), &mut count), 0);
        let nothing = nvmlGpuInstancePlacement_t { start: 0, size: 0 };
        let mut placements = vec![nothing; index(count)];
        assert_eq!(request(device.handle(), id, placements.as_mut_ptr(), &mut count), 0);
        placements
    }
}
