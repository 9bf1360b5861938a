//! Which GPUs of its job a step has: steps that name GPUs have them to themselves.

use std::fs::{File, OpenOptions};
use std::io;

use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::Allocation;
use super::options::BadStep;
use tessera_model::number::clamped;

/// How often a step that waits for GPUs looks again.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(100);

/// Which GPUs of its node each process of a step sees.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum GpuBinding {
    /// Each sees those of the step.
    #[default]
    None,
    /// One for so many processes, in turn.
    Single(usize),
    /// Each gets its own, as many as this.
    Each(u32),
    /// By the number of the process on its node, in turn.
    Map(Vec<Vec<usize>>),
}

impl GpuBinding {
    /// Reads `--gpu-bind`.
    ///
    /// # Errors
    ///
    /// [`BadStep::Unreadable`] if it names GPUs that can't be read.
    pub fn parse(text: &str) -> Result<Self, BadStep> {
        let bad = || BadStep::Unreadable {
            option: "--gpu-bind",
            text: text.to_owned(),
            expected: "write single:1, per_task:1, map_gpu:0,1 or none",
        };
        let how = text.trim_start_matches("verbose,").trim_start_matches("v,");
        let how = how.strip_prefix("gpu:").unwrap_or(how);
        let (word, list) = how.split_once(':').unwrap_or((how, ""));
        match word {
            "single" if list.is_empty() => Ok(Self::Single(1)),
            "single" => list.parse().map(Self::Single).map_err(|_| bad()),
            "per_task" => list.parse().map(Self::Each).map_err(|_| bad()),
            "map_gpu" => {
                let number = |text: &str| text.parse::<usize>().map(|number| vec![number]);
                repeated(list)
                    .map(number)
                    .collect::<Result<_, _>>()
                    .map(Self::Map)
                    .map_err(|_| bad())
            }
            "mask_gpu" => {
                let mask = |text: &str| {
                    let digits = text.trim_start_matches("0x");
                    let mask = u64::from_str_radix(digits, 16)?;
                    Ok((0..64).filter(|bit| mask >> bit & 1 == 1).collect())
                };
                let masks: Result<_, std::num::ParseIntError> = repeated(list).map(mask).collect();
                masks.map(Self::Map).map_err(|_| bad())
            }
            _ => Ok(Self::None),
        }
    }
}

impl GpuBinding {
    /// Returns the GPUs that a process sees by its number on its node; `None` if that does not matter.
    pub fn of(&self, local: usize, held: &[String]) -> Option<Vec<String>> {
        match self {
            Self::None | Self::Each(_) => None,
            Self::Single(processes) => {
                let turn = local / (*processes).max(1);
                Some(held.get(turn.checked_rem(held.len())?).cloned().into_iter().collect())
            }
            Self::Map(map) => {
                let named = map.get(local.checked_rem(map.len())?)?;
                Some(named.iter().filter_map(|index| held.get(*index).cloned()).collect())
            }
        }
    }
}

/// Splits a list whose entries may be repeated: `0*2,1`.
fn repeated(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').flat_map(|entry| {
        let (entry, times) = entry.split_once('*').unwrap_or((entry, "1"));
        std::iter::repeat_n(entry, times.parse().unwrap_or(1))
    })
}

/// Returns the line which reports that a step waits for GPUs, as Slurm words it.
pub fn busy(job: &str) -> String {
    format!(
        "srun: Job {job} step creation temporarily disabled, retrying (Requested nodes are busy)"
    )
}

/// The GPUs of a step; others can have them when this is dropped, or its process is gone.
#[derive(Debug, Default)]
pub struct StepGpus {
    /// `None` if the step sees all of its job.
    devices: Option<Vec<String>>,
    _locks: Vec<File>,
}

impl StepGpus {
    /// Takes as many GPUs as a step requests here. Waits while other steps of the job have them,
    /// and calls `say` once in that case. A step that `overlaps` shares them.
    ///
    /// # Errors
    ///
    /// The files of the locks can't be opened.
    pub async fn take(
        (needed, overlaps): (Option<u32>, bool),
        allocation: &Allocation,
        announce: impl Fn(),
    ) -> io::Result<Self> {
        let Some(needed) = needed else { return Ok(Self::default()) };
        let needed = clamped::<usize>(needed);
        if overlaps || needed == 0 {
            let devices = allocation.devices.iter().take(needed).cloned().collect();
            return Ok(Self { devices: Some(devices), _locks: Vec::new() });
        }
        let mut is_announced = false;
        loop {
            if let Some(taken) = Self::try_take(needed, allocation)? {
                return Ok(taken);
            }
            if !is_announced {
                is_announced = true;
                announce();
            }
            tokio::time::sleep(LOOK_EVERY).await;
        }
    }

    /// Takes the first free ones; `None` if there are too few.
    fn try_take(needed: usize, allocation: &Allocation) -> io::Result<Option<Self>> {
        // Two steps that each hold some of the GPUs that both need would wait for each other
        // forever.
        let all = File::create(allocation.folder.join("gpus"))?;
        flock(&all, FlockOperation::LockExclusive)?;
        let (mut devices, mut locks) = (Vec::new(), Vec::new());
        for (index, device) in allocation.devices.iter().enumerate() {
            if devices.len() == needed {
                break;
            }
            let mut options = OpenOptions::new();
            let path = allocation.folder.join(format!("gpu{index}"));
            let file = options.write(true).create(true).truncate(false).open(path)?;
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                devices.push(device.clone());
                locks.push(file);
            }
        }
        Ok((devices.len() == needed).then_some(Self { devices: Some(devices), _locks: locks }))
    }

    /// Returns the devices; `None` if the step sees all of its job.
    pub fn devices(&self) -> Option<&[String]> {
        self.devices.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bindings_of_gpus_are_read_as_slurm_writes_them() {
        let map =
            |gpus: &[&[usize]]| Ok(GpuBinding::Map(gpus.iter().map(|g| g.to_vec()).collect()));

        assert_eq!(GpuBinding::parse("single:2"), Ok(GpuBinding::Single(2)));
        assert_eq!(GpuBinding::parse("verbose,per_task:2"), Ok(GpuBinding::Each(2)));
        assert_eq!(GpuBinding::parse("map_gpu:0*2,1"), map(&[&[0], &[0], &[1]]));
        assert_eq!(GpuBinding::parse("mask_gpu:0x3,4"), map(&[&[0, 1], &[2]]));
        assert_eq!(GpuBinding::parse("closest"), Ok(GpuBinding::None));
        assert!(
            GpuBinding::parse("map_gpu:a").is_err() && GpuBinding::parse("per_task:x").is_err()
        );
    }

    #[test]
    fn processes_take_gpus_in_turn_or_as_they_are_named() {
        let held = ["a".to_owned(), "b".to_owned()];
        let seen = |binding: &str, local: usize| {
            let own = GpuBinding::parse(binding).unwrap().of(local, &held);
            own.map(|own| own.concat())
        };
        let all = |binding: &str| [0, 1, 2, 3].map(|local| seen(binding, local).unwrap()).join(" ");

        assert_eq!(all("single:1"), "a b a b");
        assert_eq!(all("single:2"), "a a b b");
        assert_eq!(all("map_gpu:1,0"), "b a b a");
        assert_eq!(seen("none", 1), None);
    }
}
