//! Layout plans on the stand-in for NVIDIA's library, through the agent's own worker.

use crate::common::{Agent, Cluster, Place, Session, plan, shell, slot};
use tessera_frames::cluster::{
    ComputeInstanceReport, FaultCause, GpuHealth, GpuReport, InstanceTrouble, MigReport, PlanEnd,
    ToAgent, ToController,
};
use tessera_model::life::Outcome;
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::mig::{PlanStep, Slot};

async fn stage() -> (Cluster, Agent, Session, GpuReport) {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let config = data.join("agent.toml");
    let sim = data.join("sim");
    let text = format!(
        "destroy_tries = 3\nkernel_log = {:?}\ngpu_boot_id = {:?}\n\
         [device_files]\nfolder = {:?}\nminors = {:?}\n",
        data.join("kmsg"),
        sim.join("boot_id"),
        sim.join("dev"),
        sim.join("proc/driver/nvidia-caps/mig-minors"),
    );
    std::fs::write(&config, text).unwrap();
    std::fs::write(data.join("kmsg"), "").unwrap();
    crate::common::make_sim(&data);
    let agent = start(&cluster, &data);
    let session = cluster.welcome().await;
    let gpu = session.gpu("A100");
    (cluster, agent, session, gpu)
}

/// Starts an agent with the settings of its folder.
fn start(cluster: &Cluster, data: &std::path::Path) -> Agent {
    cluster.start_with(data, |command| {
        command.arg("--config").arg(data.join("agent.toml"));
    })
}

/// Makes the stand-in fail.
fn faults(agent: &Agent, lines: &str) {
    crate::common::sim_node(agent).set_faults(lines).unwrap();
}

fn layout(gpu: &GpuReport) -> Vec<Slot> {
    gpu.instances.iter().map(|instance| instance.slot).collect()
}

#[tokio::test]
async fn geometry_is_read_and_not_assumed() {
    let (_cluster, _agent, session, gpu) = stage().await;

    let MigReport::On { geometry } = &gpu.mig else { panic!("{gpu:?}") };
    let known = tessera_model::mig::catalog::models()["a100-40gb"].geometry();
    let names = |g: &tessera_model::mig::Geometry| {
        let mut names: Vec<_> = g
            .profiles
            .iter()
            .map(|p| (p.name.clone(), p.id, p.memory_slices, p.starts.clone()))
            .collect();
        names.sort();
        names
    };
    assert_eq!(names(geometry), names(&known));
    assert_eq!(session.gpus().len(), 2);
    assert!(gpu.instances.is_empty());
}

#[tokio::test]
async fn a_plan_makes_whole_instances_on_which_attempts_run() {
    let (_cluster, _agent, mut session, gpu) = stage().await;
    let expected = [slot(&gpu, "3g.20gb", 0), slot(&gpu, "1g.5gb", 4)];

    let order = plan(&gpu.gpu, 1, expected.map(PlanStep::Create).to_vec());
    let (end, report) = session.apply(order).await;

    assert_eq!(end, PlanEnd::Done);
    let report = report.unwrap();
    assert_eq!(layout(&report), expected);
    assert_eq!(report.layout_gen, 1);
    assert!(report.instances.iter().all(|i| i.slice.is_some() && i.sms > 0));
    let place = Place::on(&report);
    let record = session.run(&shell(&place, "test \"$TESSERA_GPU_PROFILE\" = 3g.20gb")).await;
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
}

#[tokio::test]
async fn an_older_plan_is_refused_and_a_repeated_one_changes_nothing() {
    let (_cluster, _agent, mut session, gpu) = stage().await;
    let first = plan(&gpu.gpu, 5, vec![PlanStep::Create(slot(&gpu, "1g.5gb", 0))]);
    let (_, made) = session.apply(first.clone()).await;

    let (again, unchanged) = session.apply(first).await;
    let (older, _) =
        session.apply(plan(&gpu.gpu, 4, vec![PlanStep::Destroy(slot(&gpu, "1g.5gb", 0))])).await;

    assert_eq!(again, PlanEnd::Done);
    assert_eq!(unchanged, None, "{made:?} stands as it stood");
    assert!(matches!(older, PlanEnd::Refused { .. }), "{older:?}");
}

