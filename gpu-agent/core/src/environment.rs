//! The environment of an attempt: it starts empty, then gets the user's variables, then ours.

use std::collections::BTreeMap;

use tessera_frames::cluster::{GangPosition, GpuReport, LaunchOrder, MigReport};
use tessera_model::NodeName;
use tessera_model::life::Outcome;
use tessera_model::mig::compute::memory_share;
use tessera_model::number::clamped;
use tessera_model::place::compressed;
use tessera_model::spec::ALL_PROCESSORS;

/// The name of the cluster, which jobs of Slurm know.
const CLUSTER: &str = "tessera";
/// The variable that has the number of a job's first process; that process itself fills in an empty one.
const TASK_PID: &str = "SLURM_TASK_PID";

/// The node's part of the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeEnvironment {
    /// `HOME`, `USER`, `SHELL` … of the account that attempts run under.
    pub base: BTreeMap<String, String>,
    /// Variables of the agent's own environment that are passed on.
    pub passed: BTreeMap<String, String>,
    /// How many processors the node has.
    pub processors: u32,
}

/// Returns a list of paths with an entry before all others.
pub fn with_first_path(others: Option<&String>, entry: &str) -> String {
    match others.filter(|others| !others.is_empty()) {
        Some(others) => format!("{entry}:{others}"),
        None => entry.to_owned(),
    }
}

/// Returns every variable of an attempt.
pub fn environment(
    order: &LaunchOrder,
    node: &NodeName,
    gpu: &GpuReport,
    around: &NodeEnvironment,
) -> BTreeMap<String, String> {
    let mut all = around.base.clone();
    all.extend(around.passed.clone());
    all.extend(order.run.env.clone());
    let mut set = |name: &str, value: String| {
        all.insert(name.to_owned(), value);
    };
    for (name, value) in shared(order, node) {
        set(&format!("TESSERA_{name}"), value.clone());
        // Scripts take its mere presence for a restart, as Slurm sets it only then.
        if name != "RESTART_COUNT" || order.number > 1 {
            set(&format!("SLURM_{name}"), value);
        }
    }
    set("TESSERA_ATTEMPT", order.number.to_string());
    set("TESSERA_ATTEMPT_ID", order.attempt.to_string());
    set("TESSERA_NODE", node.to_string());
    for (name, value) in ranks(order.gang.as_ref()) {
        set(name, value);
    }
    let each = order.gang.iter().filter(|gang| gang.devices.is_empty());
    for (name, value) in each.flat_map(meeting) {
        // A user's own rendezvous settings take precedence.
        if !order.run.env.contains_key(name) {
            set(name, value);
        }
    }
    let once = order.gang.iter().filter(|gang| !gang.devices.is_empty());
    for gang in once {
        set("TESSERA_MASTER_ADDR", gang.master.clone());
        set("TESSERA_STEP_JOBS", step_jobs(gang));
    }
    for (name, value) in of_batch(order, node, around.processors) {
        set(name, value);
    }
    set("SLURM_JOB_GPUS", gpu.index.to_string());
    set("CUDA_VISIBLE_DEVICES", visible_devices(order));
    for (name, value) in of_gpu(order, gpu) {
        set(&format!("TESSERA_{name}"), value);
    }
    if let Some(reason) = order.restart_reason {
        set("TESSERA_RESTART_REASON", restart_word(reason).to_owned());
    }
    set("TESSERA_OOM_COUNT", order.oom_count.to_string());
    if let Some(context) = &order.traceparent {
        set("TRACEPARENT", context.clone());
    }
    all
}

/// Returns a process's position among those of its job, in the terms of batch schedulers; it is
/// alone if it is not in a gang.
fn ranks(gang: Option<&GangPosition>) -> Vec<(&'static str, String)> {
    let (mut rank, mut local_rank, mut node_rank, mut size, mut nodes) = (0, 0, 0, 1, 1);
    let mut local_size = 1;
    if let Some(gang) = gang {
        (rank, local_rank, node_rank) = (gang.rank, gang.local_rank, gang.node_rank);
        (size, local_size) = (gang.size, gang.local_size);
        nodes = gang.nodes.len();
    }
    let mut list = vec![
        ("SLURM_NODEID", node_rank.to_string()),
        ("SLURM_PROCID", rank.to_string()),
        ("SLURM_LOCALID", local_rank.to_string()),
        ("SLURM_NNODES", nodes.to_string()),
        ("SLURM_JOB_NUM_NODES", nodes.to_string()),
        ("SLURM_GPUS_ON_NODE", local_size.to_string()),
    ];
    // If the program starts its own processes, their number is that of its user, or unknown.
    if gang.is_some_and(|gang| gang.devices.is_empty()) {
        list.push(("SLURM_NTASKS", size.to_string()));
        list.push(("SLURM_NPROCS", size.to_string()));
        list.push(("SLURM_NTASKS_PER_NODE", local_size.to_string()));
    }
    list
}

