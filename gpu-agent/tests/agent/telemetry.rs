//! Sampling and energy through the stand-in's NVML, with programs that use memory and power.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::common::{
    Agent, Cluster, Place, Session, eventually, kill, order, plan, sim_node, slot,
};
use serde_json::Value;
use tessera_frames::cluster::{
    AttemptUsage, GpuReport, LaunchOrder, PlanEnd, ToAgent, ToController,
};
use tessera_model::mig::{PlanStep, Slot};
use tessera_model::{AttemptId, Bytes};

const MIB: u64 = 1 << 20;

/// Runs a program of these tests: this very test, started by a shepherd as an attempt.
#[test]
fn plays_the_attempt_when_asked_to() {
    let Ok(reported) = std::env::var("TEST_USES") else { return };
    let (mib, load) = reported.split_once(' ').unwrap();
    let config = tessera_stand_in::config::StandInConfig::from_env().unwrap();
    let node = tessera_stand_in::node::SimulatedNode::open(&config).unwrap();
    let slice = std::env::var("CUDA_VISIBLE_DEVICES").unwrap();
    let client = tessera_stand_in::client::DeviceClient::open(&node, &slice).unwrap();
    client.allocate(mib.parse::<u64>().unwrap() * MIB).unwrap();
    client.set_load(load.parse().unwrap()).unwrap();
    let go = std::path::PathBuf::from(std::env::var("TEST_UNTIL").unwrap());
    while !go.exists() {
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// An attempt that uses `mib` of memory and keeps its slice `load` percent busy until the file
/// `until` in the agent's folder is there.
fn user(agent: &Agent, place: &Place, mib: u64, load: u8, until: &str) -> LaunchOrder {
    let program = std::env::current_exe().unwrap();
    let program = program.to_str().unwrap();
    let mut order = order(
        place,
        &[program, "telemetry::plays_the_attempt_when_asked_to", "--exact", "--test-threads=1"],
    );
    let until = agent.data.join(until).display().to_string();
    order.run.env.insert("TEST_USES".into(), format!("{mib} {load}"));
    order.run.env.insert("TEST_UNTIL".into(), until);
    order
}

fn allow(agent: &Agent, until: &str) {
    std::fs::write(agent.data.join(until), "").unwrap();
}

/// Cuts a GPU and returns the places on it.
async fn cut(session: &mut Session, gpu: &GpuReport, slots: &[Slot]) -> Vec<Place> {
    let steps = slots.iter().copied().map(PlanStep::Create).collect();
    let (end, report) = session.apply(plan(&gpu.gpu, 1, steps)).await;
    assert_eq!(end, PlanEnd::Done);
    let place = |instance: &tessera_frames::cluster::InstanceReport| Place {
        gpu: gpu.gpu.clone(),
        slot: Some(instance.slot),
        slice: instance.slice.clone().unwrap(),
    };
    report.unwrap().instances.iter().map(place).collect()
}

/// Returns what the agent has recorded of a GPU: the counter at the last sample, the parts of attempts by id,
/// and the sum of all parts.
fn account(agent: &Agent, gpu: &GpuReport) -> Option<(u64, BTreeMap<String, u64>, u64)> {
    let path = agent.data.join("telemetry").join(format!("{}.json", gpu.gpu));
    let text = std::fs::read_to_string(path).ok()?;
    let kept: Value = serde_json::from_str(&text).unwrap();
    let ledger = &kept["ledger"];
    let number = |name: &str| ledger[name].as_u64().unwrap();
    let attempts: BTreeMap<String, u64> =
        serde_json::from_value(ledger["attempts"].clone()).unwrap();
    let parts = number("idle_mj") + number("other_mj") + number("settled_mj");
    let all = parts + attempts.values().sum::<u64>();
    Some((ledger["last"]["counter_mj"].as_u64()?, attempts, all))
}

async fn used(session: &mut Session, attempt: AttemptId) -> AttemptUsage {
    session
        .until(|frame| match frame {
            ToController::Usage(usage) if usage.attempt == attempt => Some(*usage),
            _ => None,
        })
        .await
}

/// Waits until an attempt's program has its memory, past the agent.
async fn until_allocated(agent: &Agent, mib: u64) {
    let node = sim_node(agent);
    eventually("the program has its memory", || {
        let state = node.read().unwrap();
        state.claims.iter().any(|claim| claim.memory_bytes == mib * MIB && claim.load_percent > 0)
    })
    .await;
}

#[tokio::test]
async fn two_slices_and_nobody_bear_exactly_what_the_counter_gained() {
    let cluster = Cluster::new();
    let agent = cluster.start(&cluster.enrol("n1"));
    let mut session = cluster.welcome().await;
    let gpu = session.gpu("A100");
    let slots = [slot(&gpu, "3g.20gb", 0), slot(&gpu, "1g.5gb", 4)];
    let places = cut(&mut session, &gpu, &slots).await;
    let first = user(&agent, &places[0], 700, 90, "go");
    let second = user(&agent, &places[1], 70, 10, "go");
    for order in [&first, &second] {
        session.launch(order).await;
        session.until_running(order.attempt).await;
    }
    until_allocated(&agent, 700).await;
    until_allocated(&agent, 70).await;
    let mut begun = None;
    eventually("an account with both attempts", || {
        begun = account(&agent, &gpu);
        begun.as_ref().is_some_and(|(_, attempts, _)| attempts.len() == 2)
    })
    .await;
    let begun = begun.unwrap();
    eventually("half a second's energy more", || {
        account(&agent, &gpu).is_some_and(|(counter, ..)| counter > begun.0 + 32_000)
    })
    .await;

    allow(&agent, "go");
    let big = used(&mut session, first.attempt).await;
    let small = used(&mut session, second.attempt).await;

    assert_eq!(big.peak_memory, Some(Bytes::from_mib(700)));
    assert_eq!(small.peak_memory, Some(Bytes::from_mib(70)));
    let (big, small) = (big.energy_mj.unwrap(), small.energy_mj.unwrap());
    assert!(big > small && small > 0, "three slices of seven against one: {big} and {small} mJ");
    let ended = account(&agent, &gpu).unwrap();
    assert_eq!(ended.2 - begun.2, ended.0 - begun.0, "{begun:?} {ended:?}");

    // Repeated until the controller has it, and forgotten then.
    assert_eq!(used(&mut session, first.attempt).await.energy_mj, Some(big));
    session.send(ToAgent::UsageAck { attempt: first.attempt }).await;
    session.send(ToAgent::UsageAck { attempt: second.attempt }).await;
}

#[tokio::test]
async fn an_agent_that_is_killed_loses_no_energy_and_counts_none_twice() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let mut agent = cluster.start(&data);
    let mut session = cluster.welcome().await;
    let gpu = session.gpu("A100");
    let slots = [slot(&gpu, "7g.40gb", 0)];
    let places = cut(&mut session, &gpu, &slots).await;
    let order = user(&agent, &places[0], 300, 100, "go");
    session.launch(&order).await;
    session.until_running(order.attempt).await;
    until_allocated(&agent, 300).await;
    let mut begun = None;
    eventually("an account with the attempt", || {
        begun = account(&agent, &gpu);
        begun.as_ref().is_some_and(|(_, attempts, _)| attempts.values().any(|mj| *mj > 10_000))
    })
    .await;
    let begun = begun.unwrap();

    kill(agent.child.id(), "-KILL");
    agent.child.wait().unwrap();
    drop(session);
    let device = sim_node(&agent);
    let counter =
        || device.read().unwrap().energy_millijoules(0, tessera_stand_in::node::running_ms());
    let dead = counter();
    eventually("the GPU draws while no agent is there", || counter() > dead + 30_000).await;
    agent.child = cluster.command(&data).spawn().unwrap();
    let mut session = cluster.accept().await;
    session.welcome(1, 1, 60).await;
    allow(&agent, "go");
    let usage = used(&mut session, order.attempt).await;

    let ended = account(&agent, &gpu).unwrap();
    assert_eq!(ended.2 - begun.2, ended.0 - begun.0, "{begun:?} {ended:?}");
    // It had the whole GPU all the while: what was drawn without an agent is its too.
    let bore = usage.energy_mj.unwrap();
    let before: u64 = begun.1.values().sum();
    assert!(bore >= before + 30_000, "{bore} mJ, {before} mJ before");
    assert!(bore <= ended.0, "{bore} mJ of {} mJ", ended.0);
    assert_eq!(usage.peak_memory, Some(Bytes::from_mib(300)));
}

/// The number that the driver gives the instance on a slot now.
fn number_of(agent: &Agent, slot: Slot) -> u32 {
    let state = sim_node(agent).read().unwrap();
    state.gpus[0].instances.iter().find(|instance| instance.slot == slot).unwrap().id
}

fn files(folder: &std::path::Path) -> BTreeMap<String, String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    let shown = names.filter(|name| !name.starts_with('.'));
    shown.map(|name| (name.clone(), std::fs::read_to_string(folder.join(&name)).unwrap())).collect()
}

