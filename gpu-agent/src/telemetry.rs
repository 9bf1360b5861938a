//! The sampling of a node's GPUs: when to sample, what to keep, what to report. What the samples
//! mean is decided in [`tessera_agent_core::telemetry`].
//!
//! One task for all GPUs. It queries the driver through the same worker as all other parts, but
//! only when nobody else does. Nothing waits for it: a slow driver costs samples, never a launch or
//! a layout step.

mod files;
pub mod health;
mod job_files;
pub mod metrics;
mod state;

use std::path::PathBuf;
use std::time::Duration;

use tessera_frames::cluster::ToController;
use tessera_model::{BootId, GpuId};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::messages::NodeInput;
use crate::messages::telemetry::TelemetryEvent;
use crate::nvml::client::NvmlClient;
use crate::sys::clock;
use tessera_agent_core::telemetry::pace::{FASTEST, SamplingPace};

use job_files::JobFiles;
pub use state::SharedTelemetry;

/// How often accounts are put on disk while attempts run: an agent that is killed counts everything
/// after that again, once.
const SAVE_EVERY: Duration = Duration::from_secs(1);
/// How often they are also synced: a failing machine may lose this much of running attempts. A sync
/// each second would cost more than that.
const SYNC_EVERY: Duration = Duration::from_secs(30);
/// How often while no attempt has the GPU.
const SAVE_IDLE_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of usages that are repeated at once; the others follow with the next report.
const USAGES_AT_ONCE: usize = 256;

/// What the sampling needs.
#[derive(Clone, Debug)]
pub struct TelemetryParts {
    /// The way to the driver.
    pub nvml: NvmlClient,
    /// The way to the node.
    pub node: mpsc::Sender<NodeInput>,
    /// The data folder.
    pub data: PathBuf,
    /// This boot.
    pub boot: BootId,
    /// How often to look.
    pub pace: SamplingPace,
    /// How often to report the controller.
    pub report_every: Duration,
    /// Where DCGM's exporter looks for the jobs of GPUs, if it is used.
    pub job_mapping: Option<PathBuf>,
}

/// Samples until the node is gone.
pub async fn run(
    parts: TelemetryParts,
    shared: SharedTelemetry,
    mut events: mpsc::Receiver<TelemetryEvent>,
) {
    shared.with(|state| state.follow(parts.nvml.counts()));
    let job_files = JobFiles::open(parts.job_mapping.as_deref(), &parts.data);
    let mut sampling = Sampling { parts, shared, due: Vec::new(), job_files };
    let first = Instant::now() + sampling.parts.report_every;
    let mut report = tokio::time::interval_at(first, sampling.parts.report_every);
    report.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let next = sampling.due.iter().map(|due| due.at).min();
        let wait = async {
            match next {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            event = events.recv() => match event {
                Some(event) => sampling.handle(event).await,
                None => return,
            },
            () = wait => sampling.look().await,
            _ = report.tick() => {
                sampling.report();
                sampling.map_jobs(JobFileCheck::Folder).await;
            }
        }
    }
}

struct Sampling {
    parts: TelemetryParts,
    shared: SharedTelemetry,
    due: Vec<SampleSchedule>,
    job_files: Option<JobFiles>,
}

/// What the files of jobs are compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum JobFileCheck {
    /// Their last written state.
    Memory,
    /// The content of the folder: it may have been emptied.
    Folder,
}

/// When a GPU is sampled again.
struct SampleSchedule {
    gpu: GpuId,
    at: Instant,
    looked: Instant,
    saved: Instant,
    synced: Instant,
}