/// Returns the devices that the program may use, in CUDA's format: its own, or those of all members
/// of its gang on its node.
fn visible_devices(order: &LaunchOrder) -> String {
    let of_node = order.gang.as_ref().map_or(&[][..], |gang| &gang.devices);
    match of_node {
        [] => order.slice.to_string(),
        devices => devices.iter().map(|device| device.slice.as_str()).collect::<Vec<_>>().join(","),
    }
}

/// Returns the variables that Slurm sets for every batch script.
fn of_batch(order: &LaunchOrder, node: &NodeName, processors: u32) -> Vec<(&'static str, String)> {
    let nodes = order.gang.as_ref().map_or_else(|| vec![node.clone()], |gang| gang.nodes.clone());
    let option = |name: &str| order.run.env.get(name);
    let number = |name: &str| option(name).and_then(|text| text.parse::<u32>().ok());
    let count = clamped::<u32>(nodes.len()).max(1);
    let (per_node, tasks) = (number("SLURM_NTASKS_PER_NODE"), number("SLURM_NTASKS"));
    let named = per_node.or(tasks.map(|tasks| tasks.div_ceil(count)));
    let each_cpus = number("SLURM_CPUS_PER_TASK").unwrap_or(1).max(1);
    let is_whole = option("SLURM_CPUS_ON_NODE").is_some_and(|text| text == ALL_PROCESSORS);
    // Without a limit, Slurm gives each task one processor.
    let cpus = match order.run.cpus {
        Some(cpus) => cpus,
        None if is_whole => processors.max(1),
        None => named.unwrap_or(1),
    };
    let cpus_per_node = match (order.run.cpus, per_node, tasks) {
        (None, None, Some(tasks)) if !is_whole => spread(tasks, count),
        _ => on_each(cpus, count),
    };
    let tasks_per_node = match (per_node, tasks) {
        (None, Some(tasks)) => spread(tasks, count),
        _ => on_each(named.unwrap_or(cpus / each_cpus).max(1), count),
    };
    vec![
        ("SLURM_JOBID", order.job.to_string()),
        ("SLURMD_NODENAME", node.to_string()),
        ("HOSTNAME", node.to_string()),
        ("ENVIRONMENT", "BATCH".to_owned()),
        ("SLURM_CLUSTER_NAME", CLUSTER.to_owned()),
        ("SLURM_WORKING_CLUSTER", CLUSTER.to_owned()),
        ("SLURM_JOB_NODELIST", compressed(&nodes)),
        ("SLURM_NODELIST", compressed(&nodes)),
        ("SLURM_NODE_ALIASES", "(null)".to_owned()),
        ("SLURM_TOPOLOGY_ADDR", node.to_string()),
        ("SLURM_TOPOLOGY_ADDR_PATTERN", "node".to_owned()),
        ("SLURM_PRIO_PROCESS", "0".to_owned()),
        ("SLURM_TASKS_PER_NODE", tasks_per_node),
        ("SLURM_GTIDS", "0".to_owned()),
        ("SLURM_CPUS_ON_NODE", cpus.to_string()),
        ("SLURM_JOB_CPUS_PER_NODE", cpus_per_node),
        // Its process fills it in.
        (TASK_PID, String::new()),
    ]
}

/// Writes a number that each of so many nodes has, as Slurm does: `4(x2)`.
fn on_each(number: u32, nodes: u32) -> String {
    match nodes {
        0 | 1 => number.to_string(),
        nodes => format!("{number}(x{nodes})"),
    }
}

/// Writes how many tasks each node has if they are spread evenly: `2,1`.
fn spread(tasks: u32, nodes: u32) -> String {
    let more = tasks % nodes;
    let parts = [(tasks / nodes + 1, more), (tasks / nodes, nodes - more)];
    let parts = parts.into_iter().filter(|(_, nodes)| *nodes > 0);
    parts.map(|(number, nodes)| on_each(number, nodes)).collect::<Vec<_>>().join(",")
}

