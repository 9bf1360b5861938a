//! From recorded jobs to requests with their moments: pure.

use std::time::Duration;

use tessera_model::Bytes;

use super::trace::Row;
use crate::types::{GangRequest, SubmitRequest};

/// How a trace is turned into jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// How many recorded seconds pass in one real second.
    pub time_scale: f64,
    /// Longest that a job may last, in real time.
    pub longest: Option<Duration>,
    /// Program that is given the seconds.
    pub program: String,
    /// Memory of the GPU that fractions count from.
    pub gpu_memory: Bytes,
    /// Who submits.
    pub user: String,
}

/// One job to submit.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// When, counted from the start of the replay.
    pub at: Duration,
    /// What the trace calls it.
    pub job_id: String,
    /// What to send.
    pub request: SubmitRequest,
}

/// All jobs, in the order of their moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// The jobs.
    pub jobs: Vec<Planned>,
}

/// Shortest time that a job is given: a thousandth of a second is what can be written.
const SHORTEST: Duration = Duration::from_millis(1);

impl Plan {
    /// Makes the plan; the first job comes at once.
    pub fn of(rows: Vec<Row>, terms: &Terms) -> Self {
        let first = rows.first().map_or(Duration::ZERO, |row| row.submit);
        let planned = |row: Row| Planned {
            at: (row.submit - first).div_f64(terms.time_scale),
            request: request(&row, terms),
            job_id: row.job_id,
        };
        Self { jobs: rows.into_iter().map(planned).collect() }
    }
}

fn request(row: &Row, terms: &Terms) -> SubmitRequest {
    let scaled = row.duration.div_f64(terms.time_scale);
    let lasts = scaled.min(terms.longest.unwrap_or(Duration::MAX)).max(SHORTEST);
    SubmitRequest {
        name: Some(format!("replay-{}", row.job_id)),
        user: Some(terms.user.clone()),
        command: Some(vec![terms.program.clone(), format!("{:.3}", lasts.as_secs_f64())]),
        gpu_memory_bytes: row.gpu_millionths.map(|share| share_of(terms.gpu_memory, share)),
        class: Some(row.class.to_owned()),
        gang: row
            .gang
            .map(|shape| GangRequest { nodes: shape.nodes(), gpus_per_node: shape.per_node() }),
        ..SubmitRequest::default()
    }
}

fn share_of(memory: Bytes, millionths: u32) -> u64 {
    let exact = u128::from(memory.get()) * u128::from(millionths) / 1_000_000;
    u64::try_from(exact).map_or(memory.get(), |bytes| bytes.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(job_id: &str, submit: u64, duration: u64, gpu_millionths: Option<u32>) -> Row {
        Row {
            job_id: job_id.into(),
            submit: Duration::from_secs(submit),
            duration: Duration::from_secs(duration),
            gpu_millionths,
            class: "online",
            gang: None,
        }
    }

    fn terms() -> Terms {
        Terms {
            time_scale: 100.0,
            longest: Some(Duration::from_secs(3)),
            program: "sleep".into(),
            gpu_memory: Bytes::from_mib(16_384),
            user: "ada".into(),
        }
    }

    #[test]
    fn both_times_are_scaled_and_memory_is_a_share_of_the_reference() {
        let rows = vec![row("a", 1_000, 50, Some(500_000)), row("b", 1_200, 999, None)];

        let jobs = Plan::of(rows, &terms()).jobs;

        assert_eq!(jobs[0].at, Duration::ZERO);
        assert_eq!(jobs[0].request.command.as_deref().unwrap(), ["sleep", "0.500"]);
        assert_eq!(jobs[0].request.gpu_memory_bytes, Some(8 << 30));
        assert_eq!(jobs[0].request.class.as_deref(), Some("online"));
        assert_eq!(jobs[0].request.name.as_deref(), Some("replay-a"));
        assert_eq!(jobs[1].at, Duration::from_secs(2));
        assert_eq!(jobs[1].request.gpu_memory_bytes, None);
    }

    #[test]
    fn a_gang_is_submitted_as_one() {
        let shape = tessera_model::GangShape::new(2, 4).unwrap();
        let rows = vec![Row { gang: Some(shape), ..row("a", 0, 50, None) }];

        let jobs = Plan::of(rows, &terms()).jobs;

        assert_eq!(jobs[0].request.gang, Some(GangRequest { nodes: 2, gpus_per_node: 4 }));
    }

    #[test]
    fn no_job_is_longer_than_allowed_or_shorter_than_can_be_written() {
        let rows = vec![row("long", 0, 9_999, None), row("short", 0, 0, None)];

        let jobs = Plan::of(rows, &terms()).jobs;

        assert_eq!(jobs[0].request.command.as_deref().unwrap(), ["sleep", "3.000"]);
        assert_eq!(jobs[1].request.command.as_deref().unwrap(), ["sleep", "0.001"]);
    }
}
