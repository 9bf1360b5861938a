//! Faults on demand, seen through NVML.

use std::process::Stdio;
use std::time::{Duration, Instant};

use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::*;

use crate::rig::{Rig, as_child, open, raw};

#[test]
fn the_nth_creation_fails_with_the_code_and_makes_nothing() {
    let rig = Rig::new(&["a100-40gb"]);
    rig.node.set_faults("call=nvmlDeviceCreateGpuInstanceWithPlacement nth=2 code=23").unwrap();

    assert!(rig.create(0, 19, Some((0, 1))).is_ok());
    assert_eq!(rig.create(0, 19, Some((1, 1))), Err(23));
    assert!(rig.create(0, 19, Some((2, 1))).is_ok());

    assert_eq!(rig.node.read().unwrap().gpus[0].instances.len(), 2);
}

#[test]
fn a_fault_holds_for_so_many_calls_over_all_processes() {
    let rig = Rig::new(&["a30-24gb"]);
    rig.node.set_faults("call=nvmlDeviceGetName code=999 times=3").unwrap();
    let gpu = rig.nvml.device_by_index(0).unwrap();

    assert!(gpu.name().is_err());
    let child = rig.child("injected_faults::as_child_asks_for_the_name").output().unwrap();
    assert!(child.status.success(), "{child:?}");
    assert!(gpu.name().is_err());
    assert!(gpu.name().is_ok());
}

#[test]
fn as_child_asks_for_the_name() {
    let Some(nvml) = as_child() else { return };
    assert!(matches!(nvml.device_by_index(0).unwrap().name(), Err(NvmlError::Unknown)));
}

#[test]
fn faults_of_the_environment_belong_to_one_process() {
    let rig = Rig::with(&["a30-24gb"], &[("TESSERA_SIM_FAULTS", "call=nvmlDeviceGetName code=4")]);
    let gpu = rig.nvml.device_by_index(0).unwrap();
    assert!(matches!(gpu.name(), Err(NvmlError::NoPermission)));

    let child = rig.child("injected_faults::as_child_asks_for_the_name").output().unwrap();
    assert!(!child.status.success(), "the other process is not told to fail");
}

#[test]
fn a_lost_gpu_answers_nothing_else_while_its_neighbour_works() {
    let rig = Rig::new(&["a100-40gb", "a30-24gb"]);
    let slice = rig.slice(0, "1g.5gb");
    let gpu = rig.nvml.device_by_index(0).unwrap();
    rig.node.set_faults("gpu=0 lost").unwrap();

    assert!(matches!(gpu.uuid(), Err(NvmlError::GpuLost)));
    assert!(matches!(rig.nvml.device_by_index(0), Err(NvmlError::GpuLost)));
    assert!(matches!(rig.nvml.device_by_uuid(slice.uuid.as_str()), Err(NvmlError::GpuLost)));
    assert_eq!(rig.destroy(&slice), 15);
    assert_eq!(rig.nvml.device_count().unwrap(), 2);
    assert!(rig.nvml.device_by_index(1).unwrap().name().is_ok());

    rig.node.set_faults("").unwrap();
    assert_eq!(rig.destroy(&slice), 0);
}

#[test]
fn a_call_that_hangs_holds_up_nobody_else() {
    let rig = Rig::new(&["a100-40gb"]);
    rig.node.set_faults("call=nvmlDeviceCreateGpuInstance nth=1 hang").unwrap();
    let mut child = rig
        .child("injected_faults::as_child_creates_an_instance")
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("the child is in the call", || {
        std::fs::read_to_string(rig.folder.path().join("node/fault-counts.json")).is_ok()
    });

    let began = Instant::now();
    assert!(rig.create(0, 19, None).is_ok());
    assert!(began.elapsed() < Duration::from_secs(5));
    std::thread::sleep(Duration::from_millis(100));
    assert!(child.try_wait().unwrap().is_none(), "the child still hangs");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(rig.node.read().unwrap().gpus[0].instances.len(), 1);
}