/// Returns the variables that `torchrun` sets for its programs, and the same under our prefix.
fn meeting(gang: &GangPosition) -> Vec<(&'static str, String)> {
    let (node, size) = (gang.node_rank.to_string(), gang.size.to_string());
    let (rank, local) = (gang.rank.to_string(), gang.local_rank.to_string());
    let (local_size, port) = (gang.local_size.to_string(), gang.port.to_string());
    vec![
        ("RANK", rank.clone()),
        ("LOCAL_RANK", local.clone()),
        ("WORLD_SIZE", size.clone()),
        ("LOCAL_WORLD_SIZE", local_size.clone()),
        ("NODE_RANK", node.clone()),
        ("GROUP_RANK", node.clone()),
        ("MASTER_ADDR", gang.master.clone()),
        ("MASTER_PORT", port.clone()),
        ("TESSERA_GANG_ID", gang.gang.to_string()),
        ("TESSERA_GANG_RANK", rank),
        ("TESSERA_GANG_SIZE", size),
        ("TESSERA_GANG_LOCAL_RANK", local),
        ("TESSERA_GANG_LOCAL_SIZE", local_size),
        ("TESSERA_GANG_NODE_RANK", node),
        ("TESSERA_GANG_NODES", gang.nodes.len().to_string()),
        ("TESSERA_GANG_NODELIST", list(&gang.nodes)),
        ("TESSERA_GANG_MASTER_ADDR", gang.master.clone()),
        ("TESSERA_GANG_MASTER_PORT", port),
    ]
}

/// Returns the first member of a gang on each node, through which steps start processes there.
fn step_jobs(gang: &GangPosition) -> String {
    let first = gang.gang.number();
    let members =
        (0..).zip(&gang.nodes).map(|(node, _): (u64, _)| first + node * u64::from(gang.local_size));
    members.map(|member| member.to_string()).collect::<Vec<_>>().join(",")
}