async fn until_files(folder: &std::path::Path, expected: &[(String, &str)]) {
    let expected: BTreeMap<_, _> =
        expected.iter().map(|(name, text)| (name.clone(), (*text).to_owned())).collect();
    eventually(&format!("the files {expected:?}"), || files(folder) == expected).await;
}

#[tokio::test]
async fn dcgm_learns_of_launches_ends_and_new_layouts_also_over_a_restart() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let folder = data.join("dcgm");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("7"), "another scheduler's\n").unwrap();
    let other = ("7".to_owned(), "another scheduler's\n");
    let start = || {
        let mut command = cluster.command(&data);
        command.arg("--dcgm-job-mapping").arg(&folder);
        command.spawn().unwrap()
    };
    let mut agent = Agent { child: start(), data: data.clone() };
    let mut session = cluster.welcome().await;
    let gpu = session.gpu("A100");
    assert_eq!(gpu.index, 0);
    let slots = [slot(&gpu, "3g.20gb", 0), slot(&gpu, "1g.5gb", 4)];
    let places = cut(&mut session, &gpu, &slots).await;
    let mut first = user(&agent, &places[0], 10, 10, "go-1");
    let mut second = user(&agent, &places[1], 10, 10, "go-2");
    first.job = tessera_model::JobId::from_number(101);
    second.job = tessera_model::JobId::from_number(102);
    for order in [&first, &second] {
        session.launch(order).await;
        session.until_running(order.attempt).await;
    }
    let name = |agent: &Agent, slot| format!("0.{}", number_of(agent, slot));
    let (a, b) = (name(&agent, slots[0]), name(&agent, slots[1]));
    until_files(&folder, &[(a.clone(), "101\n"), (b, "102\n"), other.clone()]).await;

    // The small one ends, and its slices are partitioned again under another number.
    allow(&agent, "go-2");
    session.until_ended(second.attempt).await;
    until_files(&folder, &[(a.clone(), "101\n"), other.clone()]).await;
    let changed_slot = slot(&gpu, "2g.10gb", 4);
    let steps = vec![PlanStep::Destroy(slots[1]), PlanStep::Create(changed_slot)];
    let (end, report) = session.apply(plan(&gpu.gpu, 2, steps)).await;
    assert_eq!(end, PlanEnd::Done);
    let made = report.unwrap().instances.into_iter().find(|i| i.slot == changed_slot).unwrap();
    let place =
        Place { gpu: gpu.gpu.clone(), slot: Some(changed_slot), slice: made.slice.unwrap() };
    let mut third = user(&agent, &place, 10, 10, "go-3");
    third.job = tessera_model::JobId::from_number(103);
    session.launch(&third).await;
    session.until_running(third.attempt).await;
    let c = name(&agent, changed_slot);
    until_files(&folder, &[(a.clone(), "101\n"), (c.clone(), "103\n"), other.clone()]).await;

    // The agent dies, a job ends meanwhile: the next agent takes away what is stale.
    kill(agent.child.id(), "-KILL");
    agent.child.wait().unwrap();
    drop(session);
    allow(&agent, "go-1");
    let node = sim_node(&agent);
    let left = |mib| {
        let state = node.read().unwrap();
        state.claims.iter().filter(|claim| claim.memory_bytes == mib * MIB).count()
    };
    eventually("the first job is over", || left(10) == 1).await;
    assert!(files(&folder).contains_key(&a), "nobody was there to take it away");
    agent.child = start();
    let mut session = cluster.accept().await;
    session.welcome(1, 1, 60).await;
    until_files(&folder, &[(c, "103\n"), other]).await;
    allow(&agent, "go-3");
    session.until_ended(third.attempt).await;
}

