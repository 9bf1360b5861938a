//! The packages: what systemd learns of the daemons, completions, versions, equal bytes from equal input, and
//! installation and removal on a fresh system.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tessera_load_tests::cluster::Plan;
use tessera_load_tests::programs::programs;
use tessera_load_tests::wait;

use super::tools::{have, long, read, root, run, skip};

#[test]
fn systemd_is_notified_once_a_daemon_serves() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();

    let mut cluster = Plan::new()
        .node("n1", "a100-40gb")
        .env("NOTIFY_SOCKET", path.display().to_string())
        .start();

    let mut messages = String::new();
    let mut buffer = [0; 4096];
    while messages.matches("READY=1").count() < 2 {
        let length = socket.recv(&mut buffer).expect("both daemons notify");
        messages += &String::from_utf8_lossy(&buffer[..length]);
    }
    assert!(messages.contains("STATUS=serving on 127.0.0.1:"), "{messages}");
    assert!(messages.contains("attempts continue without the agent"), "{messages}");

    cluster.controller.stop();
    let stopping = wait::within_time(Duration::from_secs(20), || {
        let length = socket.recv(&mut buffer).ok()?;
        String::from_utf8_lossy(&buffer[..length]).contains("STOPPING=1").then_some(())
    });
    assert!(stopping.is_some(), "the controller does not report that it stops");
}

#[test]
fn systemd_accepts_the_units() {
    if !have("systemd-analyze", "units are not verified (Debian package systemd)") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let units = ["tessera-controller", "tessera-agent", "tessera-jobs"];
    let file = |unit: &str| folder.path().join(format!("{unit}.service"));
    for unit in units {
        let text = read(&format!("packaging/systemd/{unit}.service"));
        // The programs are not installed here.
        let lines = text.lines().map(|line| match line.split_once("=/usr/") {
            Some((key, _)) if key.starts_with("Exec") => format!("{key}=/bin/true"),
            _ => line.to_owned(),
        });
        fs::write(file(unit), lines.collect::<Vec<_>>().join("\n")).unwrap();
    }
    for unit in units {
        let path = file(unit);
        let output = Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&path)
            .output()
            .unwrap();
        let complaints = String::from_utf8_lossy(&output.stderr).into_owned();
        let ours: Vec<_> = complaints.lines().filter(|line| line.contains("tessera")).collect();
        assert!(ours.is_empty(), "{unit}: {ours:#?}");
    }
}

#[test]
fn jobs_outlive_the_agents_unit() {
    let unit = read("packaging/systemd/tessera-agent.service");

    for line in [
        "Type=notify",
        "KillMode=process",
        "Delegate=yes",
        "OOMPolicy=continue",
        "LimitMEMLOCK=infinity",
        "RestartPreventExitStatus=78",
    ] {
        assert!(unit.lines().any(|found| found == line), "{line}");
    }
    // Their control group belongs to another unit, which an upgrade does not touch.
    assert!(unit.contains("Wants=network-online.target tessera-jobs.service\n"));
    let jobs = read("packaging/systemd/tessera-jobs.service");
    for line in ["KillMode=process", "Delegate=yes", "OOMPolicy=continue", "TasksMax=infinity"] {
        assert!(jobs.lines().any(|found| found == line), "tessera-jobs: {line}");
    }
    let installed = read("packaging/debian/tessera-agent.postinst");
    assert!(!installed.contains("restart tessera-jobs"), "an upgrade would end the group of jobs");
    assert!(unit.contains("nvidia-persistenced.service"));
}

/// What makes systemd set `NoNewPrivileges` for an account (systemd.exec(5)), under which a launcher with setuid has no
/// privileges.
const TAKE_PRIVILEGES: [&str; 17] = [
    "NoNewPrivileges",
    "SystemCallFilter",
    "SystemCallArchitectures",
    "SystemCallLog",
    "RestrictAddressFamilies",
    "RestrictFileSystems",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "PrivateDevices",
    "ProtectKernelTunables",
    "ProtectKernelModules",
    "ProtectKernelLogs",
    "ProtectClock",
    "ProtectHostname",
    "MemoryDenyWriteExecute",
    "LockPersonality",
];

#[test]
fn the_agents_unit_has_an_account_that_may_start_the_launcher() {
    let unit = read("packaging/systemd/tessera-agent.service");
    for (name, text) in
        [("agent", &unit), ("jobs", &read("packaging/systemd/tessera-jobs.service"))]
    {
        let account = ["User=tessera-agent", "Group=tessera-agent"];
        assert!(account.iter().all(|line| text.lines().any(|found| found == *line)), "{name}");
        let as_root = read(&format!("packaging/systemd/tessera-{name}-as-root.conf"));
        assert!(as_root.contains("\nUser=root\nGroup=root\n"), "{name}");
    }

    let keys = unit.lines().filter_map(|line| line.split_once('=')).map(|(key, _)| key);
    let taking: Vec<_> = keys.filter(|key| TAKE_PRIVILEGES.contains(key)).collect();

    assert!(taking.is_empty(), "{taking:?}");
}

