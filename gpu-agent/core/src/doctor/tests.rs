use super::*;

fn fault(code: u32) -> NvmlCallError {
    NvmlCallError { call: "nvmlX".to_owned(), code }
}

fn a100() -> GpuCheckup {
    GpuCheckup {
        index: 0,
        model: "NVIDIA A100-SXM4-40GB".to_owned(),
        mig: Ok(Some((true, true))),
        may_cut: Ok(()),
        persistence: Some(true),
        display: Some(false),
        processes: Vec::new(),
    }
}

fn sound() -> DoctorFacts {
    let machine = MachineFacts {
        root: true,
        mig_config_file: Some(true),
        module: Some("550.54.14".to_owned()),
        cgroup2: true,
        now_unix: Millis::from_secs(1_800_000_000),
        clock_kept: Some(true),
        open_files: Some(1 << 20),
        mps_control: Some("/usr/bin/nvidia-cuda-mps-control".to_owned()),
        data: Some(DiskFacts {
            path: "/var/lib/tessera".to_owned(),
            free: Bytes::from_mib(100_000),
            total: Bytes::from_mib(200_000),
        }),
        ..MachineFacts::default()
    };
    let driver = DriverFacts {
        driver: Some("550.54.14".to_owned()),
        library: Some("12.550.54.14".to_owned()),
        gpus: vec![a100()],
        lost: Vec::new(),
    };
    DoctorFacts { machine, driver: DriverAnswer::Reported(driver) }
}

fn with_gpu(change: impl FnOnce(&mut GpuCheckup)) -> DoctorFacts {
    let mut facts = sound();
    if let DriverAnswer::Reported(driver) = &mut facts.driver {
        change(&mut driver.gpus[0]);
    }
    facts
}

/// The failed checks, as `check level`.
fn complaints(facts: &DoctorFacts) -> Vec<String> {
    findings(facts)
        .iter()
        .filter(|finding| finding.level != FindingLevel::Ok)
        .map(|finding| format!("{} {}", finding.check, finding.level.as_str()))
        .collect()
}

#[test]
fn a_healthy_machine_has_no_findings() {
    assert_eq!(complaints(&sound()), Vec::<String>::new());
    assert_eq!(summary(&sound()), "may partition GPU 0");
}

#[test]
fn every_finding_names_the_command_that_fixes_it() {
    type Change = fn(&mut MachineFacts);
    let cases: [(&str, Change); 17] = [
        ("kernel_modules blocks", |m| m.nouveau = true),
        ("cgroups warn", |m| m.cgroup2 = false),
        ("limits warn", |m| m.isolation_gaps = [IsolationGap::MemoryLimit].into()),
        ("walls warn", |m| m.isolation_gaps = [IsolationGap::Accounts].into()),
        ("walls warn", |m| m.isolation_gaps = [IsolationGap::OtherAccounts].into()),
        ("walls warn", |m| m.isolation_gaps = [IsolationGap::PrivateTmp].into()),
        ("clock blocks", |m| m.now_unix = Millis::ZERO),
        ("clock warn", |m| m.clock_kept = Some(false)),
        ("open_files warn", |m| m.open_files = Some(1_024)),
        ("kernel_priority warn", |m| m.raises_priority = Some(false)),
        ("locked_memory warn", |m| m.locked_memory = Some(Bytes::new(65_536))),
        ("disk warn", |m| m.data.as_mut().unwrap().free = Bytes::from_mib(1_000)),
        ("disk blocks", |m| m.data.as_mut().unwrap().free = Bytes::from_mib(1)),
        ("sharing warn", |m| m.mps_control = None),
        ("sharing warn", |m| m.mps_refused = true),
        ("competing_services warn", |m| {
            m.competing_services = vec!["nvidia-mig-manager.service".to_owned()];
        }),
        ("driver blocks", |m| m.module = Some("550.90.07".to_owned())),
    ];
    for (complaint, change) in cases {
        let mut facts = sound();
        change(&mut facts.machine);

        assert_eq!(complaints(&facts), [complaint]);
        let found = findings(&facts);
        let bad = found.iter().find(|finding| finding.level != FindingLevel::Ok).unwrap();
        assert!(bad.remedy.is_some(), "{bad:?}");
    }
}

