//! What one attempt costs: no-op programs through agent and shepherds, seven at a time.
//! Prints the figure; fails only where something is badly wrong.

use std::time::Instant;

use crate::common::{Cluster, Place, order};
use tessera_frames::cluster::{AttemptStatus, ToAgent, ToController};
use tessera_model::life::Outcome;

/// As many as the smallest slices on one A100.
const AT_ONCE: usize = 7;
const ATTEMPTS: usize = 1_000;

#[expect(clippy::disallowed_methods, reason = "the test measures the time of a thousand attempts")]
#[tokio::test]
async fn no_op_attempts_pass_in_about_the_time_of_a_process_start() {
    let cluster = Cluster::new();
    let data = cluster.enrol("n1");
    let agent = cluster.start_with(&data, |command| {
        command.env("TESSERA_SIM_MIG", "off");
    });
    let mut session = cluster.welcome().await;
    let place = Place::on(&session.gpu("A100"));
    let before = cpu_ms(agent.child.id());

    let begun = Instant::now();
    for _ in 0..AT_ONCE {
        session.launch(&order(&place, &["/bin/true"])).await;
    }
    let mut launched = AT_ONCE;
    let mut ended = 0;
    while ended < ATTEMPTS {
        let ToController::Attempt(report) = session.next().await else { continue };
        let AttemptStatus::Ended(record) = report.status else { continue };
        assert_eq!(record.outcome, Outcome::Succeeded, "{record:?}");
        ended += 1;
        session.send(ToAgent::EndAck { attempt: report.attempt }).await;
        if launched < ATTEMPTS {
            session.launch(&order(&place, &["/bin/true"])).await;
            launched += 1;
        }
    }
    let took = begun.elapsed();

    let rate = f64::from(u32::try_from(ATTEMPTS).unwrap()) / took.as_secs_f64();
    let agent_ms = cpu_ms(agent.child.id()) - before;
    println!("{ATTEMPTS} attempts in {took:?}: {rate:.0}/s; agent CPU {agent_ms} ms");
    assert!(rate > 50.0, "{rate:.0} attempts a second");
}

/// Processor time of a process, in milliseconds (100 ticks a second).
fn cpu_ms(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<_> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    (fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()) * 10
}
