//! Errors of GPUs, restarts of the machine and drivers that are gone, on the stand-in for
//! NVIDIA's library.

use std::io::Write as _;
use std::path::Path;

use crate::common::{Agent, Cluster, Place, Session, plan, shell, slot};
use tessera_frames::cluster::{
    AttemptStatus, FaultAction, FaultCause, GpuHealth, GpuReport, LaunchOrder, MigReport, PlanEnd,
    ToAgent, ToController,
};
use tessera_model::life::Outcome;
use tessera_model::mig::PlanStep;
use tessera_model::mig::compute::ComputeSlot;

fn start(cluster: &Cluster, data: &Path) -> Agent {
    cluster.start_with(data, |command| {
        command.arg("--config").arg(data.join("agent.toml"));
    })
}

fn configure(data: &Path) {
    let text = format!(
        "destroy_tries = 3\nkernel_log = {:?}\ngpu_boot_id = {:?}\n",
        data.join("kmsg"),
        data.join("sim/boot_id"),
    );
    std::fs::write(data.join("agent.toml"), text).unwrap();
    std::fs::write(data.join("kmsg"), "").unwrap();
}

async fn stage() -> (Cluster, Agent, Session, GpuReport) {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    configure(&data);
    crate::common::make_sim(&data);
    let agent = start(&cluster, &data);
    let session = cluster.welcome().await;
    let gpu = session.gpu("A100");
    (cluster, agent, session, gpu)
}

fn faults(agent: &Agent, lines: &str) {
    crate::common::sim_node(agent).set_faults(lines).unwrap();
}

/// Two slices with a running attempt on each.
async fn busy_pair(session: &mut Session, gpu: &GpuReport) -> (GpuReport, Vec<LaunchOrder>) {
    let steps = [0, 1].map(|start| PlanStep::Create(slot(gpu, "1g.5gb", start)));
    let (end, report) = session.apply(plan(&gpu.gpu, 1, steps.to_vec())).await;
    assert_eq!(end, PlanEnd::Done);
    let report = report.unwrap();
    let mut orders = Vec::new();
    for instance in &report.instances {
        let place = Place {
            gpu: gpu.gpu.clone(),
            slot: Some(instance.slot),
            slice: instance.slice.clone().unwrap(),
        };
        let order = shell(&place, "sleep 600");
        session.launch(&order).await;
        session.until_running(order.attempt).await;
        orders.push(order);
    }
    (report, orders)
}

/// The driver's number of the instance that starts at a slice.
fn number(agent: &Agent, start: u8) -> u32 {
    let state = crate::common::sim_node(agent).read().unwrap();
    state.gpus[0].instances.iter().find(|i| i.slot.start == start).unwrap().id
}

/// Writes a record into the kernel's log as the driver does.
fn log_line(agent: &Agent, sequence: u64, place: &str, rest: &str) {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let micros = now.tv_sec * 1_000_000 + now.tv_nsec / 1_000 + 1_000;
    let mut file = std::fs::File::options().append(true).open(agent.data.join("kmsg")).unwrap();
    writeln!(file, "2,{sequence},{micros},-;NVRM: Xid (PCI:{place}): {rest}").unwrap();
}

async fn until_report<T>(
    session: &mut Session,
    gpu: &GpuReport,
    mut pick: impl FnMut(&GpuReport) -> Option<T>,
) -> T {
    session
        .until(|frame| match frame {
            ToController::Gpu(report) if report.gpu == gpu.gpu => pick(report),
            _ => None,
        })
        .await
}

#[tokio::test]
async fn an_error_of_one_program_fails_its_attempt_and_spares_gpu_and_neighbour() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let (_, orders) = busy_pair(&mut session, &gpu).await;

    faults(&agent, &format!("gpu=0 xid=31 gi={} ci=0\n", number(&agent, 1)));

    let record = session.until_ended(orders[1].attempt).await;
    assert_eq!(record.outcome, Outcome::Failed);
    assert!(record.detail.contains("XID 31"), "{record:?}");
    session.send(ToAgent::Clear { epoch: 1, gpu: gpu.gpu.clone(), slot: None }).await;
    let order = shell(&Place::on(&gpu_now(&mut session, &gpu).await), "true");
    session.launch(&order).await;
    // Nothing else ended before this one did.
    let first = session
        .until(|frame| match frame {
            ToController::Attempt(report) if matches!(report.status, AttemptStatus::Ended(_)) => {
                Some(report.attempt)
            }
            _ => None,
        })
        .await;
    assert_eq!(first, order.attempt);
}

