//! Writes that a crash tore. The agent is killed with `SIGKILL`. The end of its journal and the
//! newest copy of its GPU's file are damaged as a power cut would damage them. The next agent must
//! find its attempts and trust the driver.

use std::path::Path;

use crate::common::{Agent, Cluster, Place, Session, plan, shell, slot};
use tessera_frames::cluster::{AttemptStatus, GpuReport, PlanEnd};
use tessera_model::mig::compute::{ComputeSlot, Cut};
use tessera_model::mig::{PlanStep, Slot};

/// What happens to a file's newest bytes.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// They never reached the disk.
    Missing(usize),
    /// Something else stands there.
    Garbled(usize),
    /// More was begun, and is no record.
    Noise,
}

const DAMAGES: [Damage; 6] = [
    Damage::Missing(1),
    Damage::Missing(40),
    Damage::Garbled(1),
    Damage::Garbled(24),
    Damage::Garbled(200),
    Damage::Noise,
];

/// Damages the last bytes of a file that zeros follow.
fn tear(path: &Path, damage: Damage) {
    let mut bytes = std::fs::read(path).unwrap();
    let used = bytes.iter().rposition(|byte| *byte != 0).unwrap() + 1;
    match damage {
        Damage::Missing(count) => bytes[used - count.min(used)..used].fill(0),
        Damage::Garbled(count) => {
            bytes[used - count.min(used - 8)..used].iter_mut().for_each(|byte| *byte ^= 0xa5);
        }
        Damage::Noise => {
            bytes.truncate(used);
            bytes.extend((0_u8..=255).map(|byte| byte.wrapping_mul(37) | 1));
        }
    }
    std::fs::write(path, bytes).unwrap();
}

/// Damages the newer of the two copies in a GPU's file: only that one can have been in the writing.
fn tear_newest_copy(path: &Path, damage: Damage) {
    let mut bytes = std::fs::read(path).unwrap();
    let half = bytes.len() / 2;
    let number = |at: usize| u64::from_le_bytes(bytes[at + 8..at + 16].try_into().unwrap());
    let at = if number(0) > number(half) { 0 } else { half };
    let length = usize::try_from(u64::from_le_bytes(bytes[at + 16..at + 24].try_into().unwrap()));
    let end = at + 24 + length.unwrap();
    match damage {
        Damage::Missing(count) => bytes[end - count..end].fill(0),
        Damage::Garbled(count) => {
            bytes[end - count.min(end - at)..end].iter_mut().for_each(|byte| *byte ^= 0xa5);
        }
        // Its head alone was written.
        Damage::Noise => bytes[at + 24..end].fill(1),
    }
    std::fs::write(path, bytes).unwrap();
}

fn start(cluster: &Cluster, data: &Path) -> Agent {
    cluster.start_with(data, |command| {
        command.arg("--config").arg(data.join("agent.toml"));
    })
}

async fn stage() -> (Cluster, Agent, Session, GpuReport) {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let text = format!("destroy_tries = 3\nkernel_log = {:?}\n", data.join("kmsg"));
    std::fs::write(data.join("agent.toml"), text).unwrap();
    std::fs::write(data.join("kmsg"), "").unwrap();
    crate::common::make_sim(&data);
    let agent = start(&cluster, &data);
    let session = cluster.welcome().await;
    let gpu = session.gpu("A100");
    (cluster, agent, session, gpu)
}

/// Returns the instances by the driver alone: slots with their devices.
fn truth(agent: &Agent) -> Vec<(Slot, Vec<String>)> {
    let state = crate::common::sim_node(agent).read().unwrap();
    let devices = |i: &tessera_stand_in::device::GpuInstance| {
        let mut all: Vec<_> = i.compute.iter().map(|compute| compute.mig_uuid()).collect();
        all.sort();
        all
    };
    let mut all: Vec<_> = state.gpus[0].instances.iter().map(|i| (i.slot, devices(i))).collect();
    all.sort();
    all
}

fn reported(gpu: &GpuReport) -> Vec<(Slot, Vec<String>)> {
    let devices = |i: &tessera_frames::cluster::InstanceReport| {
        let parts = i.parts.iter().filter_map(|part| part.slice.as_ref());
        let mut all: Vec<_> = i.slice.iter().chain(parts).map(ToString::to_string).collect();
        all.sort();
        all
    };
    gpu.instances.iter().map(|i| (i.slot, devices(i))).collect()
}

#[tokio::test]
async fn whatever_a_torn_write_leaves_the_next_agent_trusts_the_driver_and_finds_its_attempts() {
    let (cluster, mut agent, mut session, gpu) = stage().await;
    let (small, other) = (slot(&gpu, "1g.5gb", 0), slot(&gpu, "1g.5gb", 1));
    let thirds: Cut =
        [0, 1, 2].map(|start| ComputeSlot { start, slices: 1 }).to_vec().try_into().unwrap();
    let three = slot(&gpu, "3g.20gb", 4);
    let steps = vec![PlanStep::Create(small), PlanStep::Cut(three, thirds)];
    let (end, report) = session.apply(plan(&gpu.gpu, 1, steps)).await;
    assert_eq!(end, PlanEnd::Done);
    let runs = shell(&Place::on(&report.unwrap()), "sleep 600");
    session.launch(&runs).await;
    let pid = session.until_running(runs.attempt).await;
    let state = agent.data.join("gpus").join(format!("{}.state", gpu.gpu));

    let mut number = 1;
    for damage in DAMAGES {
        // Its newest records: a change of the layout, and an attempt that came and went.
        number += 1;
        let step = PlanStep::Create(other);
        let (end, made) = session.apply(plan(&gpu.gpu, number, vec![step])).await;
        assert_eq!(end, PlanEnd::Done, "{damage:?}");
        let made = made.unwrap();
        let there = made.instances.iter().find(|i| i.slot == other).unwrap();
        let slice = there.slice.clone().unwrap();
        let place = Place { gpu: gpu.gpu.clone(), slot: Some(other), slice };
        session.run(&shell(&place, "true")).await;
        agent.child.kill().unwrap();
        agent.child.wait().unwrap();
        tear(&agent.data.join("journal"), damage);
        tear_newest_copy(&state, damage);
        let stood = truth(&agent);

        let next = start(&cluster, &agent.data);
        std::mem::forget(std::mem::replace(&mut agent, next));
        session = cluster.welcome().await;

        let found = session.gpu("A100");
        assert_eq!(reported(&found), stood, "{damage:?}");
        assert_eq!(truth(&agent), stood, "nothing was touched: {damage:?}");
        let troubles: Vec<_> = found.instances.iter().filter_map(|i| i.trouble.clone()).collect();
        assert!(troubles.is_empty(), "they are the node's: {damage:?} {troubles:?}");
        let status = session.reported(runs.attempt);
        let still = matches!(status, Some(AttemptStatus::Running { pid: p, .. }) if p == pid);
        assert!(still, "{damage:?}: {status:?}");
        // It goes on from there.
        number += 1;
        let gone = plan(&gpu.gpu, number, vec![PlanStep::Destroy(other)]);
        let (end, report) = session.apply(gone).await;
        assert_eq!(end, PlanEnd::Done, "{damage:?}");
        assert_eq!(report.unwrap().instances.len(), 2);
    }
}
