//! The kernel plane's frames: everything comes back, nothing hostile gets through or costs much,
//! younger kinds are skipped.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use tessera_frames::codec::{FRAME_BYTES_MAX, FrameKinds, decode, decode_known, encode};
use tessera_frames::kernel::*;
use tessera_kernel_queue::limits::KERNEL_NAME_BYTES_MAX;
use tessera_kernel_queue::{
    Dims, Epoch, GapOpening, GateState, Grant, KernelId, KernelIndex, KernelSample, Nanos,
    QueueRefusal, ResourceNeed, Role, lease::GrantKind,
};

fn nanos() -> impl Strategy<Value = Nanos> {
    any::<u64>().prop_map(Nanos::new)
}

fn index() -> impl Strategy<Value = KernelIndex> {
    any::<u16>().prop_map(KernelIndex::new)
}

fn kernel() -> impl Strategy<Value = KernelId> {
    let sides = any::<[u32; 3]>().prop_map(Dims);
    ("[a-zA-Z0-9_]{1,60}", sides.clone(), sides)
        .prop_map(|(name, grid, block)| KernelId::new(name, grid, block).unwrap())
}

fn role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Measure), Just(Role::Free), Just(Role::Hold), Just(Role::Fill)]
}

fn grant() -> impl Strategy<Value = Grant> {
    let kind = prop_oneof![
        Just(GrantKind::Gap),
        Just(GrantKind::Lapse),
        Just(GrantKind::Aged),
        Just(GrantKind::Colocated)
    ];
    (any::<[u64; 3]>(), kind, [nanos(), nanos(), nanos()], any::<[u16; 2]>(), any::<bool>())
        .prop_map(|(numbers, kind, times, counts, yields)| Grant {
            number: numbers[0],
            gate: GateState { epoch: Epoch::new(numbers[1]), launches: numbers[2] },
            kind,
            from: times[0],
            until: times[1],
            budget: times[2],
            launches: counts[0],
            in_flight: counts[1],
            yields,
        })
}

fn sample() -> impl Strategy<Value = KernelSample> {
    (index(), option::of(index()), nanos(), option::of(nanos()))
        .prop_map(|(kernel, before, took, gap)| KernelSample { kernel, before, took, gap })
}

fn record() -> impl Strategy<Value = ShimRecord> {
    prop_oneof![
        (any::<u32>(), kernel()).prop_map(|(number, kernel)| ShimRecord::Define { number, kernel }),
        (any::<u64>(), index(), any::<u64>(), nanos()).prop_map(|(launch, kernel, count, at)| {
            ShimRecord::Launch { launch, kernel, count, at }
        }),
        (any::<u64>(), index(), option::of(any::<u64>()), nanos()).prop_map(
            |(launch, kernel, beyond, at)| ShimRecord::Request { launch, kernel, beyond, at }
        ),
        (any::<u64>(), index(), any::<u64>(), nanos()).prop_map(|(launch, kernel, grant, at)| {
            ShimRecord::Started { launch, kernel, grant, at }
        }),
        nanos().prop_map(|at| ShimRecord::Done { at }),
        (option::of(any::<u64>()), nanos())
            .prop_map(|(returns, at)| ShimRecord::Sync { returns, at }),
        sample().prop_map(ShimRecord::Sample),
        any::<u64>().prop_map(|records| ShimRecord::Lost { records }),
        any::<u64>().prop_map(|launch| ShimRecord::Failed { launch }),
        Just(ShimRecord::Alive),
        any::<[u64; 2]>().prop_map(|[used, peak]| ShimRecord::Memory { used, peak }),
        any::<u64>().prop_map(|launches| ShimRecord::Passed { launches }),
        Just(ShimRecord::Bye),
        (index(), any::<[u32; 3]>()).prop_map(|(kernel, [sm, shared, bandwidth])| {
            let need = ResourceNeed {
                sm_thousandths: sm,
                shared_thousandths: shared,
                bandwidth_thousandths: bandwidth,
            };
            ShimRecord::Need { kernel, need }
        }),
        any::<u32>().prop_map(|streams| ShimRecord::Streams { streams }),
        nanos().prop_map(|at| ShimRecord::Recalled { at }),
    ]
}

fn to_queue() -> impl Strategy<Value = ToQueue> {
    let hello = (any::<u16>(), any::<[u8; 32]>(), any::<u32>(), any::<u64>(), "GPU-[0-9a-f]{8}");
    prop_oneof![
        (hello, any::<u32>()).prop_map(|((protocol, token, pid, process, device), driver)| {
            ToQueue::Hello(ShimHello { protocol, token, pid, process, device, driver })
        }),
        vec(record(), 0..20).prop_map(ToQueue::Records),
        any::<u32>().prop_map(|thread| ToQueue::SessionThread { thread }),
    ]
}