impl Sampling {
    async fn handle(&mut self, event: TelemetryEvent) {
        match event {
            TelemetryEvent::Gpu(report) => {
                if !self.due.iter().any(|due| due.gpu == report.gpu) {
                    let kept = files::load(&self.parts.data, &report.gpu);
                    self.shared.with(|state| state.resume(&report.gpu, kept));
                    let now = Instant::now();
                    let gpu = report.gpu.clone();
                    self.due.push(SampleSchedule {
                        gpu,
                        at: now,
                        looked: now - FASTEST.duration(),
                        saved: now,
                        synced: now,
                    });
                }
                self.shared.with(|state| state.describe(&report));
            }
            TelemetryEvent::Tenancy(tenancy) => {
                self.shared.with(|state| state.tenancy(&tenancy));
                self.sample_soon(&tenancy.gpu);
            }
            TelemetryEvent::Inventory(tenancies) => {
                self.shared.with(|state| state.inventory(&tenancies));
            }
            TelemetryEvent::Memory { attempt, peak } => {
                self.shared.with(|state| state.observe_memory(attempt, peak));
                return;
            }
            TelemetryEvent::Trail { attempt, trail } => {
                self.shared.with(|state| state.observe_trail(attempt, trail));
                return;
            }
            TelemetryEvent::Acknowledged(attempt) => {
                self.shared.with(|state| state.acknowledged(attempt));
            }
        }
        self.map_jobs(JobFileCheck::Memory).await;
    }

    /// Samples a GPU as soon as its pace allows: an attempt started or ended.
    fn sample_soon(&mut self, gpu: &GpuId) {
        for due in self.due.iter_mut().filter(|due| due.gpu == *gpu) {
            due.at = due.at.min(due.looked + FASTEST.duration());
        }
    }

    async fn look(&mut self) {
        let now = Instant::now();
        for index in 0..self.due.len() {
            if self.due[index].at <= now {
                self.look_at(index).await;
            }
        }
    }

    async fn look_at(&mut self, index: usize) {
        let gpu = self.due[index].gpu.clone();
        let begun = Instant::now();
        let sampled = self.parts.nvml.sample(gpu.clone()).await;
        let cost = begun.elapsed();
        let (boot, at) = (self.parts.boot, clock::unix_now());
        let complete = self.shared.with(|state| state.sampled(&gpu, boot, at, sampled.ok()));
        let busy = self.shared.with(|state| state.is_busy(&gpu));
        self.map_jobs(JobFileCheck::Memory).await;
        let due = &mut self.due[index];
        due.looked = begun;
        due.at = begun + self.parts.pace.next(busy, cost);
        let save_every = if busy { SAVE_EVERY } else { SAVE_IDLE_EVERY };
        if complete || due.saved.elapsed() >= save_every {
            due.saved = Instant::now();
            let sync = complete || due.synced.elapsed() >= SYNC_EVERY;
            if sync {
                due.synced = due.saved;
            }
            let kept = if sync { files::Durability::PowerLoss } else { files::Durability::Restart };
            self.save(&gpu, kept).await;
        }
        if complete {
            // On disk already: what the controller receives never changes again.
            self.report_usages(&gpu);
        }
    }

    /// Writes the jobs of each GPU for DCGM's exporter, outside of the agent's main thread.
    async fn map_jobs(&mut self, check: JobFileCheck) {
        let Some(mut files) = self.job_files.take() else { return };
        let map = self.shared.with(|state| state.job_map());
        if check == JobFileCheck::Memory && !files.differs(&map) {
            self.job_files = Some(files);
            return;
        }
        let brought = tokio::task::spawn_blocking(move || {
            files.bring(map);
            files
        });
        // Lost only if it panicked: then the files stay as they are.
        self.job_files = brought.await.ok();
    }

    async fn save(&self, gpu: &GpuId, kept: files::Durability) {
        let Some(text) = self.shared.with(|state| state.kept(gpu)) else { return };
        files::save(&self.parts.data, gpu, text, kept).await;
    }

    fn report(&self) {
        for due in &self.due {
            if let Some(figures) = self.shared.with(|state| state.figures(&due.gpu)) {
                self.send(ToController::Figures(Box::new(figures)));
            }
            let readings = self.shared.with(|state| state.take_readings(&due.gpu));
            if !readings.is_empty() {
                self.send(ToController::Memory(readings));
            }
            self.report_usages(&due.gpu);
        }
    }

    fn report_usages(&self, gpu: &GpuId) {
        for usage in self.shared.with(|state| state.usages(gpu, USAGES_AT_ONCE)) {
            self.send(ToController::Usage(usage));
        }
    }

    /// Reports to the controller, if one is connected: everything is repeated with later reports.
    fn send(&self, frame: ToController) {
        let _ = self.parts.node.try_send(NodeInput::Telemetry(frame));
    }
}
