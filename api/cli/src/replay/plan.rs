//! Turns recorded jobs into requests with their submit times. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use tessera_model::Bytes;
use tessera_model::mig::catalog;
use tessera_simulator::cluster::job::{JobClass, SimulatedJob};
use tessera_simulator::cluster::number::whole;
use tessera_simulator::cluster::workload::file::WorkloadRow;

use tessera_api_types::{GangRequest, SubmitRequest};

/// How a trace is turned into jobs.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayTerms {
    /// Number of recorded seconds in one real second.
    pub time_scale: f64,
    /// Maximum duration of a job, in real time.
    pub longest: Option<Duration>,
    /// Program that gets the seconds as its argument.
    pub program: String,
    /// GPU memory that fractions refer to.
    pub gpu_memory: Bytes,
    /// The user who submits.
    pub user: String,
    /// Whether jobs are submitted as the users that the trace names.
    pub users: bool,
}

/// One job to submit.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedJob {
    /// When, counted from the start of the replay.
    pub at: Duration,
    /// Its name in the trace.
    pub job_id: String,
    /// The request to send, without the deadline.
    pub request: SubmitRequest,
    /// How long after its submit it has to be done, in real time.
    pub due_after: Option<Duration>,
}

/// All jobs, in the order of their submit times.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayPlan {
    pub jobs: Vec<PlannedJob>,
    /// Parts of the trace that are not submitted.
    pub notes: Vec<String>,
}

/// Shortest duration of a job: a millisecond is the resolution of the argument.
const SHORTEST: Duration = Duration::from_millis(1);

/// Maximum length of the trace's part of a job's name, which also has a prefix.
const NAME_MAX: usize = 64;

impl ReplayPlan {
    /// Makes the plan of rows in the order of their arrival, each with its processes; the first job
    /// is submitted at once.
    pub fn new(rows: Vec<(WorkloadRow, Vec<SimulatedJob>)>, terms: &ReplayTerms) -> Self {
        let submit = |job: &SimulatedJob| Duration::from_millis(job.submit_ms);
        let first = rows.first().and_then(|(_, jobs)| jobs.first()).map_or(Duration::ZERO, submit);
        let planned = |(number, (row, jobs)): (usize, (WorkloadRow, Vec<SimulatedJob>))| {
            let job = jobs.first()?;
            let job_id = named(&row.name, number);
            Some(PlannedJob {
                at: submit(job).saturating_sub(first).div_f64(terms.time_scale),
                request: request(&job_id, &row, job, terms),
                due_after: due_after(job, terms),
                job_id,
            })
        };
        let notes = left_out(&rows, terms);
        Self { jobs: (1..).zip(rows).filter_map(planned).collect(), notes }
    }
}

/// Lists the parts of a trace that only a simulator can use.
fn left_out(rows: &[(WorkloadRow, Vec<SimulatedJob>)], terms: &ReplayTerms) -> Vec<String> {
    let mut notes = Vec::new();
    let others = rows.iter().filter(|(row, _)| row.user.as_ref().is_some_and(|u| *u != terms.user));
    let others = others.count();
    if !terms.users && others > 0 {
        notes.push(format!(
            "{others} of {} jobs name other users, and were submitted as yours: --users submits them as \
             theirs",
            rows.len()
        ));
    }
    notes
}

/// Returns how long after its submit a job has to be done.
fn due_after(job: &SimulatedJob, terms: &ReplayTerms) -> Option<Duration> {
    let recorded = Duration::from_millis(job.deadline_ms?.saturating_sub(job.submit_ms));
    Some(recorded.div_f64(terms.time_scale))
}

/// Returns a job's time limit in real seconds, rounded up: controllers know whole seconds only.
fn time_limit_secs(job: &SimulatedJob, terms: &ReplayTerms) -> Option<u64> {
    let limit = Duration::from_millis(job.limit_ms?).div_f64(terms.time_scale);
    Some((limit.as_secs() + u64::from(limit.subsec_nanos() > 0)).max(1))
}

/// Returns a job's name: as in the trace, or else its number.
fn named(name: &str, number: usize) -> String {
    let plain: String = name.chars().filter(|c| !c.is_control()).take(NAME_MAX).collect();
    if plain.trim().is_empty() { number.to_string() } else { plain }
}

