//! Processes that use slices.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper_sys::bindings::nvmlProcessInfo_t;
use tessera_stand_in::client::{DeviceClient, DeviceClientError};
use tessera_stand_in::device::ClaimKind;

use crate::rig::{Rig, forget_other_rigs, raw};

const EMPTY: nvmlProcessInfo_t =
    nvmlProcessInfo_t { pid: 0, usedGpuMemory: 0, gpuInstanceId: 0, computeInstanceId: 0 };

/// A client program that is killed when the test ends.
pub struct Holder(Child);

impl Holder {
    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    /// Starts the program and waits until it holds the slice.
    pub fn start(rig: &Rig, uuid: &str, arguments: &[&str]) -> (Self, Vec<String>) {
        let mut child = command(rig, uuid, arguments).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let seen = lines.take(3).map(Result::unwrap).collect();
        (Self(child), seen)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn command(rig: &Rig, uuid: &str, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tessera-sim-client"));
    forget_other_rigs(&mut command);
    command
        .args(arguments)
        .env("TESSERA_SIM_NODE", rig.folder.path().join("node"))
        .env("CUDA_VISIBLE_DEVICES", uuid);
    command
}

#[test]
fn a_slice_in_use_is_not_destroyed_until_its_process_is_gone() {
    let rig = Rig::new(&["a100-40gb"]);
    let slice = rig.slice(0, "2g.10gb");
    let (mut holder, seen) = Holder::start(&rig, &slice.uuid, &["--memory-bytes", "1000000"]);
    assert_eq!(
        seen,
        ["NVIDIA A100-SXM4-40GB MIG 2g.10gb", "memory_bytes 10334765056", "sm_count 28"]
    );

    assert_eq!(raw!(rig, nvmlComputeInstanceDestroy(slice.compute)), 19);

    let device = rig.nvml.device_by_uuid(slice.uuid.as_str()).unwrap();
    for listed in [
        device.running_compute_processes().unwrap(),
        rig.nvml.device_by_index(0).unwrap().running_compute_processes().unwrap(),
    ] {
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].pid, holder.0.id());
        assert_eq!(listed[0].used_gpu_memory, UsedGpuMemory::Used(1_000_000));
        assert_eq!(listed[0].gpu_instance_id, Some(3));
        assert_eq!(listed[0].compute_instance_id, Some(0));
    }
    assert_eq!(device.memory_info().unwrap().used, 1_000_000);

    // Killed and not yet waited for: the claim goes with the process, not with its zombie.
    holder.0.kill().unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    while !device.running_compute_processes().unwrap().is_empty() {
        assert!(Instant::now() < deadline, "the claim outlives the process");
    }
    assert_eq!(device.memory_info().unwrap().used, 0);
    assert_eq!(rig.destroy(&slice), 0);
}

#[test]
fn a_client_goes_when_its_time_is_up() {
    let rig = Rig::new(&["a30-24gb"]);
    let slice = rig.slice(0, "1g.6gb");

    let output = command(&rig, &slice.uuid, &["--seconds", "0.05"]).output().unwrap();

    assert!(output.status.success(), "{output:?}");
    assert_eq!(rig.destroy(&slice), 0);
}

#[test]
fn a_slice_that_does_not_exist_is_refused_with_its_name() {
    let rig = Rig::new(&["a30-24gb"]);
    let slice = rig.slice(0, "1g.6gb");
    assert_eq!(rig.destroy(&slice), 0);

    let output = command(&rig, &slice.uuid, &[]).output().unwrap();

    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains(&slice.uuid), "{said}");
}

#[test]
fn a_gpu_in_mig_mode_cannot_be_used_as_a_whole() {
    let rig = Rig::new(&["a30-24gb"]);
    let uuid = rig.nvml.device_by_index(0).unwrap().uuid().unwrap();

    assert!(matches!(
        DeviceClient::open(&rig.node, &uuid),
        Err(DeviceClientError::InMigMode { .. })
    ));
}