#[tokio::test]
async fn an_error_of_an_instance_that_is_cut_hits_the_attempts_on_all_its_parts() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let three = slot(&gpu, "3g.20gb", 0);
    let parts = [0, 1, 2].map(|start| ComputeSlot { start, slices: 1 });
    let steps = vec![
        PlanStep::Cut(three, parts.to_vec().try_into().unwrap()),
        PlanStep::Create(slot(&gpu, "1g.5gb", 6)),
    ];
    let (end, report) = session.apply(plan(&gpu.gpu, 1, steps)).await;
    assert_eq!(end, PlanEnd::Done);
    let report = report.unwrap();
    let next_slice = report.instances[1].slice.clone();
    let slices = report.instances[0].parts.iter().map(|part| (three, part.slice.clone()));
    let all = slices.take(2).chain([(report.instances[1].slot, next_slice)]);
    let mut orders = Vec::new();
    for (slot, slice) in all {
        let place = Place { gpu: gpu.gpu.clone(), slot: Some(slot), slice: slice.unwrap() };
        let order = shell(&place, "sleep 600");
        session.launch(&order).await;
        session.until_running(order.attempt).await;
        orders.push(order);
    }

    faults(&agent, &format!("gpu=0 xid=94 gi={}\n", number(&agent, 0)));

    for order in &orders[..2] {
        let record = session.until_ended(order.attempt).await;
        assert!(record.detail.contains("XID 94"), "{record:?}");
    }
    let neighbour = orders[2].attempt;
    assert!(session.ended.iter().all(|(ended, _)| *ended != neighbour), "{:?}", session.ended);
}

/// The next report, whatever it contains.
async fn gpu_now(session: &mut Session, gpu: &GpuReport) -> GpuReport {
    until_report(session, gpu, |report| Some(report.clone())).await
}

#[tokio::test]
async fn the_kernels_log_names_the_instance_and_its_attempt() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let (_, orders) = busy_pair(&mut session, &gpu).await;
    let place = format!("0000:07:00 GPU-I:{:02} GPU-CI:00", number(&agent, 0));

    log_line(&agent, 900, "0000:99:00", "31, pid=1, name=x, Ch 0");
    log_line(&agent, 901, &place, "94, pid='<unknown>', name=<unknown>, Contained: SM (0x1)");

    let mut fault = None;
    let mut ended = None;
    session
        .until(|frame| {
            match frame {
                ToController::Gpu(report) => {
                    fault = report.faults.iter().find(|f| !f.attempts.is_empty()).cloned();
                }
                ToController::Attempt(report) => {
                    if let AttemptStatus::Ended(record) = &report.status {
                        ended = Some((report.attempt, record.clone()));
                    }
                }
                _ => {}
            }
            (fault.is_some() && ended.is_some()).then_some(())
        })
        .await;

    let (attempt, record) = ended.unwrap();
    assert_eq!((attempt, record.outcome), (orders[0].attempt, Outcome::Failed));
    let fault = fault.unwrap();
    assert_eq!(fault.cause, FaultCause::Xid(94));
    assert_eq!(fault.slot, Some(slot(&gpu, "1g.5gb", 0)));
    assert_eq!((fault.attempts, fault.action), (vec![attempt], FaultAction::RestartApp));
}

