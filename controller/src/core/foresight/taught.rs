//! What other tasks teach of how slices compare, where a task itself says nothing.
//!
//! A model of `tessera-predict` is trained beside the leader's work and handed over whole
//! ([`Forecaster::teach`]). It speaks only for slices of a GPU model on which a task never ran while it
//! ran on others; earlier runs come first, and the rule stands in where nobody was taught, or where what
//! was taught stops to come true ([`Watch`]): then it is not asked until a new model is there.

use std::sync::Arc;

use tessera_model::Millis;
use tessera_placement::{Basis, Empirical, Estimator, Prediction, SliceKind};
use tessera_predict::drift::{Trust, Watch};
use tessera_predict::jct::{Jct, Run};
use tessera_predict::memory::{Floor, Floors};
use tessera_predict::{Source, Trained};

use super::Lesson;
use crate::core::floors::MemoryLesson;

/// Parts of a GPU in which slices' sizes are told to the model: a multiple of every known number of
/// compute slices.
const PARTS: u8 = 28;
/// What is drawn while learning comes from this: equal lessons give an equal model.
const SEED: u64 = 1;

/// A model with what it was made of.
#[derive(Debug)]
pub struct Taught {
    jct: Jct,
}

impl Taught {
    /// Learns from runs, the oldest first; `None` if they are too few to learn from and to test with.
    pub fn from(lessons: &[Lesson]) -> Option<Self> {
        let run = |lesson: &Lesson| Run {
            task: lesson.task.clone(),
            model: lesson.on.model.clone(),
            whole_slices: PARTS,
            slices: parts(&lesson.on),
            ms: lesson.ran.get(),
            counters: None,
        };
        let runs: Vec<Run> = lessons.iter().map(run).collect();
        let jct = Jct::learn(&runs, SEED);
        jct.ratios().is_some().then_some(Self { jct })
    }

    /// Returns the model with its version and its error.
    pub const fn trained(&self) -> Option<&Trained> {
        self.jct.ratios()
    }

    /// Returns which model it is.
    pub fn fingerprint(&self) -> u64 {
        self.trained().map_or(0, |trained| trained.version.fingerprint)
    }

    fn predict(&self, task: &str, on: &SliceKind, runs: u32) -> Option<Prediction> {
        let told = self.jct.time(task, &on.model, parts(on), Trust::Trusted)?;
        let millis = Millis::new;
        (told.source == Source::Learned).then(|| Prediction {
            low: millis(told.low.min(told.value)),
            expected: millis(told.value),
            high: millis(told.high.max(told.value)),
            basis: Basis::Learned,
            runs,
        })
    }
}

/// Returns a slice's size in [`PARTS`].
fn parts(on: &SliceKind) -> u8 {
    let parts = (u32::from(on.part) * u32::from(PARTS) + 500) / 1_000;
    u8::try_from(parts).unwrap_or(PARTS).clamp(1, PARTS)
}

/// Earlier runs first, then what was taught, then the rule.
#[derive(Clone, Debug, Default)]
pub(in crate::core) struct Forecaster {
    /// Shared with questions that are being answered meanwhile.
    empirical: Arc<Empirical>,
    /// What memory tasks had; shared, too.
    floors: Arc<Floors>,
    taught: Option<Arc<Taught>>,
    watch: Watch,
}

impl Forecaster {
    /// Believes a new model from now on; one that was asked before by what came of that.
    pub(in crate::core) fn teach(&mut self, taught: Arc<Taught>, came: &[bool]) {
        if self.taught.as_ref().is_none_or(|known| known.fingerprint() != taught.fingerprint()) {
            self.watch = Watch::new();
            for covered in came {
                self.watch.take(*covered);
            }
        }
        self.taught = Some(taught);
    }

    /// Takes in what came of a prediction; only those of the model are watched.
    pub(in crate::core) fn came(&mut self, known: &Prediction, ran: Millis) {
        if known.basis == Basis::Learned {
            self.watch.take(known.covers(ran));
        }
    }

    /// Takes in what GPU memory a run had, and what came of what was foretold of that.
    pub(in crate::core) fn learn_memory(&mut self, lesson: &MemoryLesson) {
        let floors = Arc::make_mut(&mut self.floors);
        if let Some(told) = &lesson.told {
            floors.came(&lesson.task, told, lesson.shown);
        }
        floors.take(&lesson.task, lesson.shown);
    }

    /// Returns what memory a task needs, by its newest runs.
    pub(in crate::core) fn floor(&self, task: &str) -> Option<Floor> {
        self.floors.floor(task)
    }

    /// Returns how many tasks get cautious floors, since their runs don't keep to them.
    pub(in crate::core) fn doubted(&self) -> usize {
        self.floors.alarmed()
    }

