//! What goes wrong at the endpoint: rows S1 to S4 and S8 of the failure matrix.

use std::process::{Child, Command};
use std::time::{Duration, Instant};

use tessera_agent::sys::clock::monotonic_now;
use tessera_frames::codec;
use tessera_frames::kernel::{RECORDS_MAX, SessionEnd, ShimRecord, ToQueue, ToShim, variables};
use tessera_kernel_queue::{Epoch, KernelIndex, Nanos, Role};

use crate::rig::{Attempt, HelloOverrides, Rig, Shim, dial};

/// A holder and a filler of one slice, both measured.
async fn pair(rig: &mut Rig) -> (Attempt, Attempt) {
    let (high, low) = (rig.admit("MIG-1", "high", 0), rig.admit("MIG-1", "low", 7));
    rig.add_profile(&high, &[(10, 20)]);
    rig.add_profile(&low, &[(500, 100)]);
    // Its first session was there: until then it is expected, and the low one is no free program.
    let mut first = Shim::join(&high).await;
    first.send(vec![ShimRecord::Bye]).await;
    first.await_bye().await;
    (high, low)
}

fn idle_process() -> Child {
    Command::new("sleep").arg("1000").spawn().unwrap()
}

#[tokio::test]
async fn s1_a_wrong_token_gets_no_session() {
    let mut rig = Rig::new();
    let job = rig.admit("MIG-1", "job", 0);

    let wrong = HelloOverrides { token: Some([7; 32]), ..HelloOverrides::default() };
    let farewell = Shim::try_join(&job, wrong).await.err().unwrap();
    assert_eq!(farewell.why, SessionEnd::Unknown);

    rig.endpoint().handle.end_attempt(job.id);
    rig.event().await;
    let farewell = Shim::try_join(&job, HelloOverrides::default()).await.err().unwrap();
    assert_eq!(farewell.why, SessionEnd::Unknown);
}

#[tokio::test]
async fn s1_another_certificate_is_not_trusted() {
    let mut rig = Rig::new();
    let job = rig.admit("MIG-1", "job", 0);

    let wrong = HelloOverrides { fingerprint: Some([7; 32]), ..HelloOverrides::default() };

    assert!(dial(&job, wrong).await.is_err());
}

#[tokio::test]
async fn s1_nonsense_ends_its_own_session_and_no_other() {
    let mut rig = Rig::new();
    let (high, low) = pair(&mut rig).await;
    let mut good = Shim::join(&low).await;
    let too_many = vec![ShimRecord::Alive; RECORDS_MAX + 1];
    let mut bodies = vec![vec![0xff_u8; 3], vec![1, 0, 0, 0, 9, 9, 9, 9, 9, 9, 9, 9, 9], vec![]];
    let mut body = Vec::new();
    codec::encode(&ToQueue::Records(too_many), &mut body).unwrap();
    bodies.push(body);

    for body in bodies {
        let mut bad = Shim::join(&high).await;
        good.await_role(Role::Fill).await;
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        bad.writer.send_raw(&[&length[..], &body].concat()).await.unwrap();
        assert_eq!(bad.await_bye().await.why, SessionEnd::Nonsense);
        good.await_role(Role::Free).await;
    }
    // A connection whose first frame is nonsense is closed as well.
    let (_endpoint, connection, mut writer, _reader) =
        dial(&high, HelloOverrides::default()).await.unwrap();
    writer.send_raw(&[0xff; 5]).await.unwrap();
    tokio::time::timeout(crate::rig::PATIENCE, connection.closed()).await.unwrap();
    assert_eq!(Shim::join(&low).await.welcome.role, Role::Hold);
}

#[tokio::test]
async fn s2_a_restarted_agent_is_found_at_the_same_place_and_gates_again() {
    let mut rig = Rig::new();
    let (high, low) = pair(&mut rig).await;
    let mut holder = Shim::join(&high).await;
    let mut filler = Shim::join(&low).await;
    let page = rig.gate(&low);
    let before = page.page().gate();

    rig.restart(&[high.id, low.id]);

    for shim in [&mut holder, &mut filler] {
        let farewell = shim.await_bye().await;
        assert_eq!((farewell.why, farewell.again), (SessionEnd::Stopping, true));
        shim.closed().await;
    }
    rig.add_profile(&high, &[(10, 20)]);
    rig.add_profile(&low, &[(500, 100)]);
    let holder = Shim::join(&high).await;
    let filler = Shim::join(&low).await;
    assert_eq!((holder.welcome.role, filler.welcome.role), (Role::Free, Role::Fill));
    // The page is another one, and no earlier grant passes for a new one.
    let next = rig.gate(&low);
    assert!(next.page().is_sound() && next.page().gate().has_passed(before));
    assert_eq!(page.page().gate(), before, "nobody writes the page of the agent that is gone");
}

