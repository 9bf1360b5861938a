//! Every call of the library × every code that it can return. Each has a defined outcome, breaks
//! nothing that is in use, and leaves nothing behind once it is over (G1).

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::Duration;

use tessera_agent::gpus::file::GpuFile;
use tessera_agent::gpus::managed::{GpuTools, ManagedGpu};
use tessera_agent::messages::NodeInput;
use tessera_agent::messages::gpu::{DriverNotice, GpuEvent};
use tessera_agent::nvml::client::{NvmlClient, WorkerProgram};
use tessera_agent::nvml::events;
use tessera_agent::sys::holders::DeviceFiles;
use tessera_agent_core::nvml::error::{ErrorHandling, NvmlCallError};
use tessera_agent_core::ownership::AdoptionPolicy;
use tessera_frames::cluster::{GpuHealth, PlanEnd, PlanOrder};
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::mig::{PlanStep, Slot, catalog};
use tessera_model::{BootId, PlanId};
use tessera_stand_in::client::DeviceClient;
use tessera_stand_in::config::StandInConfig;
use tessera_stand_in::device::{DeviceState, SlotPlacement};
use tessera_stand_in::node::SimulatedNode;
use tokio::sync::mpsc;

/// What the worker calls to read a GPU.
const READS: [&str; 25] = [
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetIndex",
    "nvmlDeviceGetName",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetMinorNumber",
    "nvmlDeviceGetCudaComputeCapability",
    "nvmlDeviceGetFieldValues",
    "nvmlDeviceGetRemappedRows",
    "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex",
    "nvmlDeviceGetGpuInstanceId",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetGpuInstances",
    "nvmlGpuInstanceGetInfo",
    "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    "nvmlGpuInstanceGetComputeInstanceProfileInfo",
    "nvmlGpuInstanceGetComputeInstances",
    "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetGpuInstanceProfileInfo",
    "nvmlDeviceGetGpuInstanceProfileInfoV",
    "nvmlDeviceGetGpuInstancePossiblePlacements_v2",
];
/// What is called to listen to a GPU.
const EVENTS: [&str; 5] = [
    "nvmlEventSetCreate",
    "nvmlDeviceGetSupportedEventTypes",
    "nvmlDeviceRegisterEvents",
    "nvmlEventSetWait_v2",
    "nvmlDeviceGetCount_v2",
];
/// What changes one.
const CHANGES: [&str; 4] = [
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlComputeInstanceDestroy",
    "nvmlGpuInstanceDestroy",
];
/// What is called for instances with several compute instances.
const CUTS: [&str; 7] = [
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstanceWithPlacement",
    "nvmlComputeInstanceDestroy",
    "nvmlDeviceGetAttributes_v2",
    "nvmlDeviceGetComputeInstanceId",
    "nvmlGpuInstanceGetComputeInstanceById",
    "nvmlComputeInstanceGetInfo_v2",
];

/// What is made in the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Made {
    /// An instance with its one compute instance.
    Whole,
    /// One that stands is cut into two compute instances.
    Cut,
}

/// Every code that nvml.h names.
fn codes() -> impl Iterator<Item = u32> {
    (1..=30).chain([999])
}

/// One code of each way to handle it, and a lost GPU.
const KINDS: [u32; 7] = [2, 6, 15, 19, 10, 23, 999];

/// The 1g.5gb and 2g.10gb profiles of an A100.
fn slot(name: &str, start: u8) -> Slot {
    let geometry = catalog::models()["a100-40gb"].geometry();
    Slot { start, profile: geometry.by_name(&name.parse().unwrap()).unwrap().id }
}

fn make(state: &mut DeviceState, slot: Slot) -> String {
    let model = state.gpus[0].profile(slot.profile.0).unwrap();
    let at = SlotPlacement { start: slot.start.into(), size: model.profile.memory_slices.into() };
    let serial = state.create_gpu_instance(0, slot.profile.0, Some(at)).unwrap();
    let slices = model.profile.compute_slices;
    let whole = model.compute.iter().find(|c| c.compute_slices == slices).unwrap();
    let compute = state.create_compute_instance(serial, whole.id.unwrap(), None).unwrap();
    state.compute_instance(compute).unwrap().2.mig_uuid()
}