#[test]
fn an_account_without_permission_gets_its_rights_stated() {
    let mut facts = with_gpu(|gpu| gpu.may_cut = Err(fault(4)));
    facts.machine.root = false;
    facts.machine.mig_config_file = Some(false);

    assert_eq!(complaints(&facts), ["account warn", "mig_permission blocks"]);
    assert!(
        summary(&facts).starts_with("may neither partition nor use GPU 0"),
        "{}",
        summary(&facts)
    );

    let mut facts = with_gpu(|gpu| {
        gpu.mig = Ok(Some((false, false)));
        gpu.may_cut = Err(fault(3));
    });
    facts.machine.root = false;
    facts.machine.mig_config_file = None;

    assert_eq!(complaints(&facts), ["account warn", "mig_mode warn", "mig_permission warn"]);
    assert_eq!(summary(&facts), "may run jobs on the whole GPU 0");
}

#[test]
fn an_account_whose_launcher_starts_the_worker_as_root_may_divide_gpus() {
    let mut facts = with_gpu(|gpu| gpu.may_cut = Err(fault(4)));
    facts.machine.root = false;
    facts.machine.mig_config_file = Some(false);
    facts.machine.nvml_worker = true;

    assert!(complaints(&facts).is_empty(), "{:?}", complaints(&facts));
}

#[test]
fn root_has_no_right_that_the_driver_refuses() {
    let facts = with_gpu(|gpu| gpu.may_cut = Err(fault(4)));

    assert_eq!(complaints(&facts), ["mig_permission blocks"]);
}

#[test]
fn an_unusable_library_is_reported_with_its_cause_and_fix() {
    for (code, word) in
        [(9, "modprobe"), (12, "--nvml"), (18, "reload"), (4, "root"), (999, "dmesg")]
    {
        let facts = DoctorFacts { driver: DriverAnswer::Refused(fault(code)), ..sound() };

        assert_eq!(complaints(&facts), ["driver blocks"]);
        let found = findings(&facts);
        let remedy = found.last().unwrap().remedy.clone().unwrap();
        assert!(remedy.contains(word), "{code}: {remedy}");
        assert!(summary(&facts).starts_with("may run nothing"));
    }
    let silent = DoctorFacts { driver: DriverAnswer::Silent, ..sound() };
    assert_eq!(complaints(&silent), ["driver blocks"]);
}

#[test]
fn modes_that_need_a_reset_and_displays_are_named() {
    let pending = with_gpu(|gpu| gpu.mig = Ok(Some((false, true))));
    let screen = with_gpu(|gpu| gpu.display = Some(true));
    let sleepy = with_gpu(|gpu| gpu.persistence = Some(false));

    assert_eq!(complaints(&pending), ["mig_mode blocks"]);
    assert_eq!(complaints(&screen), ["display warn"]);
    assert_eq!(complaints(&sleepy), ["persistence warn"]);
}

#[test]
fn interfering_processes_are_named_and_the_agents_are_not() {
    let process = |pid, name: &str, ours, gpus: &[u32]| ProcessFacts {
        pid,
        name: name.to_owned(),
        ours,
        gpus: gpus.to_vec(),
    };
    let mut facts = sound();
    facts.machine.processes = vec![
        process(10, "nv-hostengine", false, &[0]),
        process(11, "nvidia-cuda-mps", false, &[]),
        process(12, "nvidia-cuda-mps", true, &[0]),
        process(13, "python3", false, &[0]),
        process(14, "python3", true, &[0]),
        process(15, "nvidia-persiste", false, &[0]),
    ];

    assert_eq!(complaints(&facts), ["monitors warn", "mps blocks", "holders warn"]);
    let found = findings(&facts);
    let text = |check: &str| found.iter().find(|f| f.check == check).unwrap().text.clone();
    assert!(text("mps").contains("pid 11") && !text("mps").contains("12"), "{}", text("mps"));
    assert!(text("holders").contains("python3 (pid 13)"), "{}", text("holders"));
}