#[tokio::test]
async fn s2_an_attempt_that_ended_while_no_agent_ran_is_forgotten() {
    let mut rig = Rig::new();
    let (high, low) = pair(&mut rig).await;

    rig.restart(&[low.id]);

    assert!(Shim::try_join(&high, HelloOverrides::default()).await.is_err());
    assert!(Shim::try_join(&low, HelloOverrides::default()).await.is_ok());
}

#[tokio::test]
async fn s2_while_a_launch_waits_heartbeats_and_pings_arrive() {
    let mut rig = Rig::new();
    let (high, low) = pair(&mut rig).await;
    let page = rig.gate(&low);
    let mut holder = Shim::join(&high).await;
    let mut filler = Shim::join(&low).await;
    let (kernel, ..) = filler.define(0).await;
    let (own, ..) = holder.define(0).await;
    // Each launch of the holder ends the gap before it can be filled.
    filler.request(1, kernel).await;
    let before = page.page().heartbeat();
    loop {
        holder.launch(1, own, Some(&page)).await;
        let frame = filler.reader.receive_known::<ToShim>().await.unwrap().unwrap();
        if frame == ToShim::Ping {
            break;
        }
    }
    assert!(page.page().heartbeat() > before);
}

#[expect(clippy::disallowed_methods, reason = "the test measures how soon a filler is free")]
#[tokio::test]
async fn s3_a_holder_that_is_killed_frees_fillers_within_ten_milliseconds() {
    const ROUNDS: usize = 50;
    let mut rig = Rig::new();
    let (high, low) = pair(&mut rig).await;
    let page = rig.gate(&low);
    let mut filler = Shim::join(&low).await;
    let mut freed = Vec::new();
    for _ in 0..ROUNDS {
        let mut process = idle_process();
        let pid = HelloOverrides { pid: Some(process.id()), ..HelloOverrides::default() };
        let mut holder = Shim::try_join(&high, pid).await.ok().unwrap();
        filler.await_role(Role::Fill).await;
        // It dies after the gate has counted and before it reports.
        let (kernel, ..) = holder.define(0).await;
        holder.launch(1, kernel, Some(&page)).await;
        page.page().add_launch(KernelIndex::UNKNOWN, Nanos::ZERO);

        let died = Instant::now();
        process.kill().unwrap();
        filler.await_role(Role::Free).await;
        freed.push(died.elapsed());
        process.wait().unwrap();
        assert_eq!(holder.await_bye().await.why, SessionEnd::Gone);
    }
    freed.sort();
    // The median: what a busy test machine does to a single wake-up is not the endpoint's.
    assert!(freed[ROUNDS / 2] <= Duration::from_millis(10), "{freed:?}");
}

#[tokio::test]
async fn s3_an_unreported_count_stops_grants_for_a_moment_only() {
    let mut rig = Rig::new();
    let (high, low) = pair(&mut rig).await;
    let page = rig.gate(&low);
    let mut holder = Shim::join(&high).await;
    let mut filler = Shim::join(&low).await;
    let (own, ..) = holder.define(0).await;
    let (kernel, ..) = filler.define(0).await;
    holder.launch(1, own, Some(&page)).await;
    page.page().add_launch(KernelIndex::UNKNOWN, Nanos::ZERO);

    // Requests again whenever the page states that a grant is over, as a shim does.
    filler.request(1, kernel).await;
    loop {
        let grant = filler.await_grant().await;
        if !page.page().gate().has_passed(grant.gate) {
            break;
        }
        let at = monotonic_now();
        let beyond = Some(grant.number);
        filler.send(vec![ShimRecord::Request { launch: 1, kernel, beyond, at }]).await;
        holder.send(vec![ShimRecord::Alive]).await;
    }
}

