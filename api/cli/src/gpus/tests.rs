use tessera_model::mig::{Slot, catalog, count_creatable};

use super::*;
use tessera_api_types::ProfileView;

const PLAIN: OutputScreen = OutputScreen { terminal: false, colour: false };

fn profile(name: &str, gib: u64, compute: u8, memory: u8, starts: &[u8]) -> ProfileView {
    ProfileView {
        name: name.into(),
        memory_bytes: gib << 30,
        compute_slices: compute,
        memory_slices: memory,
        starts: starts.into(),
        fits_now: 0,
    }
}

fn instance(
    profile: &str,
    start: u8,
    size: u8,
    state: &str,
    job: Option<(u64, &str)>,
) -> InstanceDetails {
    InstanceDetails {
        profile: profile.into(),
        start,
        size,
        slice: None,
        memory_bytes: 0,
        sms: None,
        state: state.into(),
        trouble: None,
        quarantined: None,
        job_id: job.map(|(id, _)| id),
        job_name: job.map(|(_, name)| name.into()),
        sharers: Vec::new(),
        parts: Vec::new(),
    }
}

fn a100(instances: Vec<InstanceDetails>) -> GpuDetails {
    let geometry = catalog::models()["a100-40gb"].geometry();
    let by_name = |name: &str| geometry.by_name(&name.parse().ok()?);
    // Some tests draw what no GPU has.
    let slot =
        |i: &InstanceDetails| Some(Slot { start: i.start, profile: by_name(&i.profile)?.id });
    let standing: Vec<Slot> = instances.iter().filter_map(slot).collect();
    let fitting = |profile: ProfileView| {
        let fits_now = count_creatable(&geometry, &standing, by_name(&profile.name).unwrap());
        ProfileView { fits_now, ..profile }
    };
    GpuDetails {
        id: "GPU-0".into(),
        node: "node-a".into(),
        index: 0,
        model: "NVIDIA A100-SXM4-40GB".into(),
        memory_bytes: 40 << 30,
        health: "healthy".into(),
        health_text: None,
        mig: "on".into(),
        memory_slices: 8,
        changing: false,
        drained: None,
        quarantined: None,
        pinned: None,
        faults: Vec::new(),
        reachability: Some(11),
        instances,
        profiles: [
            profile("1g.5gb", 5, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            profile("1g.5gb+me", 5, 1, 1, &[0, 1, 2, 3, 4, 5, 6]),
            profile("2g.10gb", 10, 2, 2, &[0, 2, 4]),
            profile("3g.20gb", 20, 3, 4, &[0, 4]),
            profile("4g.20gb", 20, 4, 4, &[0]),
            profile("7g.40gb", 40, 7, 8, &[0]),
        ]
        .map(fitting)
        .into(),
    }
}

fn drawing(gpu: GpuDetails) -> String {
    draw_one(&gpu, UuidDisplay::Hidden, &JobNames::from([(42, "40_2".to_owned())]), PLAIN)
}

#[test]
fn sharers_of_a_slice_are_listed_with_their_parts() {
    let sharer = |job_id, sm_percent| SharerView {
        job_id,
        job_name: Some("infer".into()),
        user: "ada".into(),
        sm_percent: Some(sm_percent),
        memory_bytes: 4 << 30,
    };
    let mut shared = instance("2g.10gb", 0, 2, "shared", None);
    shared.sharers = vec![sharer(7, 50), sharer(8, 30)];

    let drawn = draw(
        &GpuListing { items: vec![a100(vec![shared])] },
        UuidDisplay::Hidden,
        &JobNames::new(),
        PLAIN,
    );

    assert!(drawn.contains("2 jobs 80 %"), "{drawn}");
    let line = "2g.10gb at 0 is shared by ada: 7 infer 50 % 4 GiB, 8 infer 30 % 4 GiB";
    assert!(drawn.contains(line), "{drawn}");
}

#[test]
fn boxes_are_as_wide_as_their_memory_and_name_their_jobs() {
    let gpu = a100(vec![
        instance("3g.20gb", 4, 4, "taken", Some((43, "train-a-rather-long-name-for-a-job"))),
        instance("1g.5gb", 0, 1, "taken", Some((42, "probe-all"))),
        instance("1g.5gb", 1, 1, "idle", None),
    ]);

    let expected = "\
node-a GPU 0  NVIDIA A100-SXM4-40GB, 40 GiB, MIG on
┌────────┬────────┬─────────────────┬───────────────────────────────────┐
│1g.5gb  │1g.5gb  │·················│3g.20gb                            │
│40_2 pr…│idle    │·················│43 train-a-rather-long-name-for-a-…│
└────────┴────────┴─────────────────┴───────────────────────────────────┘
still fits: 2x 1g.5gb or 1x 2g.10gb; 11 full layouts are reachable

";
    assert_eq!(drawing(gpu), expected);
}

#[test]
fn an_empty_gpu_shows_all_that_it_could_become() {
    let text = drawing(a100(vec![]));

    assert!(
        text.contains(
            "7x 1g.5gb or 3x 2g.10gb or 2x 3g.20gb or 1x 4g.20gb or 1x 7g.40gb; 11 full layouts"
        ),
        "{text}"
    );
}

#[test]
fn a_full_gpu_states_that_nothing_more_fits() {
    let mut gpu = a100(vec![instance("7g.40gb", 0, 8, "taken", Some((1, "big")))]);
    gpu.reachability = Some(1);

    assert!(drawing(gpu).contains("no further instance fits; 1 full layout is reachable"));
}

#[test]
fn a_gpu_without_mig_is_one_box() {
    let mut gpu = a100(vec![instance("whole GPU", 0, 0, "taken", Some((7, "all")))]);
    gpu.memory_slices = 0;
    gpu.mig = "off".into();

    let text = drawing(gpu);

    assert!(text.contains("│whole GPU"), "{text}");
    assert!(text.contains("│7 all"), "{text}");
    assert!(!text.contains("reachable"), "{text}");
}

#[test]
fn a_faulty_gpu_is_marked_as_such() {
    let mut gpu = a100(vec![instance("1g.5gb", 0, 1, "stuck", None)]);
    gpu.health = "faulty".into();
    gpu.health_text = Some("XID 79".into());
    gpu.changing = true;

    let text = drawing(gpu);

    assert!(text.contains("faulty: XID 79"), "{text}");
    assert!(text.contains("a layout plan is running"), "{text}");
    assert!(text.contains("│stuck"), "{text}");
}

#[test]
fn a_report_that_breaks_the_laws_is_drawn_without_panic() {
    for (start, size) in [(0, 9), (7, 4), (255, 255), (0, 0)] {
        let overlap = instance("1g.5gb", 0, 1, "idle", None);
        let gpu = a100(vec![overlap, instance("odd", start, size, "idle", None)]);

        assert!(drawing(gpu).lines().count() >= 5);
    }
}

#[test]
fn control_characters_in_names_do_not_reach_the_terminal() {
    let gpu = a100(vec![instance("1g.5gb", 0, 1, "taken", Some((1, "a\x1b[2J")))]);

    assert!(!drawing(gpu).contains('\x1b'));
}

#[test]
fn jobs_are_coloured_only_where_colours_are_enabled() {
    let gpu = a100(vec![instance("1g.5gb", 0, 1, "taken", Some((6, "a")))]);

    let text = draw_one(
        &gpu,
        UuidDisplay::Hidden,
        &JobNames::new(),
        OutputScreen { terminal: true, colour: true },
    );

    assert!(text.contains("\x1b[30;46m6 a     \x1b[0m"), "{text:?}");
}

#[test]
fn faults_and_what_is_stuck_are_listed_below_the_gpu() {
    let fault = |number: u32| FaultView {
        at: time::OffsetDateTime::UNIX_EPOCH,
        cause: format!("xid {number}"),
        start: Some(2),
        attempts: vec!["att_1".into()],
        action: "reset_gpu".into(),
        times: number,
        text: "the GPU fell off the bus".into(),
    };
    let mut stuck = instance("1g.5gb", 3, 1, "stuck", None);
    stuck.trouble = Some("in use by another client".into());
    let gpu = GpuDetails { faults: (1..=5).map(fault).collect(), ..a100(vec![stuck]) };

    let text = drawing(gpu);

    assert!(text.contains("1g.5gb at 3 is stuck: in use by another client\n"), "{text}");
    let line = "1970-01-01 00:00:00Z xid 5 at 2, 5 times: the GPU fell off the bus (reset gpu)\n";
    assert!(text.contains(line), "{text}");
    assert!(!text.contains("xid 2 ") && text.contains("2 older faults"), "{text}");
}