#[tokio::test]
async fn a_layout_that_the_driver_refuses_fails_with_its_error() {
    let (_cluster, _agent, mut session, gpu) = stage().await;
    let steps =
        vec![PlanStep::Create(slot(&gpu, "7g.40gb", 0)), PlanStep::Create(slot(&gpu, "1g.5gb", 0))];

    let (end, report) = session.apply(plan(&gpu.gpu, 1, steps)).await;

    let PlanEnd::Failed { steps_done: 1, reason } = end else { panic!("{end:?}") };
    assert!(reason.contains("insufficient resources"), "{reason}");
    assert_eq!(report.unwrap().instances.len(), 1);
}

#[tokio::test]
async fn an_instance_with_a_live_attempt_is_never_destroyed() {
    let (_cluster, _agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 0);
    let (_, report) = session.apply(plan(&gpu.gpu, 1, vec![PlanStep::Create(small)])).await;
    let order = shell(&Place::on(&report.unwrap()), "sleep 60");
    session.launch(&order).await;
    session.until_running(order.attempt).await;

    let (end, _) = session.apply(plan(&gpu.gpu, 2, vec![PlanStep::Destroy(small)])).await;

    let PlanEnd::Refused { reason } = end else { panic!("{end:?}") };
    assert!(reason.contains("an attempt runs"), "{reason}");
}

#[tokio::test]
async fn an_instance_in_use_is_tried_again_and_then_destroyed() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 0);
    session.apply(plan(&gpu.gpu, 1, vec![PlanStep::Create(small)])).await;
    faults(&agent, "call=nvmlGpuInstanceDestroy times=2 code=19\n");

    let (end, report) = session.apply(plan(&gpu.gpu, 2, vec![PlanStep::Destroy(small)])).await;

    assert_eq!(end, PlanEnd::Done);
    assert_eq!(layout(&report.unwrap()), []);
}

#[tokio::test]
async fn an_instance_that_stays_in_use_is_marked_stuck() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 0);
    session.apply(plan(&gpu.gpu, 1, vec![PlanStep::Create(small)])).await;
    faults(&agent, "call=nvmlComputeInstanceDestroy times=1000 code=19\n");

    let (end, _) = session.apply(plan(&gpu.gpu, 2, vec![PlanStep::Destroy(small)])).await;

    let PlanEnd::Failed { steps_done: 0, reason } = end else { panic!("{end:?}") };
    assert!(reason.contains("in use by another client"), "{reason}");
}

/// An instance of three compute slices, cut into three; its places by start.
async fn thirds(session: &mut Session, gpu: &GpuReport) -> (Slot, Vec<Place>) {
    let three = slot(gpu, "3g.20gb", 0);
    let order = plan(&gpu.gpu, 1, vec![PlanStep::Cut(three, cut(&[(0, 1), (1, 1), (2, 1)]))]);
    let (end, report) = session.apply(order).await;
    assert_eq!(end, PlanEnd::Done);
    let report = report.unwrap();
    let instance = &report.instances[0];
    assert_eq!((instance.slice.as_ref(), instance.trouble.as_ref()), (None, None));
    assert!(instance.parts.iter().all(|part| part.sms == 14), "{instance:?}");
    let place = |part: &ComputeInstanceReport| Place {
        gpu: gpu.gpu.clone(),
        slot: Some(three),
        slice: part.slice.clone().unwrap(),
    };
    (three, instance.parts.iter().map(place).collect())
}

fn cut(parts: &[(u8, u8)]) -> Cut {
    let slot = |(start, slices): &(u8, u8)| ComputeSlot { start: *start, slices: *slices };
    parts.iter().map(slot).collect::<Vec<_>>().try_into().unwrap()
}