fn refusal() -> impl Strategy<Value = QueueRefusal> {
    prop_oneof![
        Just(QueueRefusal::UnknownSession),
        Just(QueueRefusal::SessionTwice),
        Just(QueueRefusal::SessionsFull),
        Just(QueueRefusal::QueueFull),
        Just(QueueRefusal::KernelsFull),
    ]
}

fn ended() -> impl Strategy<Value = SessionEnd> {
    prop_oneof![
        any::<[u16; 2]>().prop_map(|[oldest, newest]| SessionEnd::Protocol { oldest, newest }),
        prop::sample::select(vec![
            SessionEnd::Unknown,
            SessionEnd::WrongDevice,
            SessionEnd::Full,
            SessionEnd::Nonsense,
            SessionEnd::Silent,
            SessionEnd::TooMuch,
            SessionEnd::Attempt,
            SessionEnd::Stopping,
            SessionEnd::Replaced,
            SessionEnd::Gone,
        ]),
    ]
}

fn welcome() -> impl Strategy<Value = ShimWelcome> {
    let numbers = (any::<u16>(), any::<u64>(), any::<u16>(), any::<u32>());
    (numbers, role(), [nanos(), nanos(), nanos()]).prop_map(
        |((protocol, session, in_flight, sample_every), role, times)| ShimWelcome {
            protocol,
            session,
            role,
            in_flight,
            wait_max: times[0],
            ages_after: times[1],
            silence_max: times[2],
            sample_every,
        },
    )
}

fn opening() -> impl Strategy<Value = GapOpening> {
    let times = (nanos(), nanos());
    (any::<[u64; 2]>(), index(), times).prop_map(|([launches, wake], kernel, (busy, length))| {
        GapOpening { launches, kernel, busy, length, wake }
    })
}

fn to_shim() -> impl Strategy<Value = ToShim> {
    prop_oneof![
        welcome().prop_map(ToShim::Welcome),
        role().prop_map(ToShim::Role),
        grant().prop_map(ToShim::Grant),
        any::<u64>().prop_map(|grant| ToShim::Revoke { grant }),
        (any::<u32>(), index(), option::of(nanos()), any::<bool>()).prop_map(
            |(number, kernel, sk, measure)| ToShim::Defined { number, kernel, sk, measure }
        ),
        (index(), option::of(nanos()), any::<bool>())
            .prop_map(|(kernel, sk, measure)| ToShim::Known { kernel, sk, measure }),
        (refusal(), option::of(any::<u64>()))
            .prop_map(|(why, launch)| ToShim::Refused { why, launch }),
        Just(ToShim::Ping),
        (nanos(), any::<u64>()).prop_map(|(at, launches)| ToShim::Recall { at, launches }),
        (grant(), opening()).prop_map(|(grant, opening)| ToShim::GrantAhead { grant, opening }),
        (ended(), any::<bool>()).prop_map(|(why, again)| ToShim::Bye(Farewell { why, again })),
    ]
}

fn bytes_of<T: serde::Serialize>(frame: &T) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(frame, &mut bytes).unwrap();
    bytes
}

