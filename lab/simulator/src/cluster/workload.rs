//! Where jobs come from: files, the papers' mixes, and generators.

mod demands;
pub mod elsewhere;
pub mod file;
pub mod generate;
pub mod miso;
pub mod papers;
pub mod traces;
mod twister;

use super::job::SimulatedJob;
use super::number::whole;

/// A workload that was read or generated.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What it is called.
    pub name: String,
    /// Its jobs, in the order of their arrival.
    pub jobs: Vec<SimulatedJob>,
}

impl Workload {
    /// Sorts jobs by arrival; equals keep their order.
    pub fn new(name: impl Into<String>, mut jobs: Vec<SimulatedJob>) -> Self {
        jobs.sort_by_key(|job| job.submit_ms);
        Self { name: name.into(), jobs }
    }
}

/// Why there is no such workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    /// No workload has that name.
    #[error("no built-in workload {name:?}; there are {}, or give a .jsonl or .csv file", known.join(", "))]
    Unknown {
        /// What was requested.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// A parameter is invalid.
    #[error("{part:?} is not a parameter of {workload}: {right}")]
    Parameter {
        /// Of which workload.
        workload: String,
        /// What was read.
        part: String,
        /// What would be right.
        right: String,
    },
}

/// Lets only this percentage of the movable jobs be stopped and continued elsewhere. The seed
/// selects them.
pub fn limit_movable(jobs: &mut [SimulatedJob], percent: u8, seed: u64) {
    let mut rng = tessera_predict::random::SeededRng::new(seed ^ 0x6D6F_7665);
    for job in jobs {
        if rng.below(100) >= u64::from(percent) {
            job.restore_ms = None;
        }
    }
}

/// Names of the built-in workloads.
pub const BUILT_IN: &[&str] = &[
    "miso",
    "dyna-p-50",
    "dyna-p-5000",
    "dyna-p-fig7",
    "mmk-60",
    "mmk-1200",
    "migm-hm1",
    "migm-hm2",
    "migm-hm3",
    "migm-hm4",
    "migm-ht1",
    "migm-ht2",
    "migm-ht3",
    "migm-ml1",
    "migm-ml2",
    "migm-ml3",
    "coexec-trio",
    "coexec-pair",
    "parvagpu",
    "alibaba",
    "helios",
    "philly",
    "acme",
    "poisson",
    "bursts",
    "fragments",
    "serving",
    "light",
];

/// Finds a built-in workload: `miso`, `miso:jobs=1000,gap=10`, `poisson:jobs=500,gap=20` and so
/// on, its random numbers drawn from `seed`.
///
/// # Errors
///
/// [`WorkloadError`] states what exists.
pub fn built_in(text: &str, seed: u64) -> Result<Workload, WorkloadError> {
    let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
    let mut given = WorkloadParameters::parse(name, parameters)?;
    let jobs = match name {
        "miso" => {
            let (jobs, gap) = (given.jobs(100, JOBS_MAX)?, given.gap_ms(60_000)?);
            miso::jobs(seed, jobs, gap)
        }
        "poisson" | "bursts" | "fragments" | "serving" | "light" => {
            let (jobs, gap) = (given.jobs(200, JOBS_MAX)?, given.gap_ms(30_000)?);
            match name {
                "poisson" => generate::poisson(seed, jobs, gap),
                "bursts" => generate::bursts(seed, jobs, gap),
                "serving" => generate::serving(seed, jobs, gap),
                "light" => generate::light(seed, jobs, gap),
                _ => generate::fragments(seed, jobs, gap),
            }
        }
        "parvagpu" => {
            let (jobs, gap) = (given.jobs(200, JOBS_MAX)?, given.gap_ms(10_000)?);
            traces::parvagpu(seed, jobs, gap)
        }
        "helios" | "philly" | "acme" => {
            let (jobs, gap) = (given.jobs(500, JOBS_MAX)?, given.gap_ms(30_000)?);
            traces::durations(name, seed, jobs, gap)
        }
        "alibaba" => {
            let jobs = given.jobs(1_000, traces::alibaba_jobs())?;
            traces::alibaba(jobs, given.number("faster", 1, FASTER_MAX)?)
        }
        "dyna-p-5000" => {
            let (jobs, gap) = (given.jobs(5_000, 5_000)?, given.gap_ms(4_750)?);
            traces::dyna_p(jobs, gap)
        }
        _ => papers::jobs(name, seed).ok_or_else(|| WorkloadError::Unknown {
            name: name.to_owned(),
            known: BUILT_IN.to_vec(),
        })?,
    };
    given.done()?;
    Ok(Workload::new(text, jobs))
}

