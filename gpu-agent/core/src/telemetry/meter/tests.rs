use proptest::prelude::*;
use tessera_frames::cluster::{GpuHealth, InstanceReport};
use tessera_model::mig::{Geometry, catalog};
use uuid::Uuid;

use super::*;
use crate::nvml::sample::InstanceSample;

const BOOT: BootId = BootId::from_uuid(Uuid::nil());
/// Profiles of an A100-40GB by their names.
fn slot(name: &str, start: u8) -> Slot {
    let profile = geometry().by_name(&name.parse().unwrap()).unwrap().id;
    Slot { start, profile }
}

fn geometry() -> Geometry {
    catalog::models()["a100-40gb"].geometry()
}

fn id(number: u8) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(number.into()))
}

fn gpu() -> GpuId {
    "GPU-1".parse().unwrap()
}

fn report(mig: MigReport, slots: &[Slot]) -> GpuReport {
    let instance = |slot: &Slot| InstanceReport {
        slot: *slot,
        slice: None,
        memory: Bytes::ZERO,
        sms: 0,
        trouble: None,
        parts: Vec::new(),
    };
    GpuReport {
        gpu: gpu(),
        index: 2,
        model: "A100".into(),
        memory: Bytes::ZERO,
        sms: None,
        mig,
        instances: slots.iter().map(instance).collect(),
        layout_gen: 0,
        health: GpuHealth::Healthy,
        faults: Vec::new(),
        quarantine: None,
        refused: Vec::new(),
    }
}

fn cut(slots: &[Slot]) -> Meter {
    let mut meter = Meter::default();
    meter.describe(&report(MigReport::On { geometry: geometry() }, slots));
    meter
}

fn whole() -> Meter {
    let mut meter = Meter::default();
    meter.describe(&report(MigReport::Off, &[]));
    meter
}

fn tenancy(number: u8, slot: Option<Slot>, began: u64) -> GpuTenancy {
    let job = JobId::from_number(number.into());
    let began = Millis::new(began);
    GpuTenancy { attempt: id(number), job, gpu: gpu(), slot, began, ended: None }
}

fn process(number: u8, place: Option<u32>, mib: u64, load_percent: u32) -> ProcessSample {
    let memory = Some(Bytes::from_mib(mib));
    let attempt = Some(id(number));
    ProcessSample { pid: number.into(), place, memory, load_percent, attempt, mps_server: false }
}

fn sample(energy_mj: u64, slots: &[Slot], processes: &[ProcessSample]) -> GpuSample {
    let place = |(number, slot): (usize, &Slot)| InstanceSample {
        number: u32::try_from(number).unwrap(),
        slot: *slot,
        memory_used: None,
        busy: None,
    };
    GpuSample {
        mig: !slots.is_empty(),
        energy_mj: Some(energy_mj),
        places: slots.iter().enumerate().map(place).collect(),
        loads_reported: slots.is_empty(),
        processes: processes.to_vec(),
        ..GpuSample::default()
    }
}

fn usage(meter: &Meter, number: u8) -> AttemptUsage {
    meter.ended_usages().find(|usage| usage.attempt == id(number)).unwrap()
}

#[test]
fn slices_are_charged_their_share_and_the_rest_is_charged_to_no_attempt() {
    let slots = [slot("3g.20gb", 0), slot("3g.20gb", 4)];
    let mut meter = cut(&slots);
    let at = Millis::new;
    meter.take(BOOT, at(0), sample(0, &slots, &[]));
    // One second without attempts: 32 W.
    meter.take(BOOT, at(1_000), sample(32_000, &slots, &[]));
    meter.begin(&tenancy(1, Some(slots[0]), 1_000));
    meter.begin(&tenancy(2, Some(slots[1]), 1_000));

    // The first attempt uses 51 W more, and the second has no context.
    let working = [process(1, Some(0), 300, 0)];
    meter.take(BOOT, at(2_000), sample(32_000 + 83_000, &slots, &working));
    meter.end(id(1), at(2_000));
    meter.end(id(2), at(2_000));
    assert!(meter.take(BOOT, at(2_000), sample(32_000 + 83_000, &slots, &[])));

    // Each has 42 of 98 multiprocessors.
    let resting = 32_000 * 428_571 / 1_000_000;
    assert_eq!(usage(&meter, 1).energy_mj, Some(resting + 51_000));
    assert_eq!(usage(&meter, 1).peak_memory, Some(Bytes::from_mib(300)));
    assert_eq!(usage(&meter, 2).energy_mj.map(|mj| mj.abs_diff(resting) <= 1), Some(true));
    assert_eq!(usage(&meter, 2).peak_memory, Some(Bytes::ZERO));
    assert_eq!(meter.ledger().total_mj(), 32_000 + 83_000);
}