/// Returns the instances by the device file: their slots, and whether each is whole.
fn standing(node: &SimulatedNode) -> Vec<(Slot, usize)> {
    let state = node.read().unwrap();
    let mut list: Vec<_> =
        state.gpus[0].instances.iter().map(|i| (i.slot, i.compute.len())).collect();
    list.sort();
    list
}

struct Rig {
    _folder: tempfile::TempDir,
    node: SimulatedNode,
    tools: GpuTools,
    received: mpsc::Receiver<NodeInput>,
    program: WorkerProgram,
}

impl Rig {
    fn new() -> Self {
        // Thousands of synced files: in memory, where the machine has such a folder.
        let memory = Path::new("/dev/shm");
        let folder = match memory.is_dir() {
            true => tempfile::tempdir_in(memory).unwrap(),
            false => tempfile::tempdir().unwrap(),
        };
        let sim = folder.path().join("sim");
        let node = SimulatedNode::open(&StandInConfig::new(&sim, &["a100-40gb"])).unwrap();
        std::fs::create_dir(folder.path().join("gpus")).unwrap();
        // The environment belongs to the whole process, tests run side by side in it.
        let script = folder.path().join("worker");
        let text = format!(
            "#!/bin/sh\nTESSERA_SIM_NODE={} TESSERA_SIM_LATENCY=0 exec {} \"$@\"\n",
            sim.display(),
            env!("CARGO_BIN_EXE_tessera-agent"),
        );
        std::fs::write(&script, text).unwrap();
        std::fs::set_permissions(&script, std::fs::Permissions::from_mode(0o755)).unwrap();
        let library = tessera_stand_in::library::build().unwrap().into();
        let program = WorkerProgram { program: script, library, launcher: None };
        let (reported, received) = mpsc::channel(4096);
        let tools = GpuTools {
            nvml: NvmlClient::start(program.clone()),
            node: reported,
            data: folder.path().to_owned(),
            tries_max: 1,
            adopt: AdoptionPolicy::Exclusive,
            boot: BootId::from_uuid(uuid::Uuid::nil()),
            files: DeviceFiles { folder: sim.join("dev"), minors: Path::new("/none").into() },
        };
        Self { _folder: folder, node, tools, received, program }
    }

    /// A GPU of which nothing is remembered.
    fn gpu(&self) -> ManagedGpu {
        let id = self.node.read().unwrap().gpu_uuid(0).parse().unwrap();
        let notices = mpsc::channel(1).1;
        ManagedGpu::new(id, self.tools.clone(), GpuFile::default(), None, notices)
    }

    /// The end of a plan, and whether the driver was ever thought not to answer.
    async fn apply(
        &mut self,
        gpu: &mut ManagedGpu,
        layout_gen: u64,
        steps: Vec<PlanStep>,
    ) -> (PlanEnd, bool) {
        let plan = PlanId::from_uuid(uuid::Uuid::from_u128(layout_gen.into()));
        let gpu_id = gpu.id.clone();
        gpu.apply(PlanOrder { epoch: 1, plan, gpu: gpu_id, layout_gen, steps, traceparent: None })
            .await;
        let (mut end, mut silent) = (None, false);
        while let Ok(NodeInput::Gpu(event)) = self.received.try_recv() {
            match event {
                GpuEvent::Changed(report) => silent |= report.health == GpuHealth::Unresponsive,
                GpuEvent::PlanEnded { end: found, .. } => end = Some(found),
                GpuEvent::MigModeEnded { .. } | GpuEvent::Struck(_) | GpuEvent::Numbered(..) => {}
            }
        }
        (end.expect("every plan ends"), silent)
    }
}