#[test]
fn a_crash_strikes_the_first_process_and_spares_its_successor() {
    let rig = Rig::new(&["a100-40gb"]);
    rig.node.set_faults("call=nvmlDeviceCreateGpuInstance nth=1 crash").unwrap();
    let run = || {
        let mut child = rig.child("injected_faults::as_child_creates_an_instance");
        child.stdout(Stdio::null()).stderr(Stdio::null()).status().unwrap().success()
    };

    assert!(!run());
    assert!(run());
    assert_eq!(rig.node.read().unwrap().gpus[0].instances.len(), 1);
}

#[test]
fn as_child_creates_an_instance() {
    let Some(nvml) = as_child() else { return };
    let create = nvml.lib().nvmlDeviceCreateGpuInstance.as_ref().unwrap();
    let mut instance = std::ptr::null_mut();
    // SAFETY: the arguments are of the types that the binding names.
    let code = unsafe { create(nvml.device_by_index(0).unwrap().handle(), 19, &mut instance) };
    assert_eq!(code, 0);
}

#[test]
fn a_delay_makes_only_its_gpu_slow() {
    let rig = Rig::new(&["a30-24gb", "a30-24gb"]);
    let time = |gpu| {
        let began = Instant::now();
        assert!(rig.nvml.device_by_index(gpu).is_ok());
        began.elapsed()
    };
    rig.node.set_faults("gpu=1 call=nvmlDeviceGetHandleByIndex_v2 delay_ms=120").unwrap();

    assert!(time(1) >= Duration::from_millis(120));
    assert!(time(0) < Duration::from_millis(120));
}

#[test]
fn a_malformed_list_fails_initialisation_and_every_later_call() {
    let folder = tempfile::tempdir().unwrap();
    let variables = [("TESSERA_SIM_FAULTS", "call=nvmlDeviceGetNames code=1")];
    let refused = open(&folder, &["a30-24gb"], &variables).map(|_| ());
    assert!(matches!(refused, Err(NvmlError::Unknown)), "{refused:?}");

    let rig = Rig::new(&["a30-24gb"]);
    rig.node.set_faults("gpu=0 explode").unwrap();
    assert!(matches!(rig.nvml.device_count(), Err(NvmlError::Unknown)));
    rig.node.set_faults("# gpu=0 explode").unwrap();
    assert!(rig.nvml.device_count().is_ok());
}

#[test]
fn an_xid_error_reaches_the_sets_that_watch_its_gpu_once() {
    let rig = Rig::new(&["a100-40gb", "a30-24gb"]);
    rig.node.set_faults("gpu=0 xid=13").unwrap();
    let device = rig.device(0);
    let (mut set, mut types) = (std::ptr::null_mut(), 0);
    assert_eq!(raw!(rig, nvmlEventSetCreate(&mut set)), 0);
    assert_eq!(raw!(rig, nvmlDeviceGetSupportedEventTypes(device, &mut types)), 0);
    assert_eq!(types, XID);
    assert_eq!(raw!(rig, nvmlDeviceRegisterEvents(device, XID | 1, set)), 3, "only XIDs come");
    assert_eq!(raw!(rig, nvmlDeviceRegisterEvents(device, XID, set)), 0);
    let wait = || {
        // SAFETY: plain numbers and a handle, for which zero is a value.
        let mut event: nvmlEventData_t = unsafe { std::mem::zeroed() };
        let code = raw!(rig, nvmlEventSetWait_v2(set, &mut event, 30));
        if code == 0 { Ok(event) } else { Err(code) }
    };
    assert_eq!(wait().err(), Some(10), "what was before is past");

    rig.node.set_faults("gpu=0 xid=13\ngpu=1 xid=48\ngpu=0 xid=94 gi=1 ci=0").unwrap();
    let event = wait().unwrap();
    assert_eq!((event.device, event.eventType, event.eventData), (device, XID, 94));
    assert_eq!((event.gpuInstanceId, event.computeInstanceId), (1, 0));
    assert_eq!(wait().err(), Some(10), "once");

    rig.node.set_faults("gpu=0 xid=79\ngpu=0 lost").unwrap();
    assert_eq!(wait().err(), Some(15));
    rig.node.set_faults("gpu=0 xid=79").unwrap();
    assert_eq!(wait().unwrap().gpuInstanceId, u32::MAX, "of no instance");
    assert_eq!(raw!(rig, nvmlEventSetFree(set)), 0);
    assert_eq!(raw!(rig, nvmlEventSetFree(set)), 2);
}