#[test]
fn counters_of_instances_decide_who_moved_the_power_where_the_driver_has_them() {
    let (small, large) = (slot("1g.5gb", 0), slot("3g.20gb", 4));
    let slots = [small, large];
    let mut meter = cut(&slots);
    meter.take(BOOT, Millis::new(0), sample(0, &slots, &[]));
    meter.take(BOOT, Millis::new(1_000), sample(10_000, &slots, &[]));
    meter.begin(&tenancy(1, Some(small), 1_000));
    meter.begin(&tenancy(2, Some(large), 1_000));
    let there = [process(1, Some(0), 100, 0), process(2, Some(1), 100, 0)];

    // 10 W when idle; 70 W more in this second. The large slice holds a context and computes nothing.
    let mut counted = sample(90_000, &slots, &there);
    counted.places[0].busy = Some(1_000);
    counted.places[1].busy = Some(0);
    meter.take(BOOT, Millis::new(2_000), counted);

    let [one, two] = [1, 2].map(|number| meter.ledger().of(id(number)).unwrap());
    assert!(one > 70_000 && two < 10_000, "{one} {two}");
    let activity = |number| {
        let series = meter.tracks.of(TrackSubject::Attempt(id(number)), TrackedFigure::Activity);
        series.unwrap().newest().unwrap().1
    };
    assert!(activity(1) > 100 && activity(2) == 0, "{} {}", activity(1), activity(2));
}

#[test]
fn sharers_of_a_whole_card_go_by_their_loads() {
    let mut meter = whole();
    let at = Millis::new;
    meter.take(BOOT, at(0), sample(0, &[], &[]));
    meter.begin(&tenancy(1, None, 0));
    meter.begin(&tenancy(2, None, 0));

    let working = [process(1, None, 10, 75), process(2, None, 20, 25)];
    meter.take(BOOT, at(1_000), sample(100_000, &[], &working));

    assert_eq!(meter.ledger().of(id(1)), Some(75_000));
    assert_eq!(meter.ledger().of(id(2)), Some(25_000));
}

/// An MPS server, which holds a context for its clients.
fn server(place: Option<u32>, load_percent: u32) -> ProcessSample {
    let process = process(99, place, 30, load_percent);
    ProcessSample { attempt: None, mps_server: true, ..process }
}

#[test]
fn sharing_jobs_of_a_slice_are_charged_equally_and_their_server_nothing() {
    let slots = [slot("3g.20gb", 0)];
    let mut meter = cut(&slots);
    let at = Millis::new;
    meter.take(BOOT, at(0), sample(0, &slots, &[]));
    meter.begin(&tenancy(1, Some(slots[0]), 0));
    meter.begin(&tenancy(2, Some(slots[0]), 0));

    let both = [process(1, Some(0), 10, 0), process(2, Some(0), 20, 0), server(Some(0), 0)];
    meter.take(BOOT, at(1_000), sample(80_000, &slots, &both));

    assert_eq!(meter.ledger().of(id(1)), Some(40_000));
    assert_eq!(meter.ledger().of(id(2)), Some(40_000));
    assert_eq!(meter.ledger().other_mj(), 0);
    // Its memory belongs to no attempt: only the clients' own allocations are theirs.
    meter.end(id(1), at(1_000));
    meter.take(BOOT, at(1_000), sample(80_000, &slots, &[]));
    assert_eq!(usage(&meter, 1).peak_memory, Some(Bytes::from_mib(10)));
}

#[test]
fn a_servers_load_is_charged_to_its_clients_if_the_driver_reports_only_that() {
    let mut meter = whole();
    let at = Millis::new;
    meter.take(BOOT, at(0), sample(0, &[], &[]));
    meter.begin(&tenancy(1, None, 0));
    meter.begin(&tenancy(2, None, 0));

    let both = [process(1, None, 10, 0), process(2, None, 20, 0), server(None, 90)];
    meter.take(BOOT, at(1_000), sample(100_000, &[], &both));

    assert_eq!(meter.ledger().of(id(1)), Some(50_000));
    assert_eq!(meter.ledger().of(id(2)), Some(50_000));
    assert_eq!(meter.ledger().other_mj(), 0);
}