#[tokio::test]
async fn an_instance_is_cut_into_several_and_an_attempt_runs_on_each() {
    let (_cluster, _agent, mut session, gpu) = stage().await;
    let (three, places) = thirds(&mut session, &gpu).await;

    for place in &places {
        let line = format!(
            "test \"$CUDA_VISIBLE_DEVICES\" = {} -a \"$TESSERA_GPU_PROFILE\" = 1c.3g.20gb",
            place.slice
        );
        let record = session.run(&shell(place, &line)).await;
        assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
    }
    let first = shell(&places[0], "sleep 600");
    let second = shell(&places[1], "sleep 600");
    for order in [&first, &second] {
        session.launch(order).await;
        session.until_running(order.attempt).await;
    }

    // While anything runs there, it is neither destroyed nor given new compute instances.
    for (number, step) in
        [(2, PlanStep::Destroy(three)), (3, PlanStep::Cut(three, cut(&[(0, 1), (1, 1)])))]
    {
        let (end, _) = session.apply(plan(&gpu.gpu, number, vec![step])).await;
        let PlanEnd::Refused { reason } = end else { panic!("{end:?}") };
        assert!(reason.contains("an attempt runs"), "{reason}");
    }
}

#[tokio::test]
async fn a_cut_keeps_the_compute_instances_that_it_has_in_common_with_the_last() {
    let (_cluster, _agent, mut session, gpu) = stage().await;
    let (three, places) = thirds(&mut session, &gpu).await;

    let other = PlanStep::Cut(three, cut(&[(0, 2), (2, 1)]));
    let (end, report) = session.apply(plan(&gpu.gpu, 2, vec![other])).await;

    assert_eq!(end, PlanEnd::Done);
    let parts = &report.unwrap().instances[0].parts;
    assert_eq!(parts.len(), 2);
    assert_eq!(parts[1].slice.as_ref(), Some(&places[2].slice), "it was never touched");
    assert_ne!(parts[0].slice.as_ref(), Some(&places[0].slice));
    let gone = session.run(&shell(&places[0], "true")).await;
    assert_eq!(gone.outcome, Outcome::NotStarted);
    assert!(gone.detail.contains("is now divided into"), "{gone:?}");
    let whole = PlanStep::Cut(three, cut(&[(0, 3)]));
    let (end, report) = session.apply(plan(&gpu.gpu, 3, vec![whole])).await;
    let report = report.unwrap();
    assert_eq!((end, report.instances[0].parts.len()), (PlanEnd::Done, 0));
    assert!(report.instances[0].slice.is_some(), "whole again");
}

#[tokio::test]
async fn a_cut_that_a_crash_interrupted_is_finished_before_the_node_is_ready() {
    let (cluster, mut agent, mut session, gpu) = stage().await;
    let three = slot(&gpu, "3g.20gb", 0);
    let step = PlanStep::Cut(three, cut(&[(0, 1), (1, 1), (2, 1)]));
    let call = "nvmlGpuInstanceCreateComputeInstanceWithPlacement";
    faults(&agent, &format!("call={call} nth=3 hang\n"));
    session.send(ToAgent::ApplyPlan(plan(&gpu.gpu, 1, vec![step]))).await;
    let node = crate::common::sim_node(&agent);
    let made = || node.read().unwrap().gpus[0].instances.first().map_or(0, |i| i.compute.len());
    crate::common::eventually("two of three stand", || made() == 2).await;

    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    faults(&agent, "");
    let agent = start(&cluster, &agent.data);
    let session = cluster.welcome().await;

    let report = session.gpu("A100");
    assert_eq!(report.instances[0].cut(), cut(&[(0, 1), (1, 1), (2, 1)]));
    assert_eq!(report.instances[0].trouble, None, "it is the node's");
    assert_eq!(crate::common::sim_node(&agent).read().unwrap().gpus[0].instances.len(), 1);
}

#[tokio::test]
async fn a_cut_layout_comes_back_after_a_restart_of_the_machine() {
    let (cluster, mut agent, mut session, gpu) = stage().await;
    let (three, before) = thirds(&mut session, &gpu).await;
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    crate::common::sim_node(&agent).reboot().unwrap();

    let _agent = start(&cluster, &agent.data);
    let session = cluster.welcome().await;

    let report = session.gpu("A100");
    assert_eq!(report.instances[0].slot, three);
    assert_eq!(report.instances[0].cut(), cut(&[(0, 1), (1, 1), (2, 1)]));
    assert_ne!(report.instances[0].parts[0].slice.as_ref(), Some(&before[0].slice));
}