#[tokio::test]
async fn an_error_of_the_gpu_loses_all_its_attempts_and_keeps_work_away_until_it_is_cleared() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let (report, orders) = busy_pair(&mut session, &gpu).await;

    faults(&agent, "gpu=0 xid=95\n");

    let mut left: std::collections::BTreeSet<_> = orders.iter().map(|o| o.attempt).collect();
    let mut health = None;
    session
        .until(|frame| {
            match frame {
                ToController::Gpu(report) => health = Some(report.health.clone()),
                ToController::Attempt(report) => {
                    if let AttemptStatus::Ended(record) = &report.status {
                        assert_eq!(record.outcome, Outcome::Lost, "{record:?}");
                        assert!(record.detail.contains("XID 95"), "{record:?}");
                        left.remove(&report.attempt);
                    }
                }
                _ => {}
            }
            left.is_empty().then_some(())
        })
        .await;
    let Some(GpuHealth::Faulty { reason }) = health else { panic!("{health:?}") };
    assert!(reason.contains("reset"), "{reason}");
    let refused = session.run(&shell(&Place::on(&report), "true")).await;
    assert_eq!(refused.outcome, Outcome::NotStarted, "{refused:?}");

    session.send(ToAgent::Clear { epoch: 1, gpu: gpu.gpu.clone(), slot: None }).await;
    until_report(&mut session, &gpu, |r| (r.health == GpuHealth::Healthy).then_some(())).await;
    let record = session.run(&shell(&Place::on(&report), "true")).await;
    assert_eq!(record.outcome, Outcome::Succeeded);
}

#[tokio::test]
async fn the_drivers_own_advice_counts_more_than_the_catalogue() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let (_, orders) = busy_pair(&mut session, &gpu).await;

    faults(&agent, &format!("gpu=0 recovery=1\ngpu=0 xid=31 gi={} ci=0\n", number(&agent, 0)));

    let record = session.until_ended(orders[1].attempt).await;
    assert_eq!(record.outcome, Outcome::Lost, "its neighbour's error broke the GPU: {record:?}");
    faults(&agent, "");
    until_report(&mut session, &gpu, |r| (r.health == GpuHealth::Healthy).then_some(())).await;
}

#[tokio::test]
async fn a_lost_gpu_loses_its_attempts_while_the_other_gpu_works_on() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let (_, orders) = busy_pair(&mut session, &gpu).await;
    let other = session.gpu("A30");

    faults(&agent, "gpu=0 lost\n");

    let record = session.until_ended(orders[0].attempt).await;
    assert_eq!(record.outcome, Outcome::Lost, "{record:?}");
    let small = slot(&other, "1g.6gb", 0);
    let (end, _) = session.apply(plan(&other.gpu, 1, vec![PlanStep::Create(small)])).await;
    assert_eq!(end, PlanEnd::Done);
    faults(&agent, "");
    until_report(&mut session, &gpu, |r| (r.health == GpuHealth::Healthy).then_some(())).await;
}

#[tokio::test]
async fn a_gpu_that_fell_off_the_bus_is_out_until_the_machine_was_restarted() {
    let (cluster, mut agent, mut session, gpu) = stage().await;
    let (_, orders) = busy_pair(&mut session, &gpu).await;
    let other = session.gpu("A30");

    faults(&agent, "gpu=0 xid=79\n");

    let record = session.until_ended(orders[0].attempt).await;
    assert_eq!(record.outcome, Outcome::Lost, "{record:?}");
    assert!(record.detail.contains("XID 79"), "{record:?}");
    let small = slot(&other, "1g.6gb", 0);
    let (end, _) = session.apply(plan(&other.gpu, 1, vec![PlanStep::Create(small)])).await;
    assert_eq!(end, PlanEnd::Done, "the node's other GPU works on");

    // The next agent of the same boot knows it, the first one of the next boot forgets it.
    let faulty = |gpu: GpuReport| match gpu.health {
        GpuHealth::Faulty { reason } => Some(reason),
        GpuHealth::Healthy | GpuHealth::Unresponsive => None,
    };
    for rebooted in [false, true] {
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
        faults(&agent, "");
        if rebooted {
            crate::common::sim_node(&agent).reboot().unwrap();
        }
        agent = start(&cluster, &agent.data);
        let reason = faulty(cluster.welcome().await.gpu("A100"));
        assert_eq!(reason.is_none(), rebooted, "{reason:?}");
        assert!(reason.is_none_or(|reason| reason.contains("reboot the machine")));
    }
}