/// Reads a page over HTTP.
async fn page(address: std::net::SocketAddr, path: &str, header: &str) -> String {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\n{header}connection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    text
}

#[tokio::test]
async fn the_agent_shows_its_gpus_to_prometheus() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    // Nobody else is at this address, so that nobody takes the port before the agent does.
    let free = std::net::TcpListener::bind("127.0.0.9:0").unwrap();
    let address = free.local_addr().unwrap();
    drop(free);
    let agent = cluster.start_with(&data, |command| {
        command.arg("--http").arg(address.to_string());
    });
    let mut session = cluster.welcome().await;
    let gpu = session.gpu("A100");
    let places = cut(&mut session, &gpu, &[slot(&gpu, "3g.20gb", 4)]).await;
    let order = user(&agent, &places[0], 123, 100, "go");
    session.launch(&order).await;
    session.until_running(order.attempt).await;
    until_allocated(&agent, 123).await;
    let token = std::fs::read_to_string(agent.data.join("metrics-token")).unwrap();
    let proof = format!("authorization: Bearer {}\r\n", token.trim());
    let gpu_labels = format!("{{node=\"n1\",gpu=\"{}\"", gpu.gpu);
    let expected = [
        format!("tessera_gpu_memory_used_bytes{gpu_labels}}} {}\n", 123 * MIB),
        // Three busy slices of an A100 with SXM at 25.563 W each, above 50 W.
        format!("tessera_gpu_power_watts{gpu_labels}}} 126.689\n"),
        format!("tessera_slice_memory_used_bytes{gpu_labels},start=\"4\"}} {}\n", 123 * MIB),
        format!("tessera_process_memory_used_bytes{gpu_labels},start=\"4\",pid=\""),
        "tessera_agent_attempts{node=\"n1\",state=\"running\"} 1\n".to_owned(),
        format!("tessera_gpu_energy_joules_total{gpu_labels},bearer=\"jobs\"}} "),
        "tessera_nvml_calls_total{node=\"n1\",call=\"sample\",result=\"ok\"} ".to_owned(),
        "tessera_nvml_calls_total{node=\"n1\",call=\"create\",result=\"ok\"} 1\n".to_owned(),
        "tessera_nvml_calls_total{node=\"n1\",call=\"list\",result=\"ok\"} ".to_owned(),
    ];

    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    loop {
        let text = page(address, "/metrics", &proof).await;
        let missing: Vec<_> = expected.iter().filter(|line| !text.contains(*line)).collect();
        if missing.is_empty() {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{missing:?} not in {text}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    assert!(page(address, "/healthz", "").await.ends_with("ok\n"));
    for wrong in ["", "authorization: Bearer 0\r\n"] {
        let refused = page(address, "/metrics", wrong).await;
        assert!(refused.starts_with("HTTP/1.1 401"), "{refused}");
        assert!(!refused.contains("tessera_"), "{refused}");
    }
    allow(&agent, "go");
    session.until_ended(order.attempt).await;
}