async fn each_code(rig: &mut Rig, call: &str, nth: u32, codes: &[u32], made: Made) {
    let (busy, old, new) = (slot("1g.5gb", 6), slot("1g.5gb", 0), slot("2g.10gb", 2));
    let halves: Cut =
        [0, 1].map(|start| ComputeSlot { start, slices: 1 }).to_vec().try_into().unwrap();
    let (wanted, steps) = match made {
        Made::Whole => {
            (vec![(new, 1), (busy, 1)], vec![PlanStep::Destroy(old), PlanStep::Create(new)])
        }
        Made::Cut => {
            (vec![(new, 2), (busy, 1)], vec![PlanStep::Destroy(old), PlanStep::Cut(new, halves)])
        }
    };
    let holder = {
        rig.node.change(|state| state.gpus[0].instances.clear()).unwrap();
        let uuid = rig.node.change(|state| make(state, busy)).unwrap();
        DeviceClient::open(&rig.node, &uuid).unwrap()
    };
    let node = rig.node.clone();
    let held = || {
        let state = node.read().unwrap();
        let instance = state.gpus[0].instances.iter().find(|i| i.slot == busy).cloned();
        instance.expect("what is in use stays")
    };
    let before = held();
    for code in codes.iter().copied() {
        if nth == 1 && call.contains("GpuInstanceP") {
            // Geometry is read once in a worker's life.
            rig.tools.nvml = NvmlClient::start(rig.program.clone());
        }
        let reset = |state: &mut DeviceState| {
            state.gpus[0].instances.retain(|i| i.slot == busy);
            make(state, old);
            if made == Made::Cut && !call.starts_with("nvmlDeviceCreate") {
                make(state, new);
            }
        };
        rig.node.set_faults("").unwrap();
        rig.node.change(reset).unwrap();
        let mut gpu = rig.gpu();
        rig.node.set_faults(&format!("call={call} nth={nth} code={code}")).unwrap();

        let (end, silent) = rig.apply(&mut gpu, 1, steps.clone()).await;

        let case = format!("{call} returned {code} at call {nth}: {end:?}");
        assert!(!silent, "the worker died of {case}");
        let fault = NvmlCallError { call: call.to_owned(), code };
        // A driver without the call for placements is queried in the old way.
        let old_way = call.ends_with("ComputeInstanceWithPlacement") && code == 13;
        let changes = CHANGES.contains(&call) || call.ends_with("WithPlacement");
        if old_way {
            assert_eq!(end, PlanEnd::Done, "{case}");
        } else if changes {
            let takes_effect = match fault.handling() {
                // Nothing to destroy is as good as destroyed; the next look shows it.
                ErrorHandling::Absent => None,
                ErrorHandling::InUse | ErrorHandling::Retry => {
                    Some("tried again until tries were up")
                }
                ErrorHandling::Replan | ErrorHandling::Faulty | ErrorHandling::Bug => {
                    Some("given up")
                }
            };
            if takes_effect.is_some() && nth == 1 {
                assert!(matches!(end, PlanEnd::Failed { .. }), "{case}");
            }
        } else {
            assert!(!matches!(end, PlanEnd::Refused { .. }), "{case}");
        }
        rig.node.set_faults("").unwrap();
        gpu.clear(None).await;
        let half_made: Vec<_> = standing(&rig.node).into_iter().filter(|(_, n)| *n == 0).collect();
        assert!(half_made.is_empty(), "{half_made:?} was left when {case}");
        let (end, _) = rig.apply(&mut gpu, 2, steps.clone()).await;
        assert_eq!((end, standing(&rig.node)), (PlanEnd::Done, wanted.clone()), "after {case}");
        assert_eq!(held(), before, "{case}");
    }
    drop(holder);
}

fn run(calls: &'static [&'static str], nths: &'static [u32]) {
    run_for(calls, nths, Made::Whole);
}

fn run_for(calls: &'static [&'static str], nths: &'static [u32], made: Made) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut rig = Rig::new();
        for call in calls {
            for nth in nths {
                let all: Vec<u32> = codes().collect();
                // Later calls: of each kind one, since it is the same table.
                let codes = if *nth == 1 || CHANGES.contains(call) { &all } else { &KINDS[..] };
                each_code(&mut rig, call, *nth, codes, made).await;
            }
        }
    });
}

#[test]
fn every_code_of_the_first_half_of_the_reading_calls_has_a_defined_outcome() {
    run(&READS[..12], &[1, 2, 3]);
}

#[test]
fn every_code_of_the_second_half_of_the_reading_calls_has_a_defined_outcome() {
    run(&READS[12..], &[1, 2, 3]);
}

#[test]
fn every_code_of_every_changing_call_has_a_defined_outcome_whenever_it_comes() {
    run(&CHANGES, &[1, 2]);
}

#[test]
fn every_code_has_a_defined_outcome_where_an_instance_is_cut_into_several() {
    run_for(&CUTS, &[1, 2], Made::Cut);
}