fn is_refused_or_sound<T>(bytes: &[u8]) -> Result<(), TestCaseError>
where
    T: serde::Serialize + serde::de::DeserializeOwned + FrameKinds,
{
    if let Ok(Some(frame)) = decode_known::<T>(bytes) {
        let again = bytes_of(&frame);
        prop_assert!(again.len() <= bytes.len() && decode::<T>(&again).is_ok());
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn every_frame_comes_back(up in to_queue(), down in to_shim()) {
        prop_assert_eq!(decode_known::<ToQueue>(&bytes_of(&up)).unwrap(), Some(up));
        prop_assert_eq!(decode_known::<ToShim>(&bytes_of(&down)).unwrap(), Some(down));
    }

    #[test]
    fn noise_is_no_panic(kind in 0_u32..3, noise in vec(any::<u8>(), 0..600)) {
        let bytes = [&kind.to_le_bytes()[..], &noise].concat();
        is_refused_or_sound::<ToQueue>(&bytes)?;
        is_refused_or_sound::<ToShim>(&bytes)?;
        is_refused_or_sound::<ToQueue>(&noise)?;
        is_refused_or_sound::<ToShim>(&noise)?;
    }

    #[test]
    fn a_frame_with_changed_bytes_is_no_panic(
        up in to_queue(),
        down in to_shim(),
        changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        for mut bytes in [bytes_of(&up), bytes_of(&down)] {
            for (place, value) in &changes {
                let place = place.index(bytes.len());
                bytes[place] = *value;
            }
            is_refused_or_sound::<ToQueue>(&bytes)?;
            is_refused_or_sound::<ToShim>(&bytes)?;
        }
    }

    #[test]
    fn a_kind_that_is_younger_is_skipped(kind in 9_u32.., rest in vec(any::<u8>(), 0..100)) {
        let bytes = [&kind.to_le_bytes()[..], &rest].concat();

        prop_assert_eq!(decode_known::<ToShim>(&bytes).unwrap(), None);
        prop_assert_eq!(decode_known::<ToQueue>(&bytes).unwrap(), None);
        prop_assert!(decode::<ToShim>(&bytes).is_err());
    }

    #[test]
    fn a_record_takes_no_more_than_it_says(record in record()) {
        let taken = bytes_of(&ToQueue::Records(vec![record.clone()])).len() - 12;

        prop_assert!(taken <= record.frame_bytes(), "{} > {}", taken, record.frame_bytes());
    }

    #[test]
    fn records_that_are_counted_to_fit_do_fit(records in vec(record(), 0..RECORDS_MAX)) {
        let mut frame = Vec::new();
        let mut bytes = 0;
        for record in records {
            bytes += record.frame_bytes();
            if bytes > RECORDS_BYTES_MAX {
                break;
            }
            frame.push(record);
        }

        prop_assert!(bytes_of(&ToQueue::Records(frame)).len() <= FRAME_BYTES_MAX);
    }
}

#[test]
fn a_full_frame_of_launches_fits() {
    let at = Nanos::MAX;
    let launch =
        ShimRecord::Request { launch: 1, kernel: KernelIndex::new(2), beyond: Some(3), at };

    let bytes = bytes_of(&ToQueue::Records(vec![launch; RECORDS_MAX]));

    assert!(bytes.len() <= FRAME_BYTES_MAX, "{}", bytes.len());
}

#[test]
fn a_kernel_whose_name_is_empty_or_too_long_is_refused() {
    // Kind, number of records, kind of record, number of the kernel, then the name.
    let head = [&1_u32.to_le_bytes()[..], &1_u64.to_le_bytes(), &[0; 8]].concat();
    for length in [0, KERNEL_NAME_BYTES_MAX + 1] {
        let name = vec![b'k'; length];
        let length = u64::try_from(length).unwrap().to_le_bytes();
        let bytes = [&head[..], &length, &name, &[1; 24]].concat();

        assert!(decode_known::<ToQueue>(&bytes).is_err());
    }
}

#[test]
fn a_token_is_never_shown() {
    let hello = ShimHello {
        protocol: 1,
        token: [0xab; 32],
        pid: 7,
        process: 8,
        device: "GPU-1".to_owned(),
        driver: 12_040,
    };

    let shown = format!("{:?}", ToQueue::Hello(hello)).to_lowercase();

    assert!(!shown.contains("171") && !shown.contains("abab"), "{shown}");
}

#[test]
fn the_bytes_of_frames_never_change() {
    let number = |n: u64| n.to_le_bytes().to_vec();
    let kind = |n: u32| n.to_le_bytes().to_vec();
    let short = |n: u16| n.to_le_bytes().to_vec();
    let launch =
        ShimRecord::Launch { launch: 5, kernel: KernelIndex::new(6), count: 7, at: Nanos::new(8) };

    let opening = GapOpening {
        launches: 5,
        kernel: KernelIndex::new(6),
        busy: Nanos::new(7),
        length: Nanos::new(8),
        wake: 4,
    };

    let golden = [
        (
            bytes_of(&ToQueue::Records(vec![launch, ShimRecord::Alive])),
            [kind(1), number(2), kind(1), number(5), short(6), number(7), number(8), kind(9)]
                .concat(),
        ),
        (
            bytes_of(&ToQueue::Records(vec![ShimRecord::Need {
                kernel: KernelIndex::new(6),
                need: ResourceNeed {
                    sm_thousandths: 7,
                    shared_thousandths: 8,
                    bandwidth_thousandths: 9,
                },
            }])),
            [kind(1), number(1), kind(13), short(6), kind(7), kind(8), kind(9)].concat(),
        ),
        (
            bytes_of(&ToQueue::Records(vec![ShimRecord::Recalled { at: Nanos::new(8) }])),
            [kind(1), number(1), kind(15), number(8)].concat(),
        ),
        (
            bytes_of(&ToShim::Recall { at: Nanos::new(8), launches: 7 }),
            [kind(9), number(8), number(7)].concat(),
        ),
        (bytes_of(&opening), [number(5), short(6), number(7), number(8), number(4)].concat()),
        (bytes_of(&ToQueue::SessionThread { thread: 9 }), [kind(2), kind(9)].concat()),
        (bytes_of(&ToShim::Role(Role::Fill)), [kind(1), kind(3)].concat()),
        (bytes_of(&ToShim::Revoke { grant: 9 }), [kind(3), number(9)].concat()),
        (bytes_of(&ToShim::Ping), kind(7)),
        (
            bytes_of(&ToShim::Bye(Farewell { why: SessionEnd::Unknown, again: false })),
            [kind(8), kind(0), vec![0]].concat(),
        ),
    ];
    for (written, expected) in golden {
        assert_eq!(written, expected);
    }
}