fn request(
    job_id: &str,
    row: &WorkloadRow,
    job: &SimulatedJob,
    terms: &ReplayTerms,
) -> SubmitRequest {
    let user = row.user.clone().filter(|_| terms.users).unwrap_or_else(|| terms.user.clone());
    let requested = row.memory_mib.filter(|mib| *mib > 0).map(|_| job.requested.get());
    let class = match job.class {
        JobClass::Online => "online",
        JobClass::Offline => "offline",
    };
    SubmitRequest {
        name: Some(format!("replay-{job_id}")),
        user: Some(user),
        command: Some(command(row, job, terms)),
        gpu_memory_bytes: requested.or_else(|| Some(share_of(terms.gpu_memory, row.gpu_fraction?))),
        class: Some(class.to_owned()),
        priority: row.priority,
        time_limit_secs: time_limit_secs(job, terms),
        gang: job.gang.map(|member| GangRequest {
            nodes: member.shape.nodes(),
            gpus_per_node: member.shape.per_node(),
        }),
        ..SubmitRequest::default()
    }
}

/// Returns the program with its seconds; where these depend on the slice, through a shell that looks
/// which one it is.
fn command(row: &WorkloadRow, job: &SimulatedJob, terms: &ReplayTerms) -> Vec<String> {
    let seconds = |lasts: Duration| {
        let scaled = lasts.div_f64(terms.time_scale);
        let lasts = scaled.min(terms.longest.unwrap_or(Duration::MAX)).max(SHORTEST);
        format!("{:.3}", lasts.as_secs_f64())
    };
    let least = job.times.values().flat_map(BTreeMap::values).min().copied().unwrap_or(0);
    let least = seconds(Duration::from_millis(least));
    let plain = |seconds: String| vec![terms.program.clone(), seconds];
    if let Some(lasts) = row.duration_s.map(Duration::from_secs_f64) {
        return plain(seconds(lasts));
    }
    let by_slice: BTreeMap<String, String> = (times_by_profile(job).into_iter())
        .map(|(profile, ms)| (profile, seconds(Duration::from_millis(ms))))
        .collect();
    if by_slice.values().all(|seconds| *seconds == least) {
        return plain(least);
    }
    let cases: String =
        by_slice.iter().map(|(profile, seconds)| format!("{profile}) s={seconds};; ")).collect();
    let script = format!(
        "case \"${{TESSERA_GPU_PROFILE-}}\" in {cases}*) s={least};; esac; exec \"$0\" \"$s\""
    );
    vec!["/bin/sh".to_owned(), "-c".to_owned(), script, terms.program.clone()]
}

/// Returns how long a job takes, by the name of its slice's profile: a job knows only that about
/// its GPU. If two models have a profile of that name, the first is used.
fn times_by_profile(job: &SimulatedJob) -> BTreeMap<String, u64> {
    let mut known = BTreeMap::new();
    // An entry for the model takes precedence over one for any model.
    let named = catalog::models().keys().filter(|model| job.times.contains_key(model.as_str()));
    let others = catalog::models().keys().filter(|model| !job.times.contains_key(model.as_str()));
    for model in named.chain(others) {
        let Ok(found) = catalog::find(model) else { continue };
        for profile in &found.geometry().profiles {
            if let Some(ms) = job.time(model, profile.compute_slices) {
                known.entry(profile.name.to_string()).or_insert(ms);
            }
        }
    }
    known
}

/// Returns a part of the reference GPU's memory, exact to a millionth of it.
fn share_of(memory: Bytes, fraction: f64) -> u64 {
    let millionths = u128::from(whole(fraction * 1_000_000.0));
    let exact = u128::from(memory.get()) * millionths / 1_000_000;
    u64::try_from(exact).map_or(memory.get(), |bytes| bytes.max(1))
}

#[cfg(test)]
mod tests {
    use tessera_simulator::cluster::workload::file;

    use super::*;

    fn terms() -> ReplayTerms {
        ReplayTerms {
            time_scale: 100.0,
            longest: Some(Duration::from_secs(3)),
            program: "sleep".into(),
            gpu_memory: Bytes::from_mib(16_384),
            user: "ada".into(),
            users: false,
        }
    }

