//! Processes that are killed at any moment.

use std::process::Stdio;
use std::ptr;
use std::thread;
use std::time::Duration;

use crate::rig::{Rig, as_child, raw};

/// Kills enough to hit writes, renames and both halves of operations many times over.
const KILLS: u32 = 60;

#[test]
fn a_process_killed_at_any_moment_leaves_a_legal_readable_node() {
    let rig = Rig::new(&["a100-40gb"]);
    let geometry = rig.model(0).geometry();
    let mut changes = 0;

    for kill in 0..KILLS {
        let before = rig.node.read().unwrap();
        let mut workers = [0, 1].map(|_| {
            rig.child("crashes::as_child_creates_and_destroys_for_ever")
                .env("TESSERA_SIM_LATENCY", "0.005")
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap()
        });
        // Spreads the kills over start-up and the loop.
        thread::sleep(Duration::from_micros(10_000 + u64::from(kill % 20) * 1_700));
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
        changes += u32::from(state.gpus != before.gpus);
        if kill % 7 == 0 {
            sweep(&rig);
        }
    }
    assert!(changes > KILLS / 4, "only {changes} rounds changed anything");
}

/// What killed processes left behind can be destroyed like anything else.
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
fn as_child_creates_and_destroys_for_ever() {
    let Some(nvml) = as_child() else { return };
    let device = nvml.device_by_index(0).unwrap();
    let create = nvml.lib().nvmlDeviceCreateGpuInstance.as_ref().unwrap();
    let create_compute = nvml.lib().nvmlGpuInstanceCreateComputeInstance.as_ref().unwrap();
    let destroy_compute = nvml.lib().nvmlComputeInstanceDestroy.as_ref().unwrap();
    let destroy = nvml.lib().nvmlGpuInstanceDestroy.as_ref().unwrap();
    loop {
        for (profile, compute_profile) in [(19, 0), (14, 1), (9, 2)] {
            let (mut instance, mut compute) = (ptr::null_mut(), ptr::null_mut());
            // SAFETY: the arguments are of the types that the bindings ask for; refusals are
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