#[test]
fn every_code_of_the_initialisation_is_reported_and_gone_with_its_cause() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut rig = Rig::new();
        for code in codes() {
            rig.tools.nvml = NvmlClient::start(rig.program.clone());
            rig.node.set_faults(&format!("call=nvmlInit_v2 nth=1 code={code}")).unwrap();
            let mut gpu = rig.gpu();
            let steps = vec![PlanStep::Create(slot("1g.5gb", 0))];

            let refused = gpu.refresh().await;
            let (end, silent) = rig.apply(&mut gpu, 1, steps).await;

            // Not loaded, of another version, not permitted: shown as what it is.
            let shown = !matches!(code, 4 | 9 | 18)
                || refused.is_err_and(|e| e.to_string().contains(&code.to_string()));
            assert!(shown && !silent, "{code}");
            assert_eq!(end, PlanEnd::Done, "{code}: the next call loads it again");
            rig.node.change(|state| state.gpus[0].instances.clear()).unwrap();
        }
    });
}

#[test]
fn every_code_of_a_change_of_mode_is_reported_and_harms_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut rig = Rig::new();
        for code in codes() {
            let mut gpu = rig.gpu();
            rig.node.set_faults(&format!("call=nvmlDeviceSetMigMode nth=1 code={code}")).unwrap();

            gpu.set_mig_mode(false).await;

            let mut reported = None;
            while let Ok(NodeInput::Gpu(event)) = rig.received.try_recv() {
                if let GpuEvent::MigModeEnded { problem, .. } = event {
                    reported = Some(problem);
                }
            }
            let problem = reported.expect("it is answered").expect("it failed");
            assert!(problem.contains(&format!("({code} from nvmlDeviceSetMigMode)")), "{problem}");
            assert!(rig.node.read().unwrap().gpus[0].mig, "{code}");
            let steps =
                vec![PlanStep::Create(slot("1g.5gb", 0)), PlanStep::Destroy(slot("1g.5gb", 0))];
            let (end, silent) = rig.apply(&mut gpu, 1, steps).await;
            assert_eq!((end, silent), (PlanEnd::Done, false), "after {code}");
        }
    });
}

#[test]
fn whatever_the_calls_of_the_events_return_the_next_error_is_received() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let mut listening = Vec::new();
        for (call, code) in EVENTS.iter().flat_map(|call| KINDS.map(|code| (*call, code))) {
            if code == 15 && call.starts_with("nvmlDevice") && !call.contains("Count") {
                // A lost GPU is waited for longer than a test may take.
                continue;
            }
            let rig = Rig::new();
            let fault = format!("call={call} nth=1 code={code}\n");
            rig.node.set_faults(&fault).unwrap();
            let (reported, received) = mpsc::channel(64);
            let task = tokio::task::spawn_local(events::run(rig.program.clone(), reported));
            listening.push((rig, fault, received, task));
        }
        for (rig, fault, mut received, task) in listening {
            // An event reaches only those who listen already, and nothing shows when they do.
            for xid in (13..).take(120) {
                rig.node.set_faults(&format!("{fault}gpu=0 xid={xid}\n")).unwrap();
                let within = Duration::from_millis(500);
                match tokio::time::timeout(within, received.recv()).await {
                    Ok(Some(DriverNotice::Noticed(noticed))) => {
                        assert!((13..=xid).contains(&noticed.xid), "{fault}");
                        break;
                    }
                    Ok(Some(DriverNotice::Lost)) | Err(_) => {}
                    Ok(None) => panic!("it stopped listening: {fault}"),
                }
                assert!(xid < 132, "no event is received after {fault}");
            }
            task.abort();
        }
    });
}

#[test]
fn every_call_and_code_has_one_row_in_the_table() {
    for call in READS.iter().chain(&CHANGES).chain(&EVENTS).chain(&CUTS) {
        for code in codes() {
            let fault = NvmlCallError { call: (*call).to_owned(), code };
            let destroys = call.ends_with("InstanceDestroy");
            let expected = match code {
                2 if destroys => ErrorHandling::Absent,
                6 => ErrorHandling::Absent,
                19 => ErrorHandling::InUse,
                10 | 17 | 20 | 21 | 27 => ErrorHandling::Retry,
                3 | 23 | 29 => ErrorHandling::Replan,
                1 | 2 | 5 | 7 | 13 | 22 | 24 | 25 | 26 | 30 => ErrorHandling::Bug,
                4 | 8 | 9 | 11 | 12 | 14 | 15 | 16 | 18 | 28 | 999 => ErrorHandling::Faulty,
                other => panic!("{other} has no row"),
            };
            assert_eq!(fault.handling(), expected, "{call} {code}");
        }
    }
}
