//! What jobs ask for that name no memory: as much as earlier runs of their task had.
//!
//! MIGM §2.2 names the ways to know a need: declared; learned from earlier runs; unknown, which starts on
//! the smallest slice. A user's word goes first, then what is known of the task, here; who has neither
//! gets the smallest slice from the policy. Nobody waits for more than the largest slice of the cluster
//! has. What a run had is told in a frame of its own, mostly after its end, so that the tasks of ended
//! attempts are kept for a while.

use std::collections::{HashMap, VecDeque};

use tessera_model::spec::GpuAsk;
use tessera_model::{AttemptId, Bytes, JobId};
use tessera_placement::Explanation;
use tessera_predict::memory::{Floor, Shown};

use super::foresight::taught::Forecaster;
use super::foresight::{Facts, Outcomes};
use super::placing::capacity;
use super::{Cluster, Gpu, Live, Waiting};

/// Ended attempts of which it is awaited what they had: some seconds of a large cluster's ends. Whose
/// word comes later is learned by the next leader, from the store.
const ENDED_MAX: usize = 4_096;

/// What a job asks for that names no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// What its task is foretold to need.
    pub(super) floor: Floor,
    /// That, or what the largest slice has.
    pub(super) bytes: Bytes,
}

/// What a run of a task had, and what had been foretold of that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryLesson {
    /// The task.
    pub task: String,
    /// What it had.
    pub shown: Shown,
    /// What was foretold, where its job named no size.
    pub told: Option<Floor>,
}

/// The attempts that ended well and whose peak isn't known yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Ended {
    tasks: HashMap<AttemptId, (String, Option<Floor>)>,
    order: VecDeque<AttemptId>,
}

impl Ended {
    /// Awaits what an attempt had.
    fn wait_for(&mut self, attempt: AttemptId, task: &str, told: Option<Floor>) {
        if self.tasks.insert(attempt, (task.to_owned(), told)).is_some() {
            return;
        }
        self.order.push_back(attempt);
        if self.order.len() > ENDED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.tasks.remove(&oldest);
        }
    }

    /// Returns the task of an attempt, once: nodes repeat themselves.
    fn told(&mut self, attempt: AttemptId) -> Option<(String, Option<Floor>)> {
        self.tasks.remove(&attempt)
    }
}

impl Cluster {
    /// Returns what a job asks for by what earlier runs of its task had, if it names no size itself.
    pub(super) fn floor(&self, asked: &GpuAsk, facts: &Facts) -> Option<Asked> {
        match asked {
            GpuAsk::Unknown => floor_of(&self.estimator, self.largest, facts),
            GpuAsk::Memory(_) | GpuAsk::Profile(_) | GpuAsk::Whole | GpuAsk::Compute(_) => None,
        }
    }

    /// Returns the memory that a task needs, as far as any slice has it.
    pub(super) fn needs(&self, facts: &Facts) -> Option<Bytes> {
        floor_of(&self.estimator, self.largest, facts).map(|asked| asked.bytes)
    }

    /// Looks what the largest slice of the cluster has; if that changed, those who wait ask anew.
    pub(super) fn measure_largest(&mut self) {
        let largest = self.gpus.values().filter_map(largest_of).max().unwrap_or(Bytes::ZERO);
        if largest != self.largest {
            self.largest = largest;
            self.ask_anew(|_| true);
        }
    }

    /// Learns what an attempt had at most; of one that isn't over it is remembered.
    pub(super) fn learn_peak(&mut self, attempt: AttemptId, peak: Option<Bytes>) {
        let Some(peak) = peak.filter(|peak| *peak > Bytes::ZERO) else { return };
        if let Some(live) = self.live.get_mut(&attempt) {
            live.peak = live.peak.max(Some(peak));
        } else if let Some((task, told)) = self.ended.told(attempt) {
            self.learn_memory(&MemoryLesson { task, shown: Shown::Peak(peak), told });
        }
    }

