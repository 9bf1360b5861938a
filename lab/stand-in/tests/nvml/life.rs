//! Instances from creation to destruction.

use std::mem::zeroed;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::*;

use crate::rig::{Rig, as_child, index, raw};

#[test]
fn a_slice_lives_from_creation_to_destruction_and_its_handles_die_with_it() {
    let rig = Rig::new(&["a100-40gb"]);
    let parent = rig.nvml.device_by_index(0).unwrap();
    let slice = rig.slice(0, "3g.20gb");

    let device = rig.nvml.device_by_uuid(slice.uuid.as_str()).unwrap();
    assert_eq!(device.name().unwrap(), "NVIDIA A100-SXM4-40GB MIG 3g.20gb");
    assert!(device.mig_is_mig_device_handle().unwrap());
    assert_eq!(device.mig_parent_device().unwrap().uuid().unwrap(), parent.uuid().unwrap());
    assert_eq!(device.memory_info().unwrap().total, 19_968 << 20);
    let attributes = device.attributes().unwrap();
    assert_eq!(attributes.multiprocessor_count, 42);
    assert_eq!(attributes.gpu_instance_slice_count, 3);
    assert_eq!(attributes.memory_size_mb, 19_968);
    assert!(matches!(device.power_usage(), Err(NvmlError::NotSupported)));

    assert_eq!(
        raw!(rig, nvmlGpuInstanceDestroy(slice.instance)),
        19,
        "it holds a compute instance"
    );
    assert_eq!(rig.destroy(&slice), 0);
    assert_eq!(raw!(rig, nvmlComputeInstanceDestroy(slice.compute)), 2);
    assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(slice.instance)), 2);
    assert!(matches!(device.uuid(), Err(NvmlError::InvalidArg)));
    assert!(matches!(rig.nvml.device_by_uuid(slice.uuid.as_str()), Err(NvmlError::NotFound)));
}

#[test]
fn an_instance_in_the_same_place_is_another_instance() {
    let rig = Rig::new(&["a30-24gb"]);
    let first = rig.slice(0, "4g.24gb");
    assert_eq!(rig.destroy(&first), 0);

    let second = rig.slice(0, "4g.24gb");

    assert_ne!(first.uuid, second.uuid);
    assert_ne!(first.instance, second.instance);
    assert_eq!(rig.destroy(&first), 2, "the first handles name nothing any more");
    assert_eq!(rig.destroy(&second), 0);
}

#[test]
fn the_instances_that_stand_can_be_found_by_profile_by_id_and_as_mig_devices() {
    let rig = Rig::new(&["a100-40gb"]);
    let device = rig.device(0);
    let slices = [rig.slice(0, "1g.5gb"), rig.slice(0, "1g.5gb"), rig.slice(0, "2g.10gb")];

    let mut listed = [ptr::null_mut(); 7];
    let mut count = 0;
    let list = listed.as_mut_ptr();
    assert_eq!(raw!(rig, nvmlDeviceGetGpuInstances(device, 19, list, &mut count)), 0);
    assert_eq!(listed[..index(count)], [slices[0].instance, slices[1].instance]);

    // SAFETY: plain numbers and handles, for which zero is a value.
    let mut info: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
    assert_eq!(raw!(rig, nvmlGpuInstanceGetInfo(slices[2].instance, &mut info)), 0);
    assert_eq!((info.profileId, info.placement.size, info.id), (14, 2, 3));
    let mut by_id = ptr::null_mut();
    assert_eq!(raw!(rig, nvmlDeviceGetGpuInstanceById(device, info.id, &mut by_id)), 0);
    assert_eq!(by_id, slices[2].instance);
    assert_eq!(raw!(rig, nvmlDeviceGetGpuInstanceById(device, 6, &mut by_id)), 6);

    // SAFETY: as above.
    let mut compute: nvmlComputeInstanceInfo_t = unsafe { zeroed() };
    assert_eq!(raw!(rig, nvmlComputeInstanceGetInfo_v2(slices[2].compute, &mut compute)), 0);
    assert_eq!((compute.gpuInstance, compute.device), (slices[2].instance, device));
    assert_eq!((compute.id, compute.placement.start, compute.placement.size), (0, 0, 2));

    let parent = rig.nvml.device_by_index(0).unwrap();
    let at = |index| parent.mig_device_by_index(index).and_then(|d| d.uuid());
    assert_eq!(parent.mig_device_count().unwrap(), 7, "the most that there can be");
    for (index, slice) in (0..).zip(&slices) {
        assert_eq!(at(index).unwrap(), slice.uuid);
    }
    assert_eq!(rig.destroy(&slices[0]), 0);
    assert!(matches!(at(0), Err(NvmlError::NotFound)), "a hole, not a shift");
    assert_eq!(at(1).unwrap(), slices[1].uuid);
    assert!(matches!(at(7), Err(NvmlError::InvalidArg)));
}