#[test]
fn an_attempt_between_two_samples_is_counted_for_its_duration() {
    let mut meter = whole();
    let at = Millis::new;
    meter.take(BOOT, at(0), sample(0, &[], &[]));
    meter.take(BOOT, at(1_000), sample(30_000, &[], &[]));
    meter.begin(&GpuTenancy { ended: Some(at(1_500)), ..tenancy(1, None, 1_300) });

    assert!(meter.take(BOOT, at(2_000), sample(30_000 + 40_000, &[], &[])));

    // A fifth of the idle energy, and all energy above that.
    assert_eq!(usage(&meter, 1).energy_mj, Some(6_000 + 10_000));
    assert_eq!(usage(&meter, 1).peak_memory, None, "nobody saw it");
}

#[test]
fn a_process_without_its_attempts_variable_belongs_to_the_only_attempt_there() {
    let slots = [slot("3g.20gb", 0)];
    let mut meter = cut(&slots);
    let at = Millis::new;
    meter.take(BOOT, at(0), sample(0, &slots, &[]));
    meter.begin(&tenancy(1, Some(slots[0]), 0));

    let hiding = ProcessSample { attempt: None, ..process(1, Some(0), 77, 0) };
    meter.take(BOOT, at(1_000), sample(1_000, &slots, &[hiding]));
    let stranger = ProcessSample { attempt: Some(id(9)), ..process(9, Some(0), 5, 0) };
    meter.take(BOOT, at(2_000), sample(3_000, &slots, &[stranger]));

    assert_eq!(meter.ledger().of(id(1)), Some(1_000));
    assert_eq!(meter.ledger().other_mj(), 2_000);
}

#[test]
fn an_end_waits_for_a_sample_but_not_forever() {
    let mut meter = whole();
    let at = Millis::new;
    meter.take(BOOT, at(0), sample(0, &[], &[]));
    meter.begin(&tenancy(1, None, 0));
    meter.end(id(1), at(500));

    assert!(!meter.miss(at(1_000)));
    assert!(meter.latest.is_none(), "a gap is no figure");
    assert!(meter.ended_usages().next().is_none());
    assert!(meter.miss(at(10_500)));
    assert_eq!(usage(&meter, 1).energy_mj, None);

    meter.acknowledged(id(1));
    assert!(meter.ended_usages().next().is_none());
}

#[test]
fn an_attempt_that_ended_without_an_agent_is_reported_with_its_counted_figures() {
    let mut before = whole();
    let at = Millis::new;
    before.take(BOOT, at(0), sample(0, &[], &[]));
    before.begin(&tenancy(1, None, 0));
    before.take(BOOT, at(1_000), sample(50_000, &[], &[process(1, None, 9, 50)]));
    let text = serde_json::to_string(before.kept()).unwrap();

    let mut after = Meter::resume(serde_json::from_str(&text).unwrap());
    after.end_unless(|_| false);
    assert!(after.take(BOOT, at(9_000), sample(60_000, &[], &[])));

    assert_eq!(usage(&after, 1).energy_mj, Some(50_000));
    assert_eq!(usage(&after, 1).peak_memory, Some(Bytes::from_mib(9)));
    assert_eq!(after.ledger().total_mj(), 60_000);
}