#[tokio::test]
async fn an_incomplete_instance_is_removed_once_the_driver_permits_it() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 0);
    faults(
        &agent,
        "call=nvmlGpuInstanceCreateComputeInstance times=1 code=23\n\
         call=nvmlGpuInstanceDestroy code=19\n",
    );

    let (end, report) = session.apply(plan(&gpu.gpu, 1, vec![PlanStep::Create(small)])).await;

    assert!(matches!(end, PlanEnd::Failed { .. }), "{end:?}");
    let report = report.unwrap();
    let left = &report.instances[0];
    assert_eq!((left.slot, left.slice.clone()), (small, None));
    assert!(matches!(left.trouble, Some(InstanceTrouble::Stuck { .. })), "{left:?}");

    faults(&agent, "");
    session.send(ToAgent::Clear { epoch: 1, gpu: gpu.gpu.clone(), slot: Some(small) }).await;
    session.until(|frame| gone(frame, &gpu)).await;
}

#[tokio::test]
async fn an_incomplete_instance_that_a_crash_left_is_removed_at_the_next_start() {
    let (cluster, mut agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 0);
    faults(&agent, "call=nvmlGpuInstanceCreateComputeInstance nth=1 hang\n");
    session.send(ToAgent::ApplyPlan(plan(&gpu.gpu, 1, vec![PlanStep::Create(small)]))).await;
    let node = crate::common::sim_node(&agent);
    let standing = || node.read().unwrap().gpus[0].instances.clone();
    crate::common::eventually("the GPU instance stands", || standing().len() == 1).await;

    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    assert_eq!(standing()[0].compute.len(), 0, "incomplete");
    let agent = start(&cluster, &agent.data);
    let session = cluster.welcome().await;

    assert!(session.gpu("A100").instances.is_empty(), "removed before the node was ready");
    assert!(crate::common::sim_node(&agent).read().unwrap().gpus[0].instances.is_empty());
}

#[tokio::test]
async fn a_strangers_instance_is_noticed_and_never_touched_until_it_is_handed_over() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 3);
    crate::common::by_hand(&agent, small);

    let reported = session
        .until(|frame| match frame {
            ToController::Gpu(report) => report.instances.first().map(|i| i.trouble.clone()),
            _ => None,
        })
        .await;
    assert_eq!(reported, Some(InstanceTrouble::Foreign { pids: vec![] }), "within ten seconds");
    let (end, _) = session.apply(plan(&gpu.gpu, 1, vec![PlanStep::Destroy(small)])).await;
    let PlanEnd::Failed { reason, .. } = end else { panic!("{end:?}") };
    assert!(reason.contains("another program created"), "{reason}");

    session.send(ToAgent::Clear { epoch: 1, gpu: gpu.gpu.clone(), slot: Some(small) }).await;
    session
        .until(|frame| match frame {
            ToController::Gpu(report) if report.instances[0].trouble.is_none() => Some(()),
            _ => None,
        })
        .await;
    let (end, _) = session.apply(plan(&gpu.gpu, 2, vec![PlanStep::Destroy(small)])).await;
    assert_eq!(end, PlanEnd::Done);
}

#[tokio::test]
async fn who_keeps_an_instance_open_without_computing_is_named() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 0);
    let (_, report) = session.apply(plan(&gpu.gpu, 1, vec![PlanStep::Create(small)])).await;
    let watcher = crate::common::watcher(&agent, &Place::on(&report.unwrap()));

    let (end, report) = session.apply(plan(&gpu.gpu, 2, vec![PlanStep::Destroy(small)])).await;

    assert!(matches!(end, PlanEnd::Failed { .. }), "{end:?}");
    let report = report.unwrap();
    let Some(InstanceTrouble::Stuck { reason }) = &report.instances[0].trouble else {
        panic!("{report:?}")
    };
    let pid = format!("(pid {})", std::process::id());
    assert!(reason.contains("in use") && reason.contains(&pid), "{reason}");
    drop(watcher);
    session.send(ToAgent::Clear { epoch: 1, gpu: gpu.gpu.clone(), slot: None }).await;
    let (end, _) = session.apply(plan(&gpu.gpu, 3, vec![PlanStep::Destroy(small)])).await;
    assert_eq!(end, PlanEnd::Done);
}