/// The parameters of a workload that were not used yet.
struct WorkloadParameters<'t> {
    workload: &'t str,
    left: Vec<(&'t str, &'t str)>,
    /// The parameters that it takes, for error messages.
    takes: Vec<String>,
}

/// Maximum number of jobs that a generator makes. Chosen: twice what was ever simulated, and they
/// fit into memory.
const JOBS_MAX: u64 = 2_000_000;

/// The maximum factor by which a trace's arrivals can be made denser. Chosen: five months are 13 s
/// then.
const FASTER_MAX: u64 = 1_000_000;

impl<'t> WorkloadParameters<'t> {
    fn parse(workload: &'t str, text: &'t str) -> Result<Self, WorkloadError> {
        let mut given = Self { workload, left: Vec::new(), takes: Vec::new() };
        for part in text.split(',').filter(|part| !part.is_empty()) {
            let right = "write name=number, such as jobs=1000";
            let (name, value) = part.split_once('=').ok_or_else(|| given.bad(part, right))?;
            if given.left.iter().any(|(known, _)| *known == name) {
                return Err(given.bad(part, "it is given twice: write it once"));
            }
            given.left.push((name, value));
        }
        Ok(given)
    }

    fn bad(&self, part: impl Into<String>, right: impl Into<String>) -> WorkloadError {
        let workload = self.workload.to_owned();
        WorkloadError::Parameter { workload, part: part.into(), right: right.into() }
    }

    fn given(&mut self, name: &str, what: String) -> Option<&'t str> {
        self.takes.push(format!("{name} ({what})"));
        let at = self.left.iter().position(|(known, _)| *known == name)?;
        Some(self.left.remove(at).1)
    }

    /// Returns how many of the existing jobs are requested.
    fn jobs(&mut self, default: u64, most: u64) -> Result<u64, WorkloadError> {
        self.number("jobs", default, most)
    }

    fn number(&mut self, name: &str, default: u64, most: u64) -> Result<u64, WorkloadError> {
        let right = format!("a whole number from 1 to {most}");
        let Some(value) = self.given(name, right.clone()) else { return Ok(default) };
        let number = value.parse().ok().filter(|number| (1..=most).contains(number));
        number.ok_or_else(|| self.bad(format!("{name}={value}"), right))
    }

    /// Returns the mean gap between arrivals, which is given in seconds.
    fn gap_ms(&mut self, default: u64) -> Result<u64, WorkloadError> {
        let right = "seconds up to 1000000, 0 for all at once";
        let Some(value) = self.given("gap", right.to_owned()) else { return Ok(default) };
        let seconds = value.parse().ok().filter(|s: &f64| (0.0..=1_000_000.0).contains(s));
        let ms = seconds.map(|seconds| whole(seconds * 1_000.0));
        ms.ok_or_else(|| self.bad(format!("gap={value}"), format!("{right}, such as gap=0.5")))
    }

    fn done(self) -> Result<(), WorkloadError> {
        let Some((name, value)) = self.left.first() else { return Ok(()) };
        let right = match self.takes.as_slice() {
            [] => "it takes none".to_owned(),
            takes => format!("it takes {}", takes.join(" and ")),
        };
        Err(self.bad(format!("{name}={value}"), right))
    }
}
