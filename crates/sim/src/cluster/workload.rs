//! Where jobs come from: files, the papers' mixes, and generators.

mod demands;
pub mod file;
pub mod generate;
pub mod miso;
pub mod papers;
pub mod traces;
mod twister;

use super::job::Job;
use super::number::whole;

/// A workload that was read or made.
#[derive(Clone, Debug)]
pub struct Workload {
    /// What it is called.
    pub name: String,
    /// Its jobs, in the order of their arrival.
    pub jobs: Vec<Job>,
}

impl Workload {
    /// Sorts jobs by arrival; equals keep their order.
    pub fn new(name: impl Into<String>, mut jobs: Vec<Job>) -> Self {
        jobs.sort_by_key(|job| job.submit_ms);
        Self { name: name.into(), jobs }
    }
}

/// Why there is no such workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoWorkload {
    /// Nothing is called that.
    #[error("no built-in workload {name:?}; there are {}, or give a .jsonl or .csv file", known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// A parameter makes no sense.
    #[error("{part:?} is no parameter of {workload}: {right}")]
    Parameter {
        /// Of which workload.
        workload: String,
        /// What was read.
        part: String,
        /// What would be right.
        right: String,
    },
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
];

/// Finds a built-in workload: `miso`, `miso:jobs=1000,gap=10`, `poisson:jobs=500,gap=20` and so
/// on, its chance drawn from `seed`.
///
/// # Errors
///
/// [`NoWorkload`] says what there is.
pub fn built_in(text: &str, seed: u64) -> Result<Workload, NoWorkload> {
    let (name, parameters) = text.split_once(':').unwrap_or((text, ""));
    let mut asked = Parameters::parse(name, parameters)?;
    let jobs = match name {
        "miso" => {
            let (jobs, gap) = (asked.take("jobs", 100)?, asked.gap_ms(60_000)?);
            miso::jobs(seed, jobs, gap)
        }
        "poisson" | "bursts" | "fragments" | "serving" => {
            let (jobs, gap) = (asked.take("jobs", 200)?, asked.gap_ms(30_000)?);
            match name {
                "poisson" => generate::poisson(seed, jobs, gap),
                "bursts" => generate::bursts(seed, jobs, gap),
                "serving" => generate::serving(seed, jobs, gap),
                _ => generate::fragments(seed, jobs, gap),
            }
        }
        "parvagpu" => {
            let (jobs, gap) = (asked.take("jobs", 200)?, asked.gap_ms(10_000)?);
            traces::parvagpu(seed, jobs, gap)
        }
        "helios" | "philly" | "acme" => {
            let (jobs, gap) = (asked.take("jobs", 500)?, asked.gap_ms(30_000)?);
            traces::durations(name, seed, jobs, gap)
        }
        "alibaba" => traces::alibaba(asked.take("jobs", 1_000)?, asked.take("faster", 1)?),
        "dyna-p-5000" => {
            let (jobs, gap) = (asked.take("jobs", 5_000)?, asked.gap_ms(4_750)?);
            traces::dyna_p(jobs, gap)
        }
        _ => papers::jobs(name, seed).ok_or_else(|| NoWorkload::Unknown {
            name: name.to_owned(),
            known: BUILT_IN.to_vec(),
        })?,
    };
    asked.done()?;
    Ok(Workload::new(text, jobs))
}

struct Parameters<'t> {
    workload: &'t str,
    left: Vec<(&'t str, &'t str)>,
}

/// Most jobs that a generator makes.
const JOBS_MAX: u64 = 2_000_000;

impl<'t> Parameters<'t> {
    fn parse(workload: &'t str, text: &'t str) -> Result<Self, NoWorkload> {
        let parts = text.split(',').filter(|part| !part.is_empty());
        let split = |part: &'t str| {
            part.split_once('=').ok_or_else(|| NoWorkload::Parameter {
                workload: workload.to_owned(),
                part: part.to_owned(),
                right: "write name=number, such as jobs=1000,gap=10".to_owned(),
            })
        };
        Ok(Self { workload, left: parts.map(split).collect::<Result<_, _>>()? })
    }

    fn take(&mut self, name: &str, default: u64) -> Result<u64, NoWorkload> {
        let Some(at) = self.left.iter().position(|(known, _)| *known == name) else {
            return Ok(default);
        };
        let (_, value) = self.left.remove(at);
        let number = value.parse().ok().filter(|number| (1..=JOBS_MAX).contains(number));
        number.ok_or_else(|| NoWorkload::Parameter {
            workload: self.workload.to_owned(),
            part: format!("{name}={value}"),
            right: format!("a number from 1 to {JOBS_MAX}"),
        })
    }

    /// Returns the mean gap between arrivals, which is given in seconds.
    fn gap_ms(&mut self, default: u64) -> Result<u64, NoWorkload> {
        let Some(at) = self.left.iter().position(|(known, _)| *known == "gap") else {
            return Ok(default);
        };
        let (_, value) = self.left.remove(at);
        let seconds = value.parse().ok().filter(|s: &f64| (0.001..=1_000_000.0).contains(s));
        let ms = seconds.map(|seconds| whole(seconds * 1_000.0));
        ms.ok_or_else(|| NoWorkload::Parameter {
            workload: self.workload.to_owned(),
            part: format!("gap={value}"),
            right: "seconds from 0.001 to 1000000, such as gap=0.5".to_owned(),
        })
    }

    fn done(self) -> Result<(), NoWorkload> {
        let Some((name, value)) = self.left.first() else { return Ok(()) };
        Err(NoWorkload::Parameter {
            workload: self.workload.to_owned(),
            part: format!("{name}={value}"),
            right: "miso, poisson, bursts, fragments, serving, parvagpu, helios, philly, acme and \
                    dyna-p-5000 take jobs and gap (seconds), alibaba jobs and faster; the others \
                    take none"
                .to_owned(),
        })
    }
}