fn gone(frame: &ToController, gpu: &GpuReport) -> Option<()> {
    match frame {
        ToController::Gpu(report) if report.gpu == gpu.gpu => {
            report.instances.is_empty().then_some(())
        }
        _ => None,
    }
}

#[tokio::test]
async fn a_driver_that_hangs_costs_a_worker_and_not_the_agent() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    faults(&agent, "call=nvmlDeviceGetGpuInstances times=1 hang\n");

    let created = session.apply(plan(&gpu.gpu, 1, vec![PlanStep::Create(slot(&gpu, "1g.5gb", 0))]));
    let (end, report) = created.await;

    assert_eq!(end, PlanEnd::Done, "asked again through a new worker");
    let report = report.unwrap();
    assert_eq!(report.health, GpuHealth::Healthy);
    let record = session.run(&shell(&Place::on(&report), "true")).await;
    assert_eq!(record.outcome, Outcome::Succeeded);
}

#[tokio::test]
async fn a_driver_that_crashes_its_caller_costs_a_worker_and_not_the_agent() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 0);
    let mut number = 0;
    // While it reads, before it changes anything, between the two parts of an instance, and after.
    for call in [
        "nvmlDeviceGetGpuInstances",
        "nvmlDeviceCreateGpuInstanceWithPlacement",
        "nvmlGpuInstanceCreateComputeInstance",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlComputeInstanceDestroy",
        "nvmlGpuInstanceDestroy",
    ] {
        faults(&agent, &format!("call={call} nth=1 crash\n"));
        for step in [PlanStep::Create(small), PlanStep::Destroy(small)] {
            number += 1;
            let (end, report) = session.apply(plan(&gpu.gpu, number, vec![step])).await;

            assert_eq!(end, PlanEnd::Done, "{call}: asked again through a new worker");
            let report = report.unwrap();
            let expected = if step == PlanStep::Create(small) { vec![small] } else { Vec::new() };
            assert_eq!((layout(&report), report.health), (expected, GpuHealth::Healthy), "{call}");
        }
    }
}

#[tokio::test]
async fn an_instance_that_outlives_its_destruction_is_destroyed_again() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 0);
    let mut number = 0;
    for call in ["nvmlGpuInstanceDestroy", "nvmlComputeInstanceDestroy"] {
        faults(&agent, &format!("call={call} nth=1 ghost\n"));
        for step in [PlanStep::Create(small), PlanStep::Destroy(small)] {
            number += 1;
            let (end, report) = session.apply(plan(&gpu.gpu, number, vec![step])).await;

            assert_eq!(end, PlanEnd::Done, "{call}");
            let expected = if step == PlanStep::Create(small) { vec![small] } else { Vec::new() };
            assert_eq!(layout(&report.unwrap()), expected, "{call}");
        }
        assert!(
            crate::common::sim_node(&agent).read().unwrap().gpus[0].instances.is_empty(),
            "{call}"
        );
    }
}

#[tokio::test]
async fn a_lost_gpu_is_faulty_and_the_other_one_works_on() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let other = session.gpu("A30");
    faults(&agent, "call=nvmlDeviceCreateGpuInstanceWithPlacement times=1 code=15\n");

    let (end, report) =
        session.apply(plan(&gpu.gpu, 1, vec![PlanStep::Create(slot(&gpu, "1g.5gb", 0))])).await;
    let PlanEnd::Failed { reason, .. } = end else { panic!("{end:?}") };
    assert!(reason.contains("the GPU is lost"), "{reason}");
    let fault = report.unwrap().faults.pop().expect("it is held against the GPU");
    let call = "nvmlDeviceCreateGpuInstanceWithPlacement".to_owned();
    assert_eq!(fault.cause, FaultCause::Nvml { call, code: 15 });

    let (end, _) =
        session.apply(plan(&other.gpu, 1, vec![PlanStep::Create(slot(&other, "1g.6gb", 0))])).await;
    assert_eq!(end, PlanEnd::Done);
}