#[test]
fn instance_numbers_tell_nothing_about_slots() {
    let rig = Rig::new(&["a100-40gb"]);
    let number = |start| {
        let instance = rig.create(0, 19, Some((start, 1))).unwrap();
        // SAFETY: plain numbers and handles, for which zero is a value.
        let mut info: nvmlGpuInstanceInfo_t = unsafe { zeroed() };
        assert_eq!(raw!(rig, nvmlGpuInstanceGetInfo(instance, &mut info)), 0);
        info.id
    };

    assert_eq!([6, 0, 3].map(number), [7, 8, 9]);
}

#[test]
fn compute_instances_share_an_instance_without_overlap() {
    let rig = Rig::new(&["a100-40gb"]);
    let instance = rig.create(0, 0, None).unwrap();
    let place = |profile, start, size| {
        let placement = nvmlComputeInstancePlacement_t { start, size };
        let mut compute = ptr::null_mut();
        let code = raw!(
            rig,
            nvmlGpuInstanceCreateComputeInstanceWithPlacement(
                instance,
                profile,
                &placement,
                &mut compute
            )
        );
        (code, compute)
    };

    assert_eq!(place(2, 4, 3).0, 0, "3c at 4");
    assert_eq!(place(2, 2, 3).0, 2, "no 3c starts at 2");
    assert_eq!(place(3, 0, 3).0, 2, "a 4c is 4 slices");
    assert_eq!(place(0, 5, 1).0, 23, "slice 5 is taken");
    assert_eq!(place(1, 2, 2).0, 0, "2c at 2");
    assert_eq!(rig.create_compute(instance, 3), Err(23), "4c needs 0 to 3");
    assert_eq!(rig.create_compute(instance, 9), Err(3), "no such profile");
    let last = rig.create_compute(instance, 1).unwrap();

    let state = rig.node.read().unwrap();
    let starts: Vec<_> = state.gpus[0].instances[0].compute.iter().map(|c| c.start).collect();
    assert_eq!(starts, [4, 2, 0]);
    assert_eq!(raw!(rig, nvmlComputeInstanceDestroy(last)), 0);
    let mut found = ptr::null_mut();
    assert_eq!(raw!(rig, nvmlGpuInstanceGetComputeInstanceById(instance, 1, &mut found)), 0);
    assert_eq!(raw!(rig, nvmlGpuInstanceGetComputeInstanceById(instance, 2, &mut found)), 6);
}

#[test]
fn remaining_capacity_counts_what_still_fits() {
    let rig = Rig::new(&["a100-40gb"]);
    let capacity = |profile| {
        let mut count = 0;
        let device = rig.device(0);
        assert_eq!(
            raw!(rig, nvmlDeviceGetGpuInstanceRemainingCapacity(device, profile, &mut count)),
            0
        );
        count
    };
    assert_eq!([19, 20, 15, 14, 9, 5, 0].map(capacity), [7, 1, 4, 3, 2, 1, 1]);

    rig.create(0, 9, Some((4, 4))).unwrap();

    assert_eq!([19, 20, 15, 14, 9, 5, 0].map(capacity), [4, 1, 2, 2, 1, 1, 0]);
}

#[test]
fn mig_mode_changes_on_an_idle_gpu_only() {
    let rig = Rig::new(&["a100-40gb", "h100-80gb-sxm"]);
    let slices = [rig.slice(0, "1g.5gb"), rig.slice(1, "1g.10gb")];
    let gpu = |index| rig.nvml.device_by_index(index).unwrap();
    let set = |index, on| gpu(index).set_mig_mode(on).unwrap();
    let mode = |index| {
        let mode = gpu(index).mig_mode().unwrap();
        (mode.current, mode.pending)
    };

    assert_eq!([set(0, false), set(1, false)], [19, 19]);
    assert_eq!(mode(0), (1, 0), "a model that resets for it keeps the wish");
    assert_eq!(mode(1), (1, 1));
    assert_eq!(set(0, true), 0);
    assert_eq!(mode(0), (1, 1));

    slices.iter().for_each(|slice| assert_eq!(rig.destroy(slice), 0));
    assert_eq!([set(0, false), set(1, false)], [0, 0]);
    assert_eq!([mode(0), mode(1)], [(0, 0), (0, 0)]);
}