    /// Learns from the end of an attempt that had a slice to itself, or awaits what it had. Returns the
    /// memory of its slice, if it ran out of that.
    pub(super) fn learn_memory_of(
        &mut self,
        attempt: AttemptId,
        live: &Live,
        record: &tessera_wire::frames::ExitRecord,
    ) -> Option<Bytes> {
        let task = live.foretold.as_ref().map(|foretold| foretold.task.clone())?;
        let out_of = record.ran_out_of_gpu_memory().then(|| {
            let gpu = self.gpus.get(&live.gpu)?;
            Some(capacity(gpu, live.slot))
        });
        let out_of = out_of.flatten();
        let succeeded = record.outcome == tessera_model::life::Outcome::Succeeded;
        let shown = out_of.map(Shown::OutOf);
        let shown = shown.or(live.peak.filter(|_| succeeded).map(Shown::Peak));
        match shown {
            _ if task.is_empty() => {}
            Some(shown) => self.learn_memory(&MemoryLesson { task, shown, told: live.memory }),
            None if succeeded => self.ended.wait_for(attempt, &task, live.memory),
            None => {}
        }
        out_of
    }

    /// Returns what came of foretold memory since this was asked last: a picture that is read anew forgets
    /// what nobody asked for.
    pub fn take_memory_came(&mut self) -> Outcomes {
        std::mem::take(&mut self.memory_came)
    }

    /// Learns what a run had; if its task is to ask for another amount now, those who wait do.
    fn learn_memory(&mut self, lesson: &MemoryLesson) {
        if let Some(told) = &lesson.told {
            self.memory_came.take(told.covers(lesson.shown));
        }
        let value = |cluster: &Self| cluster.estimator.floor(&lesson.task).map(|floor| floor.value);
        let before = value(self);
        self.estimator.learn_memory(lesson);
        if value(self) != before {
            self.ask_anew(|waiting| waiting.facts.task == lesson.task);
        }
    }

    /// Has jobs that wait and name no size ask for what their tasks need by now.
    fn ask_anew(&mut self, of: impl Fn(&Waiting) -> bool) {
        let (estimator, largest) = (&self.estimator, self.largest);
        for waiting in self.queue.values_mut() {
            let names_none = waiting.floor.is_some() || waiting.asked.gpu == GpuAsk::Unknown;
            if names_none && of(waiting) {
                waiting.floor = floor_of(estimator, largest, &waiting.facts);
                let bytes = waiting.floor.map(|asked| asked.bytes);
                waiting.asked.gpu = bytes.map_or(GpuAsk::Unknown, GpuAsk::Memory);
            }
        }
    }

    /// Adds to what a job is told that it doesn't ask for so much itself.
    pub(super) fn with_floor(&self, job: JobId, mut why: Explanation) -> Explanation {
        if let Some(asked) = self.queued(job).and_then(|waiting| waiting.floor) {
            why.summary.push_str(&told(&asked));
        }
        why
    }
}

/// Says why a job asks for so much that names no memory.
fn told(asked: &Asked) -> String {
    let Asked { floor, bytes } = asked;
    let mut text = match (floor.cautious, floor.ran_out_of) {
        (true, _) => format!(
            "; it names no memory itself: its task's runs stopped to keep to what earlier ones had, so \
             that it asks for half as much again, {}",
            floor.value
        ),
        (false, Some(slice)) => format!(
            "; it names no memory itself: an earlier run of its task ran out of the {slice} that it had"
        ),
        (false, None) => format!(
            "; it names no memory itself: {} is the most that earlier runs of its task had",
            floor.value
        ),
    };
    if *bytes < floor.value {
        text.push_str(&format!(
            "; no slice of this cluster has so much, and the largest, with {bytes}, has to do"
        ));
    }
    text
}

fn floor_of(estimator: &Forecaster, largest: Bytes, facts: &Facts) -> Option<Asked> {
    if facts.task.is_empty() {
        return None;
    }
    let floor = estimator.floor(&facts.task)?;
    // Where no GPU was ever seen, the first may have it.
    let bytes = if largest > Bytes::ZERO { floor.value.min(largest) } else { floor.value };
    Some(Asked { floor, bytes })
}

/// Returns the memory of the largest slice that a GPU can have.
fn largest_of(gpu: &Gpu) -> Option<Bytes> {
    match (&gpu.report.mig, gpu.mig.as_deref()) {
        (tessera_wire::frames::MigReport::On { .. }, mig) => Some(mig?.plain().next_back()?.memory),
        (_, _) => Some(gpu.report.memory),
    }
}
