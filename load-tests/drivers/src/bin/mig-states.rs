//! How fast the partition state machine is: computing every state once, and finding the best
//! placement. Both are compared with computing each answer again.

use std::collections::{BTreeMap, HashSet};
use std::hint::black_box;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context as _;
use clap::Parser;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tessera_load_tests::machine::{self, Spread};
use tessera_model::mig::{Geometry, MigState, ProfileId, Slot, StateSpace, catalog};

#[derive(Parser)]
struct Arguments {
    /// How often the machine of each model is built.
    #[arg(long, default_value_t = 200)]
    builds: usize,
    /// Samples of the look-up; each is the mean of a batch.
    #[arg(long, default_value_t = 20_000)]
    samples: usize,
    /// Look-ups of a batch: a single one is shorter than a clock can measure.
    #[arg(long, default_value_t = 64)]
    batch: usize,
    /// Look-ups that are computed again, for the ratio.
    #[arg(long, default_value_t = 2_000)]
    naive: usize,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// The model of the figures, with all seven of its profiles: 2,319 states.
const MODEL: &str = "a100-40gb";

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let geometry = catalog::find(MODEL)?.geometry();
    let space = StateSpace::new(&geometry, None)?;
    let questions = questions(&geometry, &space)?;
    let lookups = lookups(&space, &questions, &arguments);
    let naive = naive(&geometry, &space, &questions, arguments.naive)?;
    let builds: BTreeMap<&str, Value> = catalog::models()
        .iter()
        .map(|(key, model)| Ok((key.as_str(), build(&model.geometry(), arguments.builds)?)))
        .collect::<anyhow::Result<_>>()?;
    let nanos = |spread: &Spread| json!({ "p50_ns": spread.at(500), "p99_ns": spread.at(990), "max_ns": spread.at(1000) });
    let result = json!({
        "what": "partition state machine: building it, and one look-up of the best placement",
        "machine": machine::facts(),
        "model": MODEL,
        "states": space.counts().map(|counts| counts.states),
        "build": builds[MODEL],
        "build_of_every_model": builds,
        "lookup": nanos(&lookups),
        "lookup_batch": arguments.batch,
        "lookup_samples": arguments.samples,
        "worked_out_anew": nanos(&naive),
        "anew_to_lookup_ratio_p50": (naive.at(500) / lookups.at(500)).round(),
        "anew_to_lookup_ratio_p99": (naive.at(990) / lookups.at(990)).round(),
    });
    machine::report(&result, arguments.out.as_deref())
}

/// Every state with every profile that still fits, in an order that no cache can predict.
fn questions(
    geometry: &Geometry,
    space: &StateSpace,
) -> anyhow::Result<Vec<(MigState, ProfileId)>> {
    let states: Vec<MigState> = space.states().context("the model has few states")?.collect();
    let questions_about = |state: MigState| geometry.profiles.iter().map(move |p| (state, p.id));
    let fits = |(state, id): &(MigState, ProfileId)| space.best_placement(*state, *id).is_some();
    let mut questions: Vec<_> = states.into_iter().flat_map(questions_about).filter(fits).collect();
    let mut random = StdRng::seed_from_u64(1);
    for last in (1..questions.len()).rev() {
        questions.swap(last, random.random_range(0..=last));
    }
    Ok(questions)
}

fn lookups(
    space: &StateSpace,
    questions: &[(MigState, ProfileId)],
    arguments: &Arguments,
) -> Spread {
    let mut ahead = questions.iter().cycle();
    let batch: f64 = (0..arguments.batch).map(|_| 1.0).sum();
    let samples = (0..arguments.samples).map(|_| {
        let some: Vec<_> = ahead.by_ref().take(arguments.batch).copied().collect();
        let begun = Instant::now();
        for (state, profile) in &some {
            black_box(space.best_placement(black_box(*state), black_box(*profile)));
        }
        begun.elapsed().as_secs_f64() * 1e9 / batch
    });
    Spread::of(samples.collect())
}

fn build(geometry: &Geometry, times: usize) -> anyhow::Result<Value> {
    let mut spent = Vec::new();
    for _ in 0..times {
        let begun = Instant::now();
        black_box(StateSpace::new(black_box(geometry), None)?);
        spent.push(begun.elapsed().as_secs_f64() * 1e3);
    }
    Ok(Spread::of(spent).millis())
}

/// The same answers without a table. It counts the full layouts that each successor can reach by
/// walking to them, with sets of bits and a hash set of what was seen.
fn naive(
    geometry: &Geometry,
    space: &StateSpace,
    questions: &[(MigState, ProfileId)],
    count: usize,
) -> anyhow::Result<Spread> {
    let walker = Walker::new(geometry);
    let mut spent = Vec::new();
    for (state, profile) in questions.iter().take(count) {
        let set = walker.set(&space.layout(*state).into_iter().collect::<Vec<_>>());
        let begun = Instant::now();
        let found = black_box(walker.best(black_box(set), *profile));
        spent.push(begun.elapsed().as_secs_f64() * 1e9);
        let expected = space.best_placement(*state, *profile);
        anyhow::ensure!(found == expected, "{found:?} differs from {expected:?}");
    }
    Ok(Spread::of(spent))
}

/// Knows which slots exclude which, and nothing more.
struct Walker {
    slots: Vec<Slot>,
    /// By slot: itself, and all that excludes it. This is exact for the model of the
    /// figures: where an A100 allows only one instance of a profile, no second one fits. Every other
    /// limit follows from the slices.
    excluded: Vec<u64>,
}

impl Walker {
    fn new(geometry: &Geometry) -> Self {
        let of = |p: &tessera_model::mig::Profile| {
            let id = p.id;
            p.starts.iter().map(move |s| Slot { start: *s, profile: id }).collect::<Vec<_>>()
        };
        let slots: Vec<Slot> = geometry.profiles.iter().flat_map(of).collect();
        let clash = |a: &Slot, b: &Slot| a == b || geometry.check([a, b]).is_err();
        let excluded = slots
            .iter()
            .map(|a| {
                let others = slots.iter().enumerate().filter(|(_, b)| clash(a, b));
                others.fold(0, |set, (bit, _)| set | 1 << bit)
            })
            .collect();
        Self { slots, excluded }
    }

    fn set(&self, layout: &[Slot]) -> u64 {
        let bits = self.slots.iter().enumerate().filter(|(_, slot)| layout.contains(slot));
        bits.fold(0, |set, (bit, _)| set | 1 << bit)
    }

    fn successors(&self, set: u64) -> impl Iterator<Item = (usize, u64)> {
        let free = move |bit: &usize| set & self.excluded[*bit] == 0;
        (0..self.slots.len()).filter(free).map(move |bit| (bit, set | 1 << bit))
    }

    fn best(&self, set: u64, profile: ProfileId) -> Option<(Slot, usize)> {
        let ways = self.successors(set).filter(|(bit, _)| self.slots[*bit].profile == profile);
        let weighed = ways.map(|(bit, next)| (self.slots[bit], self.reachability(next)));
        weighed.max_by_key(|(slot, reach)| (*reach, slot.start))
    }

    fn reachability(&self, set: u64) -> usize {
        let mut seen = HashSet::from([set]);
        let mut frontier = vec![set];
        let mut full = 0;
        while let Some(set) = frontier.pop() {
            let mut any = false;
            for (_, next) in self.successors(set) {
                any = true;
                if seen.insert(next) {
                    frontier.push(next);
                }
            }
            full += usize::from(!any);
        }
        full
    }
}