#[tokio::test]
async fn s3_silence_ends_a_session_that_no_process_is_known_of() {
    let mut rig = Rig::new();
    let (high, low) = pair(&mut rig).await;
    let nobody = HelloOverrides { pid: Some(0), ..HelloOverrides::default() };
    let mut silent = Shim::try_join(&high, nobody).await.ok().unwrap();
    let mut filler = Shim::join(&low).await;
    assert_eq!(filler.welcome.role, Role::Fill);

    let mut every = tokio::time::interval(Duration::from_millis(200));
    loop {
        tokio::select! {
            _ = every.tick() => filler.send(vec![ShimRecord::Alive]).await,
            frame = silent.receive() => if let ToShim::Bye(farewell) = frame {
                assert_eq!((farewell.why, farewell.again), (SessionEnd::Silent, true));
                break;
            },
        }
    }
    filler.await_role(Role::Free).await;
}

#[tokio::test]
async fn s4_a_page_that_is_scribbled_on_stops_nobody() {
    let mut rig = Rig::new();
    let (high, low) = pair(&mut rig).await;
    let page = rig.gate(&low);
    let mut holder = Shim::join(&high).await;
    let mut filler = Shim::join(&low).await;
    let (own, ..) = holder.define(0).await;
    let (kernel, ..) = filler.define(0).await;

    for round in 0..200_u64 {
        let noise = round.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        page.page().set_epoch(Epoch::new(noise));
        page.page().set_heartbeat(Nanos::new(!noise));
        let at = monotonic_now();
        let launch = ShimRecord::Launch { launch: round, kernel: own, count: noise, at };
        holder.send(vec![launch]).await;
        filler.send(vec![ShimRecord::Request { launch: round, kernel, beyond: None, at }]).await;
    }
    page.page().set_epoch(Epoch::new(u64::MAX));

    // The queue still answers, and still counts who is there.
    let (.., measure) = filler.define(1).await;
    assert!(measure);
    holder.send(vec![ShimRecord::Bye]).await;
    filler.await_role(Role::Free).await;
}

#[tokio::test]
async fn s8_times_and_numbers_that_cannot_be_disturb_nobody_else() {
    let mut rig = Rig::new();
    let (high, low) = pair(&mut rig).await;
    let mut honest = Shim::join(&low).await;
    let mut liar = Shim::join(&high).await;
    honest.await_role(Role::Fill).await;
    let (kernel, ..) = liar.define(0).await;
    let unknown = KernelIndex::new(4_000);

    for at in [Nanos::MAX, Nanos::ZERO] {
        liar.send(vec![
            ShimRecord::Launch { launch: u64::MAX, kernel, count: u64::MAX, at },
            ShimRecord::Started { launch: 0, kernel: unknown, grant: u64::MAX, at },
            ShimRecord::Request { launch: 1, kernel: unknown, beyond: Some(9), at },
            ShimRecord::Sync { returns: Some(3), at },
            ShimRecord::Done { at },
            ShimRecord::Failed { launch: 77 },
            ShimRecord::Lost { records: u64::MAX },
            ShimRecord::Memory { used: u64::MAX, peak: u64::MAX },
            ShimRecord::Passed { launches: u64::MAX },
        ])
        .await;
    }
    // Had the queue's clock gone to the end of time, all programs would have been silent for too
    // long.
    let (_, sk, _) = honest.define(0).await;
    assert_eq!(sk, Some(Nanos::from_micros(500)));
    let (_, sk, _) = liar.define(0).await;
    assert_eq!(sk, Some(Nanos::from_micros(10)));
}

#[tokio::test]
async fn a_token_and_a_certificate_are_for_the_owners_eyes_only() {
    use std::os::unix::fs::PermissionsExt as _;
    let mut rig = Rig::new();
    let job = rig.admit("MIG-1", "job", 0);
    assert_eq!(job.environment[variables::TOKEN].len(), 64);

    let mut folders = vec![rig.folder.path().to_owned()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let kind = entry.file_type().unwrap();
            if kind.is_dir() {
                folders.push(entry.path());
            } else {
                files += 1;
                let mode = entry.metadata().unwrap().permissions().mode();
                assert_eq!(mode & 0o077, 0, "{}", entry.path().display());
            }
        }
    }
    assert!(files >= 4, "certificate, key, port, token, gate");
}
