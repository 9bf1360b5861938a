//! The machine: account, modules, processes, disk, clock, limits.

use tessera_frames::cluster::{Finding, FindingLevel};
use tessera_model::Bytes;
use tessera_model::isolation::IsolationGap;

use super::{MachineFacts, ProcessFacts, ok, with_remedy};

/// Below this, outputs and journals soon can't be written.
const DISK_WARN: Bytes = Bytes::from_mib(2_048);
/// Below this, the agent refuses attempts.
const DISK_BLOCKS: Bytes = Bytes::from_mib(64);
/// Each attempt has a few files open; a node may have hundreds.
const OPEN_FILES_MIN: u64 = 65_536;
/// A clock before this (2024-01-01) was never set, so certificates would be invalid.
const CLOCK_SET: u64 = 1_704_067_200_000;

pub(super) fn findings(facts: &MachineFacts) -> Vec<Finding> {
    let mut found = vec![account(facts), cgroups(facts), clock(facts), files(facts), locked(facts)];
    found.extend([limits(facts), walls(facts)]);
    found.push(match facts.nouveau {
        false => ok("kernel_modules", "no other driver holds the GPUs"),
        true => with_remedy(
            "kernel_modules",
            FindingLevel::Blocks,
            "the free driver nouveau is loaded and holds the GPUs",
            "echo 'blacklist nouveau' > /etc/modprobe.d/nouveau.conf && update-initramfs -u && reboot",
        ),
    });
    found.extend(facts.data.as_ref().map(|disk| {
        let text = format!("{} of {} are free in {}", disk.free, disk.total, disk.path);
        let remedy = format!("du -xh {} | sort -h | tail, then delete what is old", disk.path);
        match disk.free {
            free if free < DISK_BLOCKS => with_remedy("disk", FindingLevel::Blocks, text, remedy),
            free if free < DISK_WARN => with_remedy("disk", FindingLevel::Warn, text, remedy),
            _ => ok("disk", text),
        }
    }));
    found.push(match &facts.mps_control {
        Some(_) if facts.mps_refused => with_remedy(
            "sharing",
            FindingLevel::Warn,
            "is not root, and tessera-launch starts no MPS for other accounts: jobs that request --share mps are \
             not placed here",
            "install tessera-launch of this release, and let worker in /etc/tessera/launch.conf name the program \
             tessera-agent, which must be root's and writable for nobody else (docs/launching.md)",
        ),
        Some(program) => ok("sharing", format!("slices can be shared: MPS is {program}")),
        None => with_remedy(
            "sharing",
            FindingLevel::Warn,
            "there is no nvidia-cuda-mps-control: jobs that request --share mps are not placed here",
            "install the MPS programs of the driver's release (Debian: nvidia-cuda-mps; NVIDIA's \
             and Ubuntu's packages: nvidia-compute-utils), or name one with --mps-control, then \
             restart the agent",
        ),
    });
    found.extend(facts.raises_priority.map(kernel_priority));
    for competitor in &facts.competing_services {
        found.push(with_remedy(
            "competing_services",
            FindingLevel::Warn,
            format!("{competitor} is enabled: it changes layouts by itself"),
            format!("systemctl disable --now {competitor}"),
        ));
    }
    if facts.competing_services.is_empty() {
        found.push(ok("competing_services", "no other service changes layouts"));
    }
    found.extend(holders(&facts.processes));
    found
}

fn account(facts: &MachineFacts) -> Finding {
    match (facts.root, facts.mig_config_file) {
        (true, _) => ok("account", "runs as root: it may configure MIG"),
        (false, _) if facts.nvml_worker => ok(
            "account",
            "is not root, and tessera-launch starts the program that configures MIG as root",
        ),
        (false, Some(true)) => ok(
            "account",
            "is not root, but may open the file that gives the right to configure MIG",
        ),
        (false, Some(false) | None) => with_remedy(
            "account",
            FindingLevel::Warn,
            "is not root and has no access to /dev/nvidia-caps: it may run jobs on whole GPUs, \
             but neither switch MIG mode nor create or destroy instances",
            "run tessera-agent as root, or add nvml = libnvidia-ml.so.1 to /etc/tessera/launch.conf \
             (docs/launching.md), or give its account the file: nvidia-modprobe -f \
             /proc/driver/nvidia/capabilities/mig/config, then chgrp and chmod the \
             /dev/nvidia-caps file that it names",
        ),
    }
}

fn cgroups(facts: &MachineFacts) -> Finding {
    match facts.cgroup2 {
        true => ok("cgroups", "control groups of version 2"),
        false => with_remedy(
            "cgroups",
            FindingLevel::Warn,
            "no control groups of version 2: processes that jobs leave behind are found by their sessions only",
            "boot with systemd.unified_cgroup_hierarchy=1",
        ),
    }
}