#[test]
fn a_reset_from_outside_clears_the_gpu_and_brings_the_pending_mode() {
    let rig = Rig::new(&["a100-40gb"]);
    let slice = rig.slice(0, "7g.40gb");
    let gpu = rig.nvml.device_by_index(0).unwrap();
    assert_eq!(gpu.set_mig_mode(false).unwrap(), 19);

    rig.node.change(|state| state.reset(0)).unwrap().unwrap();

    assert_eq!(gpu.mig_mode().unwrap().current, 0);
    assert_eq!(rig.destroy(&slice), 2);
}

#[test]
fn a_reboot_takes_the_instances_and_on_newer_models_the_mode() {
    let rig = Rig::new(&["a100-40gb", "h100-80gb-sxm"]);
    rig.slice(0, "1g.5gb");
    rig.slice(1, "1g.10gb");

    rig.node.change(tessera_stand_in::device::DeviceState::reboot).unwrap();

    let mode = |index| rig.nvml.device_by_index(index).unwrap().mig_mode().unwrap().current;
    assert_eq!([mode(0), mode(1)], [1, 0]);
    assert!(rig.node.read().unwrap().gpus.iter().all(|gpu| gpu.instances.is_empty()));
}

#[test]
fn what_one_process_made_another_finds() {
    let rig = Rig::new(&["a100-40gb"]);

    let child = rig.child("life::as_child_makes_a_slice").output().unwrap();

    assert!(child.status.success(), "{child:?}");
    let device = rig.nvml.device_by_index(0).unwrap().mig_device_by_index(0).unwrap();
    let uuid = device.uuid().unwrap();
    assert!(String::from_utf8(child.stdout).unwrap().contains(&uuid));
}

#[test]
fn as_child_makes_a_slice() {
    let Some(nvml) = as_child() else { return };
    let device = nvml.device_by_index(0).unwrap();
    let mut instance = ptr::null_mut();
    let mut compute = ptr::null_mut();
    let create = nvml.lib().nvmlDeviceCreateGpuInstance.as_ref().unwrap();
    let create_compute = nvml.lib().nvmlGpuInstanceCreateComputeInstance.as_ref().unwrap();
    // SAFETY: the arguments are of the types that the bindings name.
    unsafe {
        assert_eq!(create(device.handle(), 9, &mut instance), 0);
        assert_eq!(create_compute(instance, 2, &mut compute), 0);
    }
    println!("{}", device.mig_device_by_index(0).unwrap().uuid().unwrap());
}

#[test]
fn operations_take_their_time_one_after_another_while_the_rest_goes_on() {
    let rig = Rig::with(&["a100-40gb", "a30-24gb"], &[("TESSERA_SIM_LATENCY", "5")]);
    // Of the study's 110 ms for a one-slice instance three quarters are the GPU instance's;
    // five times that leaves space for a busy machine.
    let one = Duration::from_micros(82_500) * 5;
    let began = Instant::now();
    let timed = |gpu, profile| {
        rig.create(gpu, profile, None).unwrap();
        began.elapsed()
    };

    let (first, second, other_gpu, read) = thread::scope(|scope| {
        let first = scope.spawn(|| timed(0, 19));
        let second = scope.spawn(|| timed(0, 19));
        let other_gpu = scope.spawn(|| timed(1, 14));
        thread::sleep(Duration::from_millis(20));
        let before = Instant::now();
        assert_eq!(rig.nvml.device_by_index(0).unwrap().mig_mode().unwrap().current, 1);
        let read = before.elapsed();
        (first.join().unwrap(), second.join().unwrap(), other_gpu.join().unwrap(), read)
    });

    assert!(first.min(second) >= one);
    assert!(first.max(second) >= one * 2, "one GPU does one thing at a time");
    assert!(other_gpu >= one && other_gpu < first.max(second), "another GPU doesn't wait");
    assert!(read < one / 2, "{read:?}");
    let refused = Instant::now();
    assert_eq!(rig.create(0, 0, None), Err(23));
    assert!(refused.elapsed() < one / 2, "what is refused costs nothing");
}
