//! From recorded jobs to requests with their moments: pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tessera_model::Bytes;
use tessera_sim::cluster::job::{Class, Job};
use tessera_sim::cluster::number::whole;
use tessera_sim::cluster::workload::file::Row;

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

/// Longest part of a job's name that is the trace's: with what goes before it, it has to fit.
const NAME_MAX: usize = 64;

impl Plan {
    /// Makes the plan of rows in the order of their arrival, each with its processes; the first job
    /// comes at once.
    pub fn of(rows: Vec<(Row, Vec<Job>)>, terms: &Terms) -> Self {
        let submit = |job: &Job| Duration::from_millis(job.submit_ms);
        let first = rows.first().and_then(|(_, jobs)| jobs.first()).map_or(Duration::ZERO, submit);
        let planned = |(number, (row, jobs)): (usize, (Row, Vec<Job>))| {
            let job = jobs.first()?;
            let job_id = named(&row.name, number);
            Some(Planned {
                at: submit(job).saturating_sub(first).div_f64(terms.time_scale),
                request: request(&job_id, &row, job, terms),
                job_id,
            })
        };
        Self { jobs: (1..).zip(rows).filter_map(planned).collect() }
    }
}

/// Returns what a job is called: as in the trace, or else by its number.
fn named(name: &str, number: usize) -> String {
    let plain: String = name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
    if plain.trim().is_empty() { number.to_string() } else { plain }
}

fn request(job_id: &str, row: &Row, job: &Job, terms: &Terms) -> SubmitRequest {
    let least = job.times.values().flat_map(BTreeMap::values).min().copied().unwrap_or(0);
    let lasts = row.duration_s.map_or(Duration::from_millis(least), Duration::from_secs_f64);
    let scaled = lasts.div_f64(terms.time_scale);
    let lasts = scaled.min(terms.longest.unwrap_or(Duration::MAX)).max(SHORTEST);
    let asked = row.memory_mib.filter(|mib| *mib > 0).map(|_| job.asked.get());
    let class = match job.class {
        Class::Online => "online",
        Class::Offline => "offline",
    };
    SubmitRequest {
        name: Some(format!("replay-{job_id}")),
        user: Some(terms.user.clone()),
        command: Some(vec![terms.program.clone(), format!("{:.3}", lasts.as_secs_f64())]),
        gpu_memory_bytes: asked.or_else(|| Some(share_of(terms.gpu_memory, row.gpu_fraction?))),
        class: Some(class.to_owned()),
        priority: row.priority,
        gang: job.gang.map(|seat| GangRequest {
            nodes: seat.shape.nodes(),
            gpus_per_node: seat.shape.per_node(),
        }),
        ..SubmitRequest::default()
    }
}

/// Returns a part of the reference GPU's memory, exact to a millionth of it.
fn share_of(memory: Bytes, fraction: f64) -> u64 {
    let millionths = u128::from(whole(fraction * 1_000_000.0));
    let exact = u128::from(memory.get()) * millionths / 1_000_000;
    u64::try_from(exact).map_or(memory.get(), |bytes| bytes.max(1))
}

#[cfg(test)]
mod tests {
    use tessera_sim::cluster::workload::file;

    use super::*;

    fn terms() -> Terms {
        Terms {
            time_scale: 100.0,
            longest: Some(Duration::from_secs(3)),
            program: "sleep".into(),
            gpu_memory: Bytes::from_mib(16_384),
            user: "ada".into(),
        }
    }

    fn planned(name: &str, text: &str) -> Vec<Planned> {
        Plan::of(file::rows(name, text).unwrap(), &terms()).jobs
    }

    fn command(job: &Planned) -> [&str; 2] {
        let [program, seconds] = job.request.command.as_deref().unwrap() else { panic!() };
        [program, seconds]
    }

    #[test]
    fn both_times_are_scaled_and_memory_is_a_share_of_the_reference() {
        let jobs = planned(
            "t.csv",
            "job_id,submit_s,duration_s,gpu_fraction,class\n\
             a,1000,50,0.5,online\n\
             b,1200,999,,burstable\n",
        );

        assert_eq!(jobs[0].at, Duration::ZERO);
        assert_eq!(command(&jobs[0]), ["sleep", "0.500"]);
        assert_eq!(jobs[0].request.gpu_memory_bytes, Some(8 << 30));
        assert_eq!(jobs[0].request.class.as_deref(), Some("online"));
        assert_eq!(jobs[0].request.name.as_deref(), Some("replay-a"));
        assert_eq!(jobs[1].at, Duration::from_secs(2));
        assert_eq!(jobs[1].request.gpu_memory_bytes, None);
        assert_eq!(jobs[1].request.class.as_deref(), Some("offline"));
    }

    #[test]
    fn the_files_that_a_simulation_saves_are_submitted_too() {
        let workload = tessera_sim::cluster::workload::built_in("miso:jobs=5", 1).unwrap();
        let saved = file::write(&workload.jobs);

        let jobs = planned("saved.jsonl", &saved);

        assert_eq!(jobs.len(), 5);
        for (job, from) in jobs.iter().zip(&workload.jobs) {
            assert_eq!(job.request.name, Some(format!("replay-{}", from.name)));
            assert_eq!(job.request.gpu_memory_bytes, Some(from.asked.get()));
            assert_eq!(job.request.priority, Some(5));
            let least = Duration::from_millis(from.fastest(&["a100-40gb"]).unwrap());
            let lasts = least.div_f64(100.0).min(Duration::from_secs(3));
            assert_eq!(command(job)[1], format!("{:.3}", lasts.as_secs_f64()));
        }
    }

    #[test]
    fn a_gang_is_submitted_as_one_and_a_job_without_a_name_has_its_number() {
        let jobs = planned("t.csv", "submit_s,duration_s,nodes,gpus_per_node\n0,50,2,4\n1,5,,\n");

        assert_eq!(jobs.len(), 2);
        assert_eq!(jobs[0].request.gang, Some(GangRequest { nodes: 2, gpus_per_node: 4 }));
        assert_eq!(jobs[1].request.gang, None);
        assert_eq!(jobs[1].request.name.as_deref(), Some("replay-2"));
    }

    #[test]
    fn no_job_is_longer_than_allowed_or_shorter_than_can_be_written() {
        let jobs = planned("t.csv", "job_id,submit_s,duration_s\nlong,0,9999\nshort,0,0\n");

        assert_eq!(command(&jobs[0])[1], "3.000");
        assert_eq!(command(&jobs[1])[1], "0.001");
    }

    #[test]
    fn shares_of_memory_are_exact_to_the_millionth() {
        let memory = Bytes::new(16_000_000_000);
        for millionths in [1, 3, 333_333, 460_000, 999_999, 1_000_000_u32] {
            let share = share_of(memory, f64::from(millionths) / 1_000_000.0);
            assert_eq!(share, u64::from(millionths) * 16_000);
        }
    }
}