#[tokio::test]
async fn a_row_that_waits_to_be_remapped_drains_the_gpu_and_spares_what_runs() {
    let (_cluster, agent, mut session, gpu) = stage().await;
    let (report, orders) = busy_pair(&mut session, &gpu).await;

    faults(&agent, "gpu=0 remap=1\n");

    let quarantine = until_report(&mut session, &gpu, |r| r.quarantine.clone()).await;
    assert!(quarantine.reason.contains("remapped"), "{quarantine:?}");
    let refused = session.run(&shell(&Place::on(&report), "true")).await;
    assert_eq!(refused.outcome, Outcome::NotStarted, "{refused:?}");
    session
        .send(ToAgent::Stop {
            epoch: 1,
            attempt: orders[0].attempt,
            cause: tessera_frames::cluster::StopCause::Cancel,
        })
        .await;
    let record = session.until_ended(orders[0].attempt).await;
    assert_eq!(record.outcome, Outcome::Cancelled, "it ran until it was stopped");
}

#[tokio::test]
async fn a_layout_comes_back_after_a_reboot_before_the_node_is_ready() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    configure(&data);
    let models = ["h100-80gb-sxm", "a30-24gb"];
    let config = tessera_stand_in::config::StandInConfig::new(data.join("sim"), &models);
    let node = tessera_stand_in::node::SimulatedNode::open(&config).unwrap();
    let launch = || {
        cluster.start_with(&data, |command| {
            command
                .arg("--config")
                .arg(data.join("agent.toml"))
                .env("TESSERA_SIM_GPUS", models.join(","));
        })
    };
    let mut agent = launch();
    let mut session = cluster.welcome().await;
    let mut expected = Vec::new();
    for (model, profiles) in [("H100", ["3g.40gb", "1g.10gb"]), ("A30", ["2g.12gb", "1g.6gb"])] {
        let gpu = session.gpu(model);
        let slots = [
            slot(&gpu, profiles[0], 0),
            slot(&gpu, profiles[1], if model == "A30" { 2 } else { 4 }),
        ];
        let (end, report) =
            session.apply(plan(&gpu.gpu, 1, slots.map(PlanStep::Create).to_vec())).await;
        assert_eq!(end, PlanEnd::Done);
        expected.push(report.unwrap());
    }

    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    node.reboot().unwrap();
    let state = node.read().unwrap();
    assert!(state.gpus.iter().all(|gpu| gpu.instances.is_empty()));
    assert_eq!((state.gpus[0].mig, state.gpus[1].mig), (false, true), "Hopper lost its mode");
    let mut agent = launch();
    let session = cluster.welcome().await;

    for before in &expected {
        let after = session.gpus().into_iter().find(|gpu| gpu.gpu == before.gpu).unwrap();
        let slots = |gpu: &GpuReport| gpu.instances.iter().map(|i| i.slot).collect::<Vec<_>>();
        assert_eq!(slots(&after), slots(before));
        assert!(after.instances.iter().all(|i| i.slice.is_some() && i.trouble.is_none()));
    }

    // Off on purpose stays off.
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    node.change(|state| {
        for gpu in &mut state.gpus {
            gpu.instances.clear();
        }
        state.set_mig_mode(0, false).unwrap();
    })
    .unwrap();
    let mut agent = launch();
    drop(cluster.welcome().await);
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    node.reboot().unwrap();
    let _agent = launch();
    let session = cluster.welcome().await;
    assert_eq!(session.gpu("H100").mig, MigReport::Off);
    assert!(session.gpu("A30").instances.is_empty());
}

#[tokio::test]
async fn a_driver_that_is_gone_is_reported_of_for_each_gpu_that_the_node_had() {
    let (cluster, mut agent, session, gpu) = stage().await;
    drop(session);
    agent.child.kill().unwrap();
    agent.child.wait().unwrap();
    faults(&agent, "call=nvmlInit_v2 code=18\n");

    let _agent = start(&cluster, &agent.data);
    let session = cluster.welcome().await;

    let found = session.gpu("A100");
    assert_eq!(found.gpu, gpu.gpu);
    let GpuHealth::Faulty { reason } = &found.health else { panic!("{found:?}") };
    assert!(reason.contains("reload the driver or reboot"), "{reason}");
    assert_eq!(session.gpus().len(), 2);
}