/// `nvmlEventTypeXidCriticalError`.
const XID: u64 = 8;

#[test]
fn a_destruction_may_lie_and_only_reading_back_tells() {
    let rig = Rig::new(&["a100-40gb"]);
    let instance = rig.create(0, 19, None).unwrap();
    rig.node.set_faults("call=nvmlGpuInstanceDestroy nth=1 ghost").unwrap();

    assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(instance)), 0);

    let mut found = std::ptr::null_mut();
    assert_eq!(raw!(rig, nvmlDeviceGetGpuInstanceById(rig.device(0), 7, &mut found)), 0);
    assert_eq!(found, instance);
    assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(instance)), 0);
    assert_eq!(raw!(rig, nvmlGpuInstanceDestroy(instance)), 2);
}

#[test]
fn initialisation_itself_can_fail_and_then_succeed() {
    let folder = tempfile::tempdir().unwrap();
    let fault = [("TESSERA_SIM_FAULTS", "call=nvmlInit_v2 code=18")];

    let refused = open(&folder, &["a30-24gb"], &fault).map(|_| ());

    assert!(matches!(refused, Err(NvmlError::LibRmVersionMismatch)), "{refused:?}");
    assert!(open(&folder, &["a30-24gb"], &[]).is_ok());
}

#[test]
fn a_reset_that_nobody_can_do_leaves_the_mode_pending() {
    let rig = Rig::new(&["a100-40gb"]);
    rig.node.set_faults("call=nvmlDeviceSetMigMode activation=16").unwrap();
    let gpu = rig.nvml.device_by_index(0).unwrap();

    assert_eq!(gpu.set_mig_mode(false).unwrap(), 16);

    let mode = gpu.mig_mode().unwrap();
    assert_eq!((mode.current, mode.pending), (1, 0));
}

#[test]
fn a_recovery_action_is_told_by_its_field() {
    let rig = Rig::new(&["a100-40gb"]);
    let device = rig.device(0);
    let read = |field| {
        // SAFETY: plain numbers, for which zero is a value.
        let mut value: nvmlFieldValue_t = unsafe { std::mem::zeroed() };
        value.fieldId = field;
        assert_eq!(raw!(rig, nvmlDeviceGetFieldValues(device, 1, &mut value)), 0);
        // SAFETY: the value is that of an unsigned field, or untouched.
        (value.nvmlReturn, unsafe { value.value.uiVal })
    };
    assert_eq!(read(230), (0, 0));

    rig.node.set_faults("gpu=0 recovery=1").unwrap();

    assert_eq!(read(230), (0, 1));
    assert_eq!(read(186), (0, 50_000));
    assert_eq!(read(1).0, 3, "not supported, told by the value's own code");
}

#[test]
fn every_documented_code_comes_through() {
    let rig = Rig::new(&["a30-24gb"]);
    let device = rig.device(0);
    for code in (1..=30).chain([999]) {
        rig.node.set_faults(&format!("call=nvmlDeviceGetMigMode code={code}")).unwrap();
        let (mut current, mut pending) = (0, 0);
        assert_eq!(raw!(rig, nvmlDeviceGetMigMode(device, &mut current, &mut pending)), code);
    }
}

fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < deadline, "waited too long until {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