fn list(nodes: &[NodeName]) -> String {
    nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Returns the variables that exist under our prefix and under that of batch schedulers.
fn shared(order: &LaunchOrder, node: &NodeName) -> Vec<(&'static str, String)> {
    let nodes = order.gang.as_ref().map_or_else(|| node.to_string(), |gang| list(&gang.nodes));
    let mut list = vec![
        ("JOB_ID", order.job.to_string()),
        ("JOB_NAME", order.name.clone()),
        ("JOB_USER", order.user.clone()),
        ("JOB_NODELIST", nodes.clone()),
        ("NODELIST", nodes),
    ];
    list.push(("RESTART_COUNT", order.number.saturating_sub(1).to_string()));
    if let Some(place) = order.array {
        list.extend([
            ("ARRAY_JOB_ID", place.array.to_string()),
            ("ARRAY_TASK_ID", place.index.to_string()),
            ("ARRAY_TASK_COUNT", place.count.to_string()),
            ("ARRAY_TASK_MIN", place.min.to_string()),
            ("ARRAY_TASK_MAX", place.max.to_string()),
        ]);
    }
    list
}

fn of_gpu(order: &LaunchOrder, gpu: &GpuReport) -> Vec<(&'static str, String)> {
    let mut list = vec![("GPU_UUID", gpu.gpu.to_string())];
    let instance =
        order.slot.and_then(|slot| gpu.instances.iter().find(|instance| instance.slot == slot));
    match instance {
        Some(instance) => {
            let profile = match &gpu.mig {
                MigReport::On { geometry } => geometry.profile(instance.slot.profile),
                MigReport::Off | MigReport::Unsupported => None,
            };
            let part = instance.parts.iter().find(|part| part.slice.as_ref() == Some(&order.slice));
            let name = profile.map(|profile| profile.name.clone());
            let (memory, sms, name) = match (part, profile) {
                // Its part of the resources that it shares with the other compute instances.
                (Some(part), Some(profile)) => (
                    memory_share(instance.memory, profile.compute_slices, part.slot.slices),
                    part.sms,
                    Some(format!("{}c.{}", part.slot.slices, profile.name)),
                ),
                (Some(_), None) | (None, _) => {
                    (instance.memory, instance.sms, name.map(|name| name.to_string()))
                }
            };
            list.push(("GPU_MEMORY_BYTES", memory.get().to_string()));
            list.push(("GPU_SM_COUNT", sms.to_string()));
            list.extend(name.map(|name| ("GPU_PROFILE", name)));
            if part.is_some() {
                list.push(("GPU_MEMORY_SHARED_BYTES", instance.memory.get().to_string()));
            }
        }
        None => {
            list.push(("GPU_MEMORY_BYTES", gpu.memory.get().to_string()));
            list.extend(gpu.sms.map(|sms| ("GPU_SM_COUNT", sms.to_string())));
        }
    }
    list
}

const fn restart_word(reason: Outcome) -> &'static str {
    match reason {
        Outcome::OutOfMemory => "oom",
        Outcome::Preempted => "preempted",
        Outcome::Lost => "node_fail",
        Outcome::Failed => "failed",
        Outcome::NotStarted => "not_started",
        Outcome::Collateral => "mps_fault",
        Outcome::Succeeded | Outcome::Cancelled | Outcome::TimedOut | Outcome::LaunchFailed => {
            "restart"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attempts::testing::{gpu, order};
    use tessera_frames::cluster::ComputeInstanceReport;
    use tessera_model::Bytes;
    use tessera_model::mig::compute::ComputeSlot;

    fn built(order: &LaunchOrder) -> BTreeMap<String, String> {
        let around = NodeEnvironment {
            base: [("PATH".to_owned(), "/bin".to_owned())].into(),
            passed: [("TESSERA_SIM_NODE".to_owned(), "/sim".to_owned())].into(),
            processors: 64,
        };
        environment(order, &"n1".parse().unwrap(), &gpu(), &around).into_iter().collect()
    }

    #[test]
    fn a_gangs_member_finds_its_ranks_as_torchrun_would_set_them() {
        let gang = GangPosition {
            gang: tessera_model::JobId::from_number(42),
            rank: 3,
            size: 4,
            local_rank: 1,
            local_size: 2,
            node_rank: 1,
            nodes: vec!["n0".parse().unwrap(), "n1".parse().unwrap()],
            master: "10.0.0.1".to_owned(),
            port: 20_500,
            devices: Vec::new(),
        };
        let mut order = order(1, 45);
        order.gang = Some(gang);
        order.run.env.insert("MASTER_PORT".to_owned(), "29500".to_owned());

        let built = built(&order);

        for (name, value) in [
            ("RANK", "3"),
            ("LOCAL_RANK", "1"),
            ("WORLD_SIZE", "4"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("NODE_RANK", "1"),
            ("GROUP_RANK", "1"),
            ("MASTER_ADDR", "10.0.0.1"),
            ("TESSERA_GANG_ID", "42"),
            ("SLURM_PROCID", "3"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_NNODES", "2"),
            ("SLURM_JOB_NODELIST", "n[0-1]"),
            ("TESSERA_JOB_NODELIST", "n0,n1"),
        ] {
            assert_eq!(built[name], value, "{name}");
        }
        assert_eq!(built["MASTER_PORT"], "29500", "the user's own setting has precedence");
        assert_eq!(built["TESSERA_GANG_MASTER_PORT"], "20500");
        assert!(!built.contains_key("TESSERA_ARRAY_JOB_ID"));
    }

    #[test]
    fn a_user_may_set_the_path_but_not_the_slice() {
        let mut order = order(1, 42);
        order.run.env.insert("PATH".into(), "/opt".into());
        order.run.env.insert("CUDA_VISIBLE_DEVICES".into(), "all".into());

        let built = built(&order);

        assert_eq!(built["PATH"], "/opt");
        assert_eq!(built["CUDA_VISIBLE_DEVICES"], order.slice.as_str());
        assert_eq!(built["TESSERA_SIM_NODE"], "/sim");
    }

    #[test]
    fn a_script_that_runs_once_sees_all_devices_of_its_node_and_no_ranks() {
        let device = |slice: &str| tessera_frames::cluster::GangDevice {
            gpu: gpu().gpu,
            slot: None,
            slice: slice.parse().unwrap(),
        };
        let mut order = order(1, 42);
        order.run.env.insert("SLURM_NTASKS".to_owned(), "4".to_owned());
        order.gang = Some(GangPosition {
            gang: order.job,
            rank: 0,
            size: 4,
            local_rank: 0,
            local_size: 2,
            node_rank: 0,
            nodes: vec!["n0".parse().unwrap(), "n1".parse().unwrap()],
            master: "10.0.0.1".to_owned(),
            port: 20_500,
            devices: vec![device("GPU-1"), device("GPU-2")],
        });

        let built = built(&order);

        for (name, value) in [
            ("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2"),
            ("SLURM_GPUS_ON_NODE", "2"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_TASKS_PER_NODE", "2(x2)"),
            ("SLURM_JOB_NUM_NODES", "2"),
            ("SLURM_JOBID", "42"),
            ("SLURMD_NODENAME", "n1"),
            ("TESSERA_STEP_JOBS", "42,44"),
            ("TESSERA_MASTER_ADDR", "10.0.0.1"),
        ] {
            assert_eq!(built[name], value, "{name}");
        }
        for name in ["RANK", "WORLD_SIZE", "MASTER_PORT", "SLURM_NTASKS_PER_NODE"] {
            assert!(!built.contains_key(name), "{name}");
        }
    }

    #[test]
    fn variables_that_a_user_did_not_set_are_absent() {
        let built = built(&order(1, 42));

        for name in ["SLURM_NTASKS", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE"] {
            assert!(!built.contains_key(name), "{name}");
        }
    }

    #[test]
    fn processors_and_tasks_are_counted_as_in_slurm() {
        let counted = |cpus: Option<u32>, options: &[(&str, &str)]| {
            let mut order = order(1, 42);
            order.run.cpus = cpus;
            let options =
                options.iter().map(|(name, value)| (format!("SLURM_{name}"), (*value).into()));
            order.run.env.extend(options);
            let built = built(&order);
            let shown = ["SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE", "SLURM_TASKS_PER_NODE"];
            shown.map(|name| built[name].clone()).join(" ")
        };

        assert_eq!(counted(None, &[]), "1 1 1");
        assert_eq!(counted(None, &[("NTASKS", "3")]), "3 3 3");
        assert_eq!(counted(Some(3), &[("CPUS_PER_TASK", "3")]), "3 3 1");
        assert_eq!(counted(Some(4), &[]), "4 4 4");
        assert_eq!(counted(None, &[("CPUS_ON_NODE", "all")]), "64 64 64");
        assert_eq!(
            (spread(3, 2), spread(4, 2), on_each(2, 1)),
            ("2,1".into(), "2(x2)".into(), "2".into())
        );
    }

    #[test]
    fn a_job_learns_its_number_under_both_names() {
        let built = built(&order(1, 42));

        assert_eq!(built["TESSERA_JOB_ID"], "42");
        assert_eq!(built["SLURM_JOB_ID"], "42");
        assert_eq!(built["TESSERA_GPU_PROFILE"], "1g.5gb");
        assert!(!built.contains_key("TESSERA_ARRAY_JOB_ID"));
    }

    #[test]
    fn a_job_on_a_compute_instance_gets_its_part_and_the_shared_memory() {
        let mut gpu = gpu();
        let instance = &mut gpu.instances[0];
        let one = order(1, 42);
        instance.slice = None;
        instance.memory = Bytes::from_mib(5_000);
        instance.parts = vec![ComputeInstanceReport {
            slot: ComputeSlot { start: 0, slices: 1 },
            slice: Some(one.slice.clone()),
            sms: 7,
        }];

        let around = NodeEnvironment::default();
        let built: BTreeMap<_, _> =
            environment(&one, &"n1".parse().unwrap(), &gpu, &around).into_iter().collect();

        assert_eq!(built["CUDA_VISIBLE_DEVICES"], one.slice.as_str());
        assert_eq!(built["TESSERA_GPU_PROFILE"], "1c.1g.5gb");
        assert_eq!(built["TESSERA_GPU_SM_COUNT"], "7");
        let shared = Bytes::from_mib(5_000).get().to_string();
        assert_eq!(built["TESSERA_GPU_MEMORY_SHARED_BYTES"], shared);
    }

    #[test]
    fn a_restarted_job_learns_why() {
        let order = LaunchOrder { number: 3, restart_reason: Some(Outcome::Lost), ..order(1, 42) };

        let built = built(&order);

        assert_eq!(built["TESSERA_RESTART_COUNT"], "2");
        assert_eq!(built["SLURM_RESTART_COUNT"], "2");
        assert_eq!(built["TESSERA_RESTART_REASON"], "node_fail");
        assert_eq!(built["TESSERA_OOM_COUNT"], "0");
    }

    #[test]
    fn a_job_that_ran_out_of_memory_learns_how_often() {
        let reason = Some(Outcome::OutOfMemory);
        let order = LaunchOrder { oom_count: 2, restart_reason: reason, ..order(1, 42) };

        let built = built(&order);

        assert_eq!(built["TESSERA_OOM_COUNT"], "2");
        assert_eq!(built["TESSERA_RESTART_REASON"], "oom");
    }
}