    fn planned(name: &str, text: &str) -> Vec<PlannedJob> {
        ReplayPlan::new(file::rows(name, text).unwrap(), &terms()).jobs
    }

    fn command(job: &PlannedJob) -> [&str; 2] {
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
        let workload = tessera_simulator::cluster::workload::built_in("miso:jobs=5", 1).unwrap();
        let saved = file::write(&workload.jobs);

        let jobs = planned("saved.jsonl", &saved);

        assert_eq!(jobs.len(), 5);
        for (job, from) in jobs.iter().zip(&workload.jobs) {
            assert_eq!(job.request.name, Some(format!("replay-{}", from.name)));
            assert_eq!(job.request.gpu_memory_bytes, Some(from.requested.get()));
            assert_eq!(job.request.priority, Some(5));
            for (profile, slices) in [("1g.5gb", 1), ("3g.20gb", 3), ("7g.40gb", 7)] {
                let Some(ms) = from.time("a100-40gb", slices) else { continue };
                let lasts = Duration::from_millis(ms).div_f64(100.0).min(Duration::from_secs(3));
                assert_eq!(on_slice(job, profile), format!("{:.3}\n", lasts.as_secs_f64()));
            }
        }
    }

    /// Runs a job's command as on such a slice, with `echo` as its program.
    fn on_slice(job: &PlannedJob, profile: &str) -> String {
        let words = job.request.command.as_deref().unwrap();
        let words: Vec<&str> =
            words.iter().map(|w| if w == "sleep" { "echo" } else { w.as_str() }).collect();
        let mut command = std::process::Command::new(words[0]);
        command.args(&words[1..]).env_remove("TESSERA_GPU_PROFILE");
        if !profile.is_empty() {
            command.env("TESSERA_GPU_PROFILE", profile);
        }
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    }

    #[test]
    fn a_job_lasts_for_its_time_on_the_slice_that_it_gets() {
        let jobs = planned(
            "t.jsonl",
            "{\"submit_s\": 0, \"times_s\": {\"a100-40gb\": {\"1\": 200, \"7\": 100}, \"*\": {\"1\": 50}}}\n\
             {\"submit_s\": 0, \"times_s\": {\"*\": {\"1\": 50, \"7\": 50}}}\n",
        );

        let slices = ["1g.5gb", "2g.10gb", "7g.40gb", "4g.24gb", "", "unheard of"];
        let took = slices.map(|profile| on_slice(&jobs[0], profile).trim().to_owned());
        assert_eq!(took, ["2.000", "2.000", "1.000", "0.500", "0.500", "0.500"]);
        assert_eq!(command(&jobs[1]), ["sleep", "0.500"], "the same wherever it runs");
    }

    #[test]
    fn parts_that_are_not_submitted_are_listed_and_users_are_submitted_on_request() {
        let text = "submit_s,duration_s,user,deadline_s\n0,5,bob,9\n1,5,ada,\n2,5,,\n";
        let rows = || file::rows("t.csv", text).unwrap();
        let users = |plan: &ReplayPlan| -> Vec<String> {
            plan.jobs.iter().map(|job| job.request.user.clone().unwrap()).collect()
        };

        let mine = ReplayPlan::new(rows(), &terms());
        assert_eq!(users(&mine), ["ada", "ada", "ada"]);
        assert!(mine.notes[0].starts_with("1 of 3 jobs name other users"), "{:?}", mine.notes);
        let due: Vec<_> = mine.jobs.iter().map(|job| job.due_after).collect();
        assert_eq!(
            due,
            [Some(Duration::from_millis(90)), None, None],
            "at a hundred times the speed"
        );
        let limited = planned("t.csv", "submit_s,duration_s,time_limit_s\n0,5,250\n0,5,\n");
        let limits: Vec<_> = limited.iter().map(|job| job.request.time_limit_secs).collect();
        assert_eq!(limits, [Some(3), None], "2.5 s, rounded up");
        let theirs = ReplayPlan::new(rows(), &ReplayTerms { users: true, ..terms() });
        assert_eq!(users(&theirs), ["bob", "ada", "ada"]);
        assert_eq!(theirs.notes.len(), 0, "{:?}", theirs.notes);
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