    /// Returns the model, and whether it is believed.
    pub(in crate::core) fn taught(&self) -> Option<(&Taught, bool)> {
        let taught = self.taught.as_deref()?;
        Some((taught, self.watch.trust() == Trust::Trusted))
    }
}

impl Estimator for Forecaster {
    fn learn(&mut self, task: &str, on: &SliceKind, ran: Millis) {
        Arc::make_mut(&mut self.empirical).learn(task, on, ran);
    }

    fn predict(&self, task: &str, on: &SliceKind) -> Option<Prediction> {
        let known = self.empirical.predict(task, on)?;
        match (known.basis, self.taught()) {
            (Basis::OtherSlice, Some((taught, true))) => {
                Some(taught.predict(task, on, known.runs).unwrap_or(known))
            }
            _ => Some(known),
        }
    }

    fn clear(&mut self) {
        // What was taught stays: a reload reads the same history.
        Arc::make_mut(&mut self.empirical).clear();
        self.floors = Arc::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(part: u16) -> SliceKind {
        SliceKind { model: "a".to_owned(), profile: format!("p{part}"), part }
    }

    /// Tasks that are all exactly as much slower as a slice is smaller to the power of a half.
    fn lessons(tasks: u64) -> Vec<Lesson> {
        let sizes = [(1_000, 100), (571, 132), (285, 187), (142, 265)];
        let of = |task: u64| {
            sizes.into_iter().flat_map(move |(part, percent)| {
                (0..3).map(move |run| Lesson {
                    task: format!("t{task}"),
                    on: kind(part),
                    ran: Millis::new((600_000 + task * 7_000) * percent / 100 + run),
                })
            })
        };
        (0..tasks).flat_map(of).collect()
    }

    fn forecaster() -> Forecaster {
        let mut forecaster = Forecaster::default();
        forecaster.learn("new", &kind(1_000), Millis::from_secs(1_000));
        forecaster
    }

    #[test]
    fn a_few_runs_teach_nothing() {
        assert!(Taught::from(&lessons(2)).is_none());
    }

    #[test]
    fn what_other_tasks_taught_stands_in_for_the_rule_and_never_for_runs() {
        let mut forecaster = forecaster();
        let rule = forecaster.predict("new", &kind(285)).unwrap();
        assert_eq!((rule.basis, rule.expected.get() / 1_000), (Basis::OtherSlice, 3_508));
        let mut lessons = lessons(60);
        lessons.push(Lesson {
            task: "new".to_owned(),
            on: kind(1_000),
            ran: Millis::from_secs(1_000),
        });

        forecaster.teach(Arc::new(Taught::from(&lessons).unwrap()), &[]);

        let taught = forecaster.predict("new", &kind(285)).unwrap();
        assert_eq!(taught.basis, Basis::Learned);
        let secs = taught.expected.get() / 1_000;
        assert!((1_700..2_050).contains(&secs), "{secs}");
        assert!(taught.low <= taught.expected && taught.expected <= taught.high);
        let own = forecaster.predict("new", &kind(1_000)).unwrap();
        assert_eq!(own.basis, Basis::SameSlice);
        let (model, believed) = forecaster.taught().unwrap();
        assert!(believed && model.trained().unwrap().held_out.relative < 0.2);
    }

    #[test]
    fn a_model_that_stops_to_come_true_is_not_asked_until_another_is_there() {
        let mut forecaster = forecaster();
        let mut lessons = lessons(60);
        lessons.extend(lessons_of_new());
        let taught = Arc::new(Taught::from(&lessons).unwrap());
        forecaster.teach(Arc::clone(&taught), &[]);
        let told = forecaster.predict("new", &kind(285)).unwrap();
        assert_eq!(told.basis, Basis::Learned);

        for _ in 0..32 {
            forecaster.came(&told, told.high.plus(Millis::from_secs(1)));
        }

        assert!(!forecaster.taught().unwrap().1);
        assert_eq!(forecaster.predict("new", &kind(285)).unwrap().basis, Basis::OtherSlice);
        // Nor by the next controller, to which the store tells what came of it.
        let mut next = self::forecaster();
        next.teach(taught, &[false; 32]);
        assert!(!next.taught().unwrap().1);
        lessons.extend(lessons_of_new());
        forecaster.teach(Arc::new(Taught::from(&lessons).unwrap()), &[]);
        // The same task on one more size than before: another table, another model.
        let believed = forecaster.taught().unwrap().1;
        assert_eq!(
            believed,
            forecaster.predict("new", &kind(285)).unwrap().basis == Basis::Learned
        );
    }

    fn lessons_of_new() -> Vec<Lesson> {
        let lesson = |part, secs| Lesson {
            task: "new".to_owned(),
            on: kind(part),
            ran: Millis::from_secs(secs),
        };
        vec![lesson(1_000, 1_000), lesson(571, 1_320)]
    }
}