#[tokio::test]
async fn layouts_and_their_numbers_survive_the_agent() {
    let (cluster, mut agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 2);
    let (_, made) = session.apply(plan(&gpu.gpu, 3, vec![PlanStep::Create(small)])).await;

    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    let _agent = start(&cluster, &agent.data);
    let session = cluster.welcome().await;

    assert_eq!(session.gpu("A100"), made.unwrap());
}

#[tokio::test]
async fn a_plan_that_found_nothing_to_do_bars_older_ones_from_the_next_agent_too() {
    let (cluster, mut agent, mut session, gpu) = stage().await;
    let stands = || vec![PlanStep::Create(slot(&gpu, "1g.5gb", 2))];
    session.apply(plan(&gpu.gpu, 3, stands())).await;
    let (end, _) = session.apply(plan(&gpu.gpu, 6, stands())).await;
    assert_eq!(end, PlanEnd::Done, "it stands already");

    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    let _agent = start(&cluster, &agent.data);
    let mut session = cluster.welcome().await;
    let (older, _) =
        session.apply(plan(&gpu.gpu, 5, vec![PlanStep::Destroy(slot(&gpu, "1g.5gb", 2))])).await;

    assert!(matches!(older, PlanEnd::Refused { .. }), "{older:?}");
}

#[tokio::test]
async fn mig_mode_is_switched_only_on_the_explicit_word() {
    let (_cluster, _agent, mut session, gpu) = stage().await;

    session.send(ToAgent::SetMigMode { epoch: 1, gpu: gpu.gpu.clone(), on: false }).await;
    let problem = session
        .until(|frame| match frame {
            ToController::MigModeEnded { problem, .. } => Some(problem.clone()),
            _ => None,
        })
        .await;

    // An A100 needs a reset for it, an answer in words either way.
    if let Some(problem) = problem {
        assert!(problem.contains("reset"), "{problem}");
    }
}

#[tokio::test]
async fn a_machine_without_a_driver_runs_an_agent_without_gpus() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let _agent = cluster.start_with(&data, |command| {
        command.arg("--nvml").arg("/no/such/library.so");
    });

    let session = cluster.welcome().await;

    assert!(session.gpus().is_empty());
}

#[tokio::test]
async fn a_strangers_process_is_named_and_its_instance_left_alone() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let small = slot(&gpu, "1g.5gb", 0);
    let (_, report) = session.apply(plan(&gpu.gpu, 1, vec![PlanStep::Create(small)])).await;
    let stranger = crate::common::stranger(&agent, &Place::on(&report.unwrap()));

    session.send(ToAgent::ApplyPlan(plan(&gpu.gpu, 2, vec![PlanStep::Destroy(small)]))).await;
    let mut troubles = Vec::new();
    let end = session
        .until(|frame| match frame {
            ToController::Gpu(report) => {
                troubles.extend(report.instances[0].trouble.clone());
                None
            }
            ToController::PlanEnded { end, .. } => Some(end.clone()),
            _ => None,
        })
        .await;

    assert!(matches!(end, PlanEnd::Failed { .. }), "{end:?}");
    let pids = vec![std::process::id()];
    assert_eq!(troubles[0], InstanceTrouble::Foreign { pids });
    assert!(matches!(troubles[1], InstanceTrouble::Stuck { .. }), "{troubles:?}");
    drop(stranger);
    let (end, report) = session.apply(plan(&gpu.gpu, 3, vec![PlanStep::Destroy(small)])).await;
    assert_eq!(end, PlanEnd::Done);
    assert_eq!(layout(&report.unwrap()), []);
}