#[test]
fn memory_runs_out_per_instance_and_comes_back() {
    let rig = Rig::new(&["a30-24gb"]);
    let slice = rig.slice(0, "1g.6gb");
    let neighbour = rig.slice(0, "1g.6gb");
    let all = 5_952 << 20;
    let client = DeviceClient::open(&rig.node, &slice.uuid).unwrap();
    let other = DeviceClient::open(&rig.node, &slice.uuid).unwrap();
    client.allocate(all - 10).unwrap();

    assert!(
        matches!(other.allocate(11), Err(DeviceClientError::OutOfMemory(oom)) if oom.free_bytes == 10)
    );
    other.allocate(10).unwrap();
    assert_eq!(client.memory().unwrap().free_bytes, 0);
    DeviceClient::open(&rig.node, &neighbour.uuid).unwrap().allocate(all).unwrap();

    client.free(100).unwrap();
    other.allocate(100).unwrap();
    drop(client);
    assert_eq!(other.memory().unwrap().used_bytes, 110);
}

#[test]
fn mps_clients_are_listed_apart() {
    let rig = Rig::new(&["a100-40gb"]);
    let slice = rig.slice(0, "3g.20gb");
    let client = DeviceClient::open_as(&rig.node, &slice.uuid, ClaimKind::MpsClient).unwrap();
    let device = rig.nvml.device_by_uuid(slice.uuid.as_str()).unwrap();

    assert_eq!(device.running_compute_processes().unwrap().len(), 0);
    let mut listed = [EMPTY; 2];
    let mut count = 2;
    let list = listed.as_mut_ptr();
    // SAFETY: the handle is only passed back to the library it came from.
    let handle = unsafe { device.handle() };
    assert_eq!(raw!(rig, nvmlDeviceGetMPSComputeRunningProcesses_v3(handle, &mut count, list)), 0);
    assert_eq!((count, listed[0].pid), (1, std::process::id()));
    count = 0;
    assert_eq!(raw!(rig, nvmlDeviceGetMPSComputeRunningProcesses_v3(handle, &mut count, list)), 7);
    assert_eq!(count, 1, "the size that would do");
    assert_eq!(raw!(rig, nvmlComputeInstanceDestroy(slice.compute)), 19);

    drop(client);
    assert_eq!(rig.destroy(&slice), 0);
}

#[test]
fn a_monitor_is_in_no_list_and_yet_in_the_way() {
    let rig = Rig::new(&["a100-40gb"]);
    let slice = rig.slice(0, "3g.20gb");
    let (holder, _) = Holder::start(&rig, &slice.uuid, &["--kind", "monitor"]);
    let device = rig.nvml.device_by_uuid(slice.uuid.as_str()).unwrap();

    assert!(device.running_compute_processes().unwrap().is_empty());
    assert_eq!(raw!(rig, nvmlComputeInstanceDestroy(slice.compute)), 19);

    drop(holder);
    assert_eq!(rig.destroy(&slice), 0);
}

#[test]
fn load_draws_power_and_the_energy_of_a_killed_client_stays_counted() {
    let rig = Rig::new(&["a30-24gb"]);
    let slice = rig.slice(0, "2g.12gb");
    let gpu = rig.nvml.device_by_index(0).unwrap();
    let (mut holder, _) = Holder::start(&rig, &slice.uuid, &["--load-percent", "100"]);
    // Two busy slices at 17 W each, above 32 W.
    assert_eq!(gpu.power_usage().unwrap(), 66_000);

    std::thread::sleep(Duration::from_millis(200));
    let before = gpu.total_energy_consumption().unwrap();
    holder.0.kill().unwrap();
    holder.0.wait().unwrap();
    let after = gpu.total_energy_consumption().unwrap();

    assert!(after >= before, "{before} to {after} mJ");
    assert_eq!(gpu.power_usage().unwrap(), 32_000);
}
