use proptest::prelude::*;
use uuid::Uuid;

use super::*;

fn id(number: u8) -> AttemptId {
    AttemptId::from_uuid(Uuid::from_u128(number.into()))
}

fn boot(number: u8) -> BootId {
    BootId::from_uuid(Uuid::from_u128(number.into()))
}

fn reading(at: u64, counter_mj: u64) -> EnergyReading {
    EnergyReading {
        boot: boot(0),
        at: Millis::new(at),
        counter_mj: Some(counter_mj),
        power_mw: None,
    }
}

fn share(number: u8, held: u128, active: u128) -> EnergyShare {
    EnergyShare { attempt: id(number), held, active }
}

/// Events of a node: readings with the use since the last one, restarted counters, agents that
/// restart from their last stored state, and ends.
#[derive(Clone, Debug)]
enum Event {
    Read { after_ms: u64, gained_mj: u64, shares: EnergyShares },
    CounterBeginsAnew { reboot: bool },
    AgentStartsAgain,
    Settle(u8),
}

fn event() -> impl Strategy<Value = Event> {
    let weight = || prop_oneof![Just(0_u128), 0..1_000_u128, any::<u128>()];
    let one = (0..6_u8, weight(), weight()).prop_map(|(n, held, active)| share(n, held, active));
    let shares = (prop::collection::vec(one, 0..5), weight(), weight())
        .prop_map(|(attempts, free, other)| EnergyShares { attempts, free, other });
    let read = (0..20_000_u64, 0..1_000_000_000_u64, shares)
        .prop_map(|(after_ms, gained_mj, shares)| Event::Read { after_ms, gained_mj, shares });
    prop_oneof![
        8 => read,
        1 => any::<bool>().prop_map(|reboot| Event::CounterBeginsAnew { reboot }),
        1 => Just(Event::AgentStartsAgain),
        2 => (0..6_u8).prop_map(Event::Settle),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn the_parts_of_a_split_add_up_and_each_is_within_one_of_its_due(
        total: u64, weights in prop::collection::vec(0..1_000_000_u128, 1..20),
    ) {
        let sum: u128 = weights.iter().sum();
        let parts = split(total, &weights);
        prop_assert_eq!(parts.is_none(), sum == 0);
        let Some(parts) = parts else { return Ok(()) };

        prop_assert_eq!(parts.iter().map(|part| u128::from(*part)).sum::<u128>(), total.into());
        for (part, weight) in parts.iter().zip(&weights) {
            let due = u128::from(total) * weight / sum;
            prop_assert!(u128::from(*part) + 1 >= due && u128::from(*part) <= due + 1);
            prop_assert!(*weight > 0 || *part == 0, "an attempt without use is charged nothing");
        }
    }

    #[test]
    fn attempts_and_idle_energy_add_up_to_the_counters_increase(
        events in prop::collection::vec(event(), 1..60),
    ) {
        let mut ledger = EnergyLedger::default();
        let (mut at, mut counter, mut boots) = (0_u64, 500_u64, 0_u8);
        ledger.advance(reading(at, counter), &EnergyShares::default());
        let mut kept = serde_json::to_string(&ledger).unwrap();
        let mut expected = 0_u64;

        for event in events {
            match event {
                Event::Read { after_ms, gained_mj, shares } => {
                    at += after_ms;
                    counter += gained_mj;
                    let now = EnergyReading { boot: boot(boots), ..reading(at, counter) };
                    let before = ledger.total_mj();
                    let gained = ledger.advance(now, &shares);
                    prop_assert_eq!(ledger.total_mj() - before, gained);
                    expected += gained_mj;
                }
                // The energy up to here was read, and later energy counts from zero.
                Event::CounterBeginsAnew { reboot } => {
                    // Without a new boot, a restarted counter is recognised only by a lower value.
                    if reboot {
                        boots += 1;
                        counter = 0;
                    } else if counter > 0 {
                        counter = 0;
                        let now = EnergyReading { boot: boot(boots), ..reading(at, counter) };
                        prop_assert_eq!(ledger.advance(now, &EnergyShares::default()), 0);
                    }
                }
                // The stored state is newer than the last reading: nothing is lost, and later
                // energy counts from there.
                Event::AgentStartsAgain => ledger = serde_json::from_str(&kept).unwrap(),
                Event::Settle(number) => ledger.settle(id(number)),
            }
            kept = serde_json::to_string(&ledger).unwrap();
            prop_assert_eq!(ledger.total_mj(), expected);
            prop_assert_eq!(
                ledger.idle_mj() + ledger.other_mj() + ledger.attempts_mj(), expected
            );
        }
    }

    /// An agent that was killed between two stored states reads the span since the older one again.
    #[test]
    fn an_older_stored_state_loses_no_energy_and_counts_none_twice(
        gains in prop::collection::vec((1..5_000_u64, 0..100_000_u64), 2..30),
        lost in 1..5_usize,
    ) {
        let held = EnergyShares { attempts: vec![share(1, 3, 1)], free: 4, other: 0 };
        let mut ledger = EnergyLedger::default();
        let (mut at, mut counter) = (0, 0);
        ledger.advance(reading(at, counter), &held);
        let mut notes = vec![serde_json::to_string(&ledger).unwrap()];
        for (after, gained) in &gains {
            at += after;
            counter += gained;
            ledger.advance(reading(at, counter), &held);
            notes.push(serde_json::to_string(&ledger).unwrap());
        }

        let older = &notes[notes.len() - 1 - lost.min(notes.len() - 1)];
        let mut again: EnergyLedger = serde_json::from_str(older).unwrap();
        again.advance(reading(at + 1, counter + 7), &held);

        prop_assert_eq!(again.total_mj(), counter + 7);
    }
}

#[test]
fn an_attempt_with_the_whole_gpu_is_charged_the_counters_increase() {
    let mut ledger = EnergyLedger::default();
    ledger.advance(reading(0, 100), &EnergyShares::default());
    // A second at 32 W without attempts shows the idle power.
    ledger
        .advance(reading(1_000, 32_100), &EnergyShares { free: 1_000, ..EnergyShares::default() });

    let alone = EnergyShares { attempts: vec![share(1, 1_000, 1_000)], free: 0, other: 0 };
    ledger.advance(reading(2_000, 132_870), &alone);

    // ResNet50 alone on an A30: 100.77 W.
    assert_eq!(ledger.of(id(1)), Some(100_770));
    assert_eq!(ledger.idle_mj(), 32_000);
}

#[test]
fn idle_power_is_charged_by_held_shares_and_the_rest_by_activity() {
    let mut ledger = EnergyLedger::default();
    ledger.advance(reading(0, 0), &EnergyShares::default());
    ledger.advance(reading(1_000, 32_000), &EnergyShares { free: 4, ..EnergyShares::default() });

    // One quarter is busy, one quarter is held and idle, and half of the GPU is free: 32 W + 17 W.
    let shares = EnergyShares { attempts: vec![share(1, 1, 5), share(2, 1, 0)], free: 2, other: 0 };
    ledger.advance(reading(2_000, 32_000 + 49_000), &shares);

    assert_eq!(ledger.of(id(1)), Some(8_000 + 17_000));
    assert_eq!(ledger.of(id(2)), Some(8_000));
    assert_eq!(ledger.idle_mj(), 32_000 + 16_000);
}

#[test]
fn foreign_processes_are_charged_their_use() {
    let mut ledger = EnergyLedger::default();
    ledger.advance(reading(0, 0), &EnergyShares::default());

    let shares = EnergyShares { attempts: vec![share(1, 1, 1)], free: 1, other: 3 };
    ledger.advance(reading(1_000, 4_000), &shares);

    assert_eq!((ledger.of(id(1)), ledger.other_mj()), (Some(1_000), 3_000));
}

#[test]
fn without_a_counter_the_power_is_summed() {
    let mut ledger = EnergyLedger::default();
    let power = |at, mw| EnergyReading {
        boot: boot(0),
        at: Millis::new(at),
        counter_mj: None,
        power_mw: Some(mw),
    };
    ledger.advance(power(0, 60_000), &EnergyShares::default());

    let alone = EnergyShares { attempts: vec![share(1, 1, 1)], free: 0, other: 0 };
    ledger.advance(power(500, 80_000), &alone);

    assert_eq!(ledger.of(id(1)), Some(40_000));
}

#[test]
fn energy_without_readings_is_unknown_and_not_zero() {
    assert_eq!(EnergyLedger::default().of(id(1)), None);
}
