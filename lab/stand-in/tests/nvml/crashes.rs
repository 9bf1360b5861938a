//! Processes that are killed at any moment.

use std::process::Stdio;
use std::ptr;
use std::thread;
use std::time::{Duration, Instant};

use tessera_stand_in::device::DeviceState;

use crate::rig::{Rig, as_child, raw};

/// Kills enough to hit writes, renames and both halves of operations many times over.
const KILLS: u32 = 60;

#[test]
fn a_process_killed_at_any_moment_leaves_a_legal_readable_node() {
    let rig = Rig::new(&["a100-40gb"]);
    let geometry = rig.model(0).geometry();

    for kill in 0..KILLS {
        let before = rig.node.read().unwrap();
        let mut workers = [0, 1].map(|_| {
            rig.child("crashes::as_child_creates_and_destroys_forever")
                .env("TESSERA_SIM_LATENCY", "0.005")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        });
        // Every third kill strikes at start-up, the others somewhere in the loop.
        if kill % 3 != 0 {
            wait_for_a_write(&rig, &before);
        }
        thread::sleep(Duration::from_micros(u64::from(kill) * 211 % 7_000));
        for worker in &mut workers {
            worker.kill().unwrap();
            worker.wait().unwrap();
        }

        let state = rig.node.read().unwrap();
        let slots: Vec<_> = state.gpus[0].instances.iter().map(|i| i.slot).collect();
        assert_eq!(geometry.check(&slots), Ok(()), "{slots:?}");
        let mut numbers: Vec<_> = state.gpus[0].instances.iter().map(|i| i.id).collect();
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), slots.len(), "an instance's number is its own");
        // A full GPU would leave the next round nothing to do.
        if state.remaining_capacity(0, 19) == Ok(0) {
            sweep(&rig);
        }
    }
}

/// Each write adds up the energy, so each makes the state another one.
fn wait_for_a_write(rig: &Rig, before: &DeviceState) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while rig.node.read().unwrap() == *before {
        assert!(Instant::now() < deadline, "the children do nothing");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Checks that what killed processes left behind can be destroyed like anything else.
fn sweep(rig: &Rig) {
    let device = rig.device(0);
    for instance in &rig.node.read().unwrap().gpus[0].instances {
        let mut handle = ptr::null_mut();
        assert_eq!(raw!(rig, nvmlDeviceGetGpuInstanceById(device, instance.id, &mut handle)), 0);
        for compute in &instance.compute {
            let mut inner = ptr::null_mut();
            let id = compute.id;
            assert_eq!(raw!(rig, nvmlGpuInstanceGetComputeInstanceById(handle, id, &mut inner)), 0);
            assert_eq!(raw!(rig, nvmlComputeInstanceDestroy(inner)), 0);
        }
        assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(handle)), 0);
    }
}

#[test]
fn as_child_creates_and_destroys_forever() {
    let Some(nvml) = as_child() else { return };
    let device = nvml.device_by_index(0).unwrap();
    let create = nvml.lib().nvmlDeviceCreateGpuInstance.as_ref().unwrap();
    let create_compute = nvml.lib().nvmlGpuInstanceCreateComputeInstance.as_ref().unwrap();
    let destroy_compute = nvml.lib().nvmlComputeInstanceDestroy.as_ref().unwrap();
    let destroy = nvml.lib().nvmlGpuInstanceDestroy.as_ref().unwrap();
    loop {
        for (profile, compute_profile) in [(19, 0), (14, 1), (9, 2)] {
            let (mut instance, mut compute) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the arguments are of the types that the bindings name; refusals are
            // expected, since another process fills the same GPU.
            unsafe {
                if create(device.handle(), profile, &mut instance) != 0 {
                    continue;
                }
                if create_compute(instance, compute_profile, &mut compute) == 0 {
                    destroy_compute(compute);
                }
                destroy(instance);
            }
        }
    }
}