proptest! {
    /// For any attempts and any failed samples, the parts add up.
    #[test]
    fn a_meter_loses_no_millijoule(
        steps in prop::collection::vec((0..3_000_u64, 0..200_000_u64, 0..7_u8, 0..4_u8), 1..60),
        mig: bool,
    ) {
        let slots = [slot("3g.20gb", 0), slot("2g.10gb", 4), slot("1g.5gb", 6)];
        let slots = if mig { &slots[..] } else { &[] };
        let mut meter = if mig { cut(slots) } else { whole() };
        let (mut at, mut counter) = (1_000, 77);
        meter.take(BOOT, Millis::new(at), sample(counter, slots, &[]));
        let first = counter;
        for (after, gained, number, what) in steps {
            at += after;
            counter += gained;
            let place = slots.get(usize::from(number) % slots.len().max(1)).copied();
            match what {
                0 => meter.begin(&tenancy(number, place, at)),
                1 => meter.end(id(number), Millis::new(at)),
                2 => {
                    meter.miss(Millis::new(at));
                    let kept = serde_json::to_string(meter.kept()).unwrap();
                    let again = Meter::resume(serde_json::from_str(&kept).unwrap());
                    prop_assert_eq!(again.kept(), meter.kept());
                }
                _ => {
                    let place = place.and_then(|place| slots.iter().position(|s| *s == place));
                    let place = place.map(|place| u32::try_from(place).unwrap());
                    let seen = [process(number, place, 5, 40)];
                    meter.take(BOOT, Millis::new(at), sample(counter, slots, &seen));
                    prop_assert_eq!(meter.ledger().total_mj(), counter - first);
                    let reported: Vec<_> = meter.ended_usages().collect();
                    reported.iter().step_by(2).for_each(|usage| meter.acknowledged(usage.attempt));
                    prop_assert_eq!(meter.ledger().total_mj(), counter - first);
                }
            }
        }
        meter.take(BOOT, Millis::new(at + 20_000), sample(counter, slots, &[]));
        prop_assert_eq!(meter.ledger().total_mj(), counter - first);
    }
}

#[test]
fn an_attempt_is_idle_since_the_first_of_samples_without_a_gap_that_all_show_nothing() {
    let mut meter = whole();
    let at = Millis::from_secs;
    meter.begin(&tenancy(1, None, 0));
    meter.begin(&tenancy(2, None, 0));
    let mut see = |secs, loads: [u32; 2]| {
        let there = [process(1, None, 10, loads[0]), process(2, None, 10, loads[1])];
        meter.take(BOOT, at(secs), sample(secs, &[], &there));
        [1, 2].map(|number| meter.idle_since(id(number)))
    };

    assert_eq!(see(10, [0, 50]), [Some(at(10)), None]);
    assert_eq!(see(20, [0, 0]), [Some(at(10)), Some(at(20))]);
    assert_eq!(see(30, [1, 0]), [None, Some(at(20))], "the least load is work");
    assert_eq!(see(40, [0, 0]), [Some(at(40)), Some(at(20))]);
    // Nobody knows what happened within a minute without samples.
    assert_eq!(see(100, [0, 0]), [Some(at(100)), Some(at(100))]);
}

#[test]
fn an_attempt_alone_on_a_busy_card_is_not_idle_and_neither_is_one_beside_unknown_work() {
    let mut meter = whole();
    meter.begin(&tenancy(1, None, 0));
    let at = Millis::from_secs;

    // The driver rounded the process's load down.
    let busy = GpuSample { busy_percent: Some(1), ..sample(0, &[], &[process(1, None, 10, 0)]) };
    meter.take(BOOT, at(1), busy);
    assert_eq!(meter.idle_since(id(1)), None);
    // A process of its gang, whose attempt is on another GPU.
    let foreign = ProcessSample { attempt: None, ..process(9, None, 10, 40) };
    meter.take(BOOT, at(2), sample(1, &[], &[process(1, None, 10, 0), foreign]));
    assert_eq!(meter.idle_since(id(1)), None);
    meter.take(BOOT, at(3), sample(2, &[], &[process(1, None, 10, 0)]));
    assert_eq!(meter.idle_since(id(1)), Some(at(3)));
}

#[test]
fn on_a_slice_counters_tell_who_is_idle_and_without_them_a_context_counts_as_work() {
    let slots = [slot("1g.5gb", 0), slot("3g.20gb", 4)];
    let mut meter = cut(&slots);
    meter.begin(&tenancy(1, Some(slots[0]), 0));
    meter.begin(&tenancy(2, Some(slots[1]), 0));
    let at = Millis::from_secs;
    let there = [process(1, Some(0), 100, 0), process(2, Some(1), 100, 0)];

    let mut counted = sample(0, &slots, &there);
    counted.places[0].busy = Some(0);
    meter.take(BOOT, at(1), counted);
    assert_eq!(meter.idle_since(id(1)), Some(at(1)));
    assert_eq!(meter.idle_since(id(2)), None, "a context, and no counters");
    meter.take(BOOT, at(2), sample(1, &slots, &there[..1]));
    assert_eq!(meter.idle_since(id(2)), Some(at(2)), "no context");
}