/// Returns the missing limits and protections, as text.
fn missing(facts: &MachineFacts, of: &[IsolationGap]) -> Option<String> {
    let found = facts.isolation_gaps.iter().filter(|gap| of.contains(gap));
    let texts: Vec<_> = found.map(|gap| gap.describe()).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

fn limits(facts: &MachineFacts) -> Finding {
    let limits = [IsolationGap::MemoryLimit, IsolationGap::ProcessorLimit, IsolationGap::TaskLimit];
    let Some(missing) = missing(facts, &limits) else {
        return ok("limits", "memory, processors and processes of jobs are limited");
    };
    with_remedy(
        "limits",
        FindingLevel::Warn,
        format!("no control group enforces it here: {missing}"),
        "boot with systemd.unified_cgroup_hierarchy=1, and start the unit tessera-jobs before the agent; without \
         systemd, run the agent as root",
    )
}

fn walls(facts: &MachineFacts) -> Finding {
    let accounts = [IsolationGap::Accounts, IsolationGap::OtherAccounts];
    if let Some(missing) = missing(facts, &accounts) {
        return with_remedy(
            "walls",
            FindingLevel::Warn,
            missing,
            "remove run_as = \"agent\", and run tessera-agent as root or install tessera-launch as \
             docs/launching.md describes",
        );
    }
    let protections =
        [IsolationGap::PrivateTmp, IsolationGap::HiddenProcesses, IsolationGap::DeviceNodes];
    let Some(missing) = missing(facts, &protections) else {
        return ok("walls", "jobs run as their users, isolated from each other");
    };
    with_remedy(
        "walls",
        FindingLevel::Warn,
        format!("jobs run as their users, but: {missing}"),
        "run it on Linux 5.8 or later, outside of a container or with CAP_SYS_ADMIN and CAP_BPF. Keep the data \
         folder outside of /tmp, and private_tmp, hide_processes, guard_devices and cgroups on",
    )
}

fn clock(facts: &MachineFacts) -> Finding {
    let remedy = "timedatectl set-ntp true";
    if facts.now_unix.get() < CLOCK_SET {
        let text = "the clock was never set: certificates can't be verified";
        return with_remedy("clock", FindingLevel::Blocks, text, remedy);
    }
    match facts.clock_kept {
        Some(true) => ok("clock", "the clock is synchronised"),
        Some(false) => with_remedy(
            "clock",
            FindingLevel::Warn,
            "the clock is not synchronised: times in logs and records drift apart",
            remedy,
        ),
        None => ok("clock", "the clock is set; whether it is synchronised can't be determined"),
    }
}

fn files(facts: &MachineFacts) -> Finding {
    match facts.open_files {
        Some(most) if most < OPEN_FILES_MIN => with_remedy(
            "open_files",
            FindingLevel::Warn,
            format!("a process may open only {most} files"),
            format!("LimitNOFILE={OPEN_FILES_MIN} in the agent's unit"),
        ),
        Some(most) => ok("open_files", format!("a process may open {most} files")),
        None => ok("open_files", "a process may open any number of files"),
    }
}

fn locked(facts: &MachineFacts) -> Finding {
    match facts.locked_memory {
        None => ok("locked_memory", "the memory that a process may lock is not limited"),
        Some(most) => with_remedy(
            "locked_memory",
            FindingLevel::Warn,
            format!("a process may lock only {most}: pinned buffers of CUDA programs may fail"),
            "LimitMEMLOCK=infinity in the agent's unit",
        ),
    }
}

fn kernel_priority(raises: bool) -> Finding {
    match raises {
        true => {
            ok("kernel_priority", "the threads that kernel launches wait for run before others")
        }
        false => with_remedy(
            "kernel_priority",
            FindingLevel::Warn,
            "this account may raise no priority: on busy processors, kernel launches of jobs with --share kernel \
             wait longer",
            "AmbientCapabilities=CAP_SYS_NICE in the agent's unit",
        ),
    }
}

/// Checks other processes that use GPUs.
fn holders(processes: &[ProcessFacts]) -> Vec<Finding> {
    let others: Vec<_> = processes.iter().filter(|process| !process.ours).collect();
    let named = |names: &[&str]| -> Vec<String> {
        let is_named = |p: &&&ProcessFacts| names.iter().any(|name| p.name.starts_with(name));
        others.iter().filter(is_named).map(|p| format!("{} (pid {})", p.name, p.pid)).collect()
    };
    let monitors = named(&["nv-hostengine", "dcgm", "nvidia-dcgm"]);
    let mps = named(&["nvidia-cuda-mps"]);
    let mut found = Vec::new();
    found.push(match monitors.is_empty() {
        true => ok("monitors", "no monitor holds the GPUs"),
        false => with_remedy(
            "monitors",
            FindingLevel::Warn,
            format!(
                "{} may keep instances open, so that they can't be destroyed",
                monitors.join(", ")
            ),
            "if a layout stays stuck: systemctl restart nvidia-dcgm (or dcgm-exporter)",
        ),
    });
    found.push(match mps.is_empty() {
        true => ok("mps", "no MPS daemon of another owner runs"),
        false => with_remedy(
            "mps",
            FindingLevel::Blocks,
            format!("{} was not started by this agent: it keeps its GPU in use, so MIG mode can't change", mps.join(", ")),
            "echo quit | nvidia-cuda-mps-control",
        ),
    });
    let known = |name: &str| {
        ["nv-hostengine", "dcgm", "nvidia-dcgm", "nvidia-cuda-mps", "nvidia-persiste"]
            .iter()
            .any(|known| name.starts_with(known))
    };
    for process in others.iter().filter(|p| !p.gpus.is_empty() && !known(&p.name)) {
        for gpu in &process.gpus {
            let ProcessFacts { pid, name, .. } = process;
            let text = format!(
                "{name} (pid {pid}) keeps it open: neither a reset nor a change of MIG mode is possible"
            );
            let held = with_remedy(
                "holders",
                FindingLevel::Warn,
                text,
                format!("stop the process: kill {pid} (ps -fp {pid} shows its owner)"),
            );
            found.push(Finding { gpu: Some(*gpu), ..held });
        }
    }
    found
}