/// The glibc of RHEL 8; Debian 11 and Ubuntu 20.04 have newer ones.
const OLDEST_GLIBC: (u32, u32) = (2, 28);

#[test]
fn every_packaged_program_runs_with_the_oldest_glibc_and_without_libgcc() {
    if !have("objdump", "symbols of programs are not read (Debian package binutils)") {
        return;
    }
    let release = programs().path("tessera").parent().unwrap().to_owned();
    let mut files: Vec<_> = [
        "tessera",
        "tessera-controller",
        "tessera-agent",
        "tessera-shepherd",
        "tessera-launch",
        "nvidia-cuda-mps-control",
        "tessera-sim-client",
    ]
    .map(|name| release.join(name))
    .into();
    files
        .extend(["libnvidia_ml_stand_in.so", "libcuda_stand_in.so"].map(|name| release.join(name)));
    for file in files {
        let listing = run(Command::new("objdump").args(["-p", "-T"]).arg(&file));
        let versions = listing.split("GLIBC_").skip(1).filter_map(|rest| {
            let end = rest.find(|c: char| c != '.' && !c.is_ascii_digit()).unwrap_or(rest.len());
            let mut numbers = rest[..end].split('.').map(|number| number.parse().ok());
            Some((numbers.next()??, numbers.next()??))
        });
        let newest = versions.max().expect("it uses the C library");

        assert!(newest <= OLDEST_GLIBC, "{} needs glibc {newest:?}", file.display());
        assert!(!listing.contains("NEEDED               libgcc_s"), "{}", file.display());
    }
}

#[test]
fn every_shell_accepts_its_completions() {
    for (shell, check) in [("bash", "-n"), ("zsh", "-n"), ("fish", "--no-execute")] {
        if !have(shell, "its completions are not checked") {
            continue;
        }
        let mut command = Command::new(programs().path("tessera"));
        let script = run(command.args(["completions", shell]));
        assert!(script.contains("support-bundle"), "{shell}");
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tessera");
        fs::write(&path, script).unwrap();
        run(Command::new(shell).arg(check).arg(path));
    }
}

#[test]
fn every_verb_has_a_manual_page() {
    let folder = tempfile::tempdir().unwrap();
    for program in ["tessera", "tessera-controller", "tessera-agent"] {
        run(Command::new(programs().path(program)).arg("manual").arg(folder.path()));
    }

    for page in [
        "tessera.1",
        "tessera-submit.1",
        "tessera-gpus-layout-apply.1",
        "tessera-controller.1",
        "tessera-controller-node-cert.1",
        "tessera-agent.1",
        "tessera-agent-doctor.1",
    ] {
        assert!(folder.path().join(page).is_file(), "{page}");
    }
    let hidden = folder.path().join("tessera-agent-nvml-worker.1");
    assert!(!hidden.exists(), "a task that is never started by hand has a page");
}

#[test]
fn the_version_is_defined_in_one_place() {
    let manifest = read("Cargo.toml");
    let version = manifest.split("[workspace.package]\nversion = \"").nth(1).unwrap();
    let version = version.split('"').next().unwrap();

    assert_eq!(version, env!("CARGO_PKG_VERSION"));
    let changes = read("CHANGELOG.md");
    let heading = changes.split_once(&format!("\n## [{version}] - ")).expect("CHANGELOG.md");
    let date = heading.1.lines().next().unwrap();
    assert!(date.split('-').map(str::len).eq([4, 2, 2]), "CHANGELOG.md: {date}");
    // Python's tools read no manifest of Rust's.
    let python = read("python/pyproject.toml");
    assert!(python.contains(&format!("\nversion = \"{version}\"\n")), "python/pyproject.toml");
    for line in manifest.split("members = [").nth(1).unwrap().lines().skip(1) {
        let Some(member) = line.trim().strip_prefix('"').and_then(|l| l.strip_suffix("\",")) else {
            break;
        };
        let text = read(&format!("{member}/Cargo.toml"));
        assert!(text.contains("version.workspace = true"), "{member}");
    }
}

/// Builds packages from the programs that the tests use.
pub fn build_packages(out: &Path, revision: &str) -> bool {
    let target = target();
    if !target.join("stand-in").is_dir() || !target.join("kernel-shim").is_dir() {
        skip("packages are not built: run ./x build first");
        return false;
    }
    build_packages_of(&target, out, revision);
    true
}

