//! An agent that is root, as `agent-account root` makes it, within the limits of the unit that the packages install. No
//! systemd runs here: the test reads the unit, and sets what it states. `packaging/test-systemd` has both kinds of agents.

use std::os::unix::process::CommandExt as _;
use std::path::Path;

use tessera_model::isolation::IsolationGap;
use tessera_model::life::Outcome;
use tessera_model::spec::OutputPaths;

use super::{is_root, limits_memory, stage_with};

/// Capabilities by their numbers in `linux/capability.h`.
const CAPABILITIES: [&str; 41] = [
    "CHOWN",
    "DAC_OVERRIDE",
    "DAC_READ_SEARCH",
    "FOWNER",
    "FSETID",
    "KILL",
    "SETGID",
    "SETUID",
    "SETPCAP",
    "LINUX_IMMUTABLE",
    "NET_BIND_SERVICE",
    "NET_BROADCAST",
    "NET_ADMIN",
    "NET_RAW",
    "IPC_LOCK",
    "IPC_OWNER",
    "SYS_MODULE",
    "SYS_RAWIO",
    "SYS_CHROOT",
    "SYS_PTRACE",
    "SYS_PACCT",
    "SYS_ADMIN",
    "SYS_BOOT",
    "SYS_NICE",
    "SYS_RESOURCE",
    "SYS_TIME",
    "SYS_TTY_CONFIG",
    "MKNOD",
    "LEASE",
    "AUDIT_WRITE",
    "AUDIT_CONTROL",
    "SETFCAP",
    "MAC_OVERRIDE",
    "MAC_ADMIN",
    "SYSLOG",
    "WAKE_ALARM",
    "BLOCK_SUSPEND",
    "AUDIT_READ",
    "PERFMON",
    "BPF",
    "CHECKPOINT_RESTORE",
];

/// The numbers of the capabilities that the unit takes away: all but those that it lists.
fn dropped(unit: &str) -> Vec<libc::c_int> {
    let lines = unit.lines().filter_map(|line| line.strip_prefix("CapabilityBoundingSet="));
    let kept: Vec<&str> = lines.flat_map(str::split_whitespace).collect();
    for word in &kept {
        let name = word.strip_prefix("CAP_").unwrap_or_else(|| panic!("{word} is no capability"));
        assert!(CAPABILITIES.contains(&name), "{word} is no capability");
    }
    let is_kept = |name: &str| kept.iter().any(|word| word.strip_prefix("CAP_") == Some(name));
    (0..).zip(CAPABILITIES).filter(|(_, name)| !is_kept(name)).map(|(number, _)| number).collect()
}

/// Does what systemd does for `ProtectSystem=full`.
fn protect_system() -> std::io::Result<()> {
    let check = |result: libc::c_int| match result {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    };
    let none = std::ptr::null();
    // SAFETY: all texts are constants, and only system calls are made.
    unsafe {
        check(libc::unshare(libc::CLONE_NEWNS))?;
        let flags = libc::MS_REC | libc::MS_SLAVE;
        check(libc::mount(none, c"/".as_ptr(), none, flags, none.cast()))?;
        for folder in [c"/usr", c"/boot", c"/etc"] {
            let folder = folder.as_ptr();
            let bind = libc::MS_BIND | libc::MS_REC;
            check(libc::mount(folder, folder, none, bind, none.cast()))?;
            let read_only = libc::MS_BIND | libc::MS_REMOUNT | libc::MS_RDONLY;
            check(libc::mount(none, folder, none, read_only, none.cast()))?;
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_agents_unit_allows_all_that_jobs_need() {
    if !is_root() {
        return;
    }
    let unit = concat!(env!("CARGO_MANIFEST_DIR"), "/../packaging/systemd/tessera-agent.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    assert!(unit.lines().any(|line| line == "ProtectSystem=full"), "{unit}");
    let dropped = dropped(&unit);
    assert!(dropped.len() > 10, "{dropped:?}");
    // Not below /tmp, where attempts have no private /tmp.
    let mut stage = stage_with(Path::new("/var/lib"), "", |_, command| {
        let confine = move || {
            protect_system()?;
            for number in &dropped {
                // SAFETY: plain numbers.
                if unsafe { libc::prctl(libc::PR_CAPBSET_DROP, *number, 0, 0, 0) } != 0 {
                    return Err(std::io::Error::last_os_error());
                }
            }
            Ok(())
        };
        // SAFETY: only system calls are made between fork and exec.
        unsafe { command.pre_exec(confine) };
    })
    .await;
    let agent =
        std::fs::read_to_string(format!("/proc/{}/status", stage.agent.child.id())).unwrap();
    // Times, the network and the machine's end are nothing of an agent's.
    let effective = agent.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let effective = u64::from_str_radix(effective, 16).unwrap();
    for lost in ["SYS_TIME", "NET_ADMIN", "SYS_BOOT", "MAC_ADMIN"] {
        let number = CAPABILITIES.iter().position(|known| *known == lost).unwrap();
        assert_eq!(effective & (1 << number), 0, "{lost}");
    }

    // Account, private folders, hidden processes, own output, limits.
    let home = stage.home();
    let line = "id -u; grep -E '^(CapEff|CapBnd)' /proc/self/status; touch /tmp/here && ls /tmp; \
                [ -e /proc/1/status ] && echo SEES; (: >> /etc/x) && echo WROTE; echo written";
    let mut order = stage.of("ada", line);
    let path = home.join("out").display().to_string();
    order.run.output = OutputPaths { stdout: Some(path), stderr: Some("/dev/null".to_owned()) };
    let (record, text) = stage.run(&order).await;
    let zero = "0000000000000000";
    assert_eq!(record.outcome, Outcome::Succeeded, "{record:?} {text}");
    assert_eq!(text, format!("64001\nCapEff:\t{zero}\nCapBnd:\t{zero}\nhere\nwritten\n"));
    if limits_memory() {
        let mut greedy = stage.of("ada", "head -c 600M /dev/zero | tail -n 1 > /dev/null");
        greedy.run.host_memory = Some(tessera_model::Bytes::from_mib(100));
        let (record, _) = stage.run(&greedy).await;
        assert_eq!(record.outcome, Outcome::OutOfMemory, "{record:?}");
    }
    let gaps = &stage.session.hello.isolation_gaps;
    for gap in [IsolationGap::PrivateTmp, IsolationGap::HiddenProcesses] {
        assert!(!gaps.contains(&gap), "{gaps:?}");
    }
}
