//! Which GPUs of its job a step has: steps that name GPUs have them to themselves.

use std::fs::{File, OpenOptions};
use std::io;

use rustix::fs::{FlockOperation, flock};

use super::Allocation;
use tessera_model::number::clamped;

/// How often a step that waits for GPUs looks again.
const LOOK_EVERY: std::time::Duration = std::time::Duration::from_millis(100);

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