fn target() -> PathBuf {
    programs().path("tessera").ancestors().nth(2).unwrap().to_owned()
}

fn build_packages_of(target: &Path, out: &Path, revision: &str) {
    run(Command::new(root().join("packaging/build"))
        .arg(target)
        .arg(out)
        .env("TESSERA_PACKAGE_REVISION", revision)
        .env("TESSERA_PACKAGE_LEVEL", "1"));
}

fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name().into(), fs::read(entry.path()).unwrap())).collect()
}

/// Copies the programs as the linker leaves them in another folder, where their build ids differ.
fn with_other_build_ids(from: &Path, to: &Path) {
    let note = to.join("note");
    fs::create_dir_all(to).unwrap();
    fs::write(&note, [b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0".as_slice(), &[7; 20]].concat())
        .unwrap();
    for folder in ["release", "stand-in", "kernel-shim"] {
        fs::create_dir(to.join(folder)).unwrap();
        for entry in fs::read_dir(from.join(folder)).unwrap().map(|entry| entry.unwrap()) {
            let name = entry.file_name();
            let is_program = entry.file_type().unwrap().is_file()
                && !name.to_string_lossy().ends_with(".d")
                && !name.to_string_lossy().ends_with(".rlib")
                && !name.to_string_lossy().starts_with('.');
            if is_program {
                run(Command::new("objcopy")
                    .arg(format!("--update-section=.note.gnu.build-id={}", note.display()))
                    .args([entry.path(), to.join(folder).join(name)]));
            }
        }
    }
}

#[test]
fn packages_of_the_same_programs_have_the_same_bytes_wherever_they_were_linked() {
    if !long("packages are built twice")
        || !have("dpkg-deb", "packages are not built")
        || !have("objcopy", "packages are not built (Debian package binutils)")
    {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (one, other) = (folder.path().join("one"), folder.path().join("other"));
    if !build_packages(&one, "1") {
        return;
    }
    let elsewhere = folder.path().join("target");
    with_other_build_ids(&target(), &elsewhere);
    build_packages_of(&elsewhere, &other, "1");

    let (one, other) = (contents(&one), contents(&other));
    assert_eq!(one.keys().collect::<Vec<_>>(), other.keys().collect::<Vec<_>>());
    assert_eq!(one.len(), 6, "{:?}", one.keys());
    for (name, bytes) in &one {
        assert!(other[name] == *bytes, "{} differs", name.display());
    }
}

#[test]
fn packages_live_in_a_fresh_system_from_installation_to_purge() {
    if !long("a fresh system is made by debootstrap")
        || !have("debootstrap", "packages are not installed")
        || !have("dpkg-deb", "packages are not built")
    {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skip("packages are installed into a fresh system by root only");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (packages, newer) = (folder.path().join("1"), folder.path().join("2"));
    if !build_packages(&packages, "1") {
        return;
    }
    build_packages(&newer, "2");

    // Debian 12 and the release after it.
    let debian = std::env::var("TESSERA_DEBIAN_MIRROR").ok();
    let mut systems = vec![("bookworm", debian.clone()), ("trixie", debian)];
    // The releases of Ubuntu whose PostgreSQL is new enough for the controller's own database.
    match std::env::var("TESSERA_UBUNTU_MIRROR").ok() {
        Some(mirror) => systems.extend(["noble", "resolute"].map(|s| (s, Some(mirror.clone())))),
        None => {
            skip("TESSERA_UBUNTU_MIRROR names no archive: packages are not installed on Ubuntu");
        }
    }
    for (suite, mirror) in systems {
        let shown = run(Command::new(root().join("packaging/test-install"))
            .args([&packages, &newer])
            .arg(target().join("fresh-systems"))
            .arg(suite)
            .envs(mirror.map(|mirror| ("TESSERA_DEBIAN_MIRROR", mirror))));

        assert!(shown.contains("purged without a trace"), "{suite}: {shown}");
    }
}

#[test]
fn the_page_leads_to_a_cluster_under_systemd_that_is_upgraded_restored_and_removed() {
    if !long("machines with systemd are made as containers")
        || !have("debootstrap", "no machine is made")
        || !super::containers::have_engine("no machine is made")
    {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let (packages, newer) = (folder.path().join("1"), folder.path().join("2"));
    if !build_packages(&packages, "1") {
        return;
    }
    build_packages(&newer, "2");

    // The second node has the oldest system that packages are for, and the machine for all of it the newest.
    let shown = run(Command::new(root().join("packaging/test-systemd"))
        .args([&packages, &newer])
        .args(["bookworm", "bullseye", "trixie"]));

    assert!(shown.contains("purged without a trace"), "{shown}");
    assert!(shown.contains("the archive's controller and agent ran a job"), "{shown}");
}
