//! How often a request finds no placement although enough slices are free, for each placement rule.
//! Arrivals and departures on one GPU are random, and the same for every rule.
//!
//! A sequence is a loss system: requests come at random moments, a request that finds a legal
//! placement keeps it for a random time, one that finds none is gone. Nothing is ever moved.
//! A profile's probability is the inverse of its memory slices, so that each brings the same load.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};
use tessera_load_tests::machine;
use tessera_model::mig::{
    Geometry, Layout, MigState, Profile, ProfileId, Slot, StateSpace, catalog,
};

#[derive(Parser)]
struct Arguments {
    /// Sequences for each GPU and load.
    #[arg(long, default_value_t = 2_000)]
    sequences: u64,
    /// Requests in a sequence.
    #[arg(long, default_value_t = 200)]
    requests: usize,
    /// Memory slices requested at a time, in parts of the GPU, on average.
    #[arg(long, value_delimiter = ',', default_values_t = [0.4, 0.7, 1.0])]
    loads: Vec<f64>,
    /// Seed of the first sequence.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// File for the result.
    #[arg(long)]
    out: Option<PathBuf>,
}

/// GPUs, and the profiles that are requested.
const MODELS: [(&str, &str); 4] = [
    ("a100-40gb", "plain"),
    ("a100-40gb", "all"),
    ("a30-24gb", "plain"),
    ("h100-80gb-sxm", "plain"),
];

/// How a placement is chosen among the legal ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Rule {
    /// MIGM §4: the largest number of full layouts that stay reachable.
    Reachability,
    /// The same, but among equals the lowest start and not the highest.
    LowestOfEquals,
    /// The lowest start.
    FirstFit,
    /// The smallest run of free slices that holds it, then the lowest start.
    BestFit,
    /// As NVIDIA's driver was observed to choose, see [`driver_order`].
    Driver,
    /// The highest start: what the simulated driver does where no placement is named.
    StandIn,
    /// Any.
    Random,
}

impl Rule {
    const ALL: [Self; 7] = [
        Self::Reachability,
        Self::LowestOfEquals,
        Self::FirstFit,
        Self::BestFit,
        Self::Driver,
        Self::StandIn,
        Self::Random,
    ];

    const fn name(self) -> &'static str {
        match self {
            Self::Reachability => "reachability",
            Self::LowestOfEquals => "reachability, lowest of equals",
            Self::FirstFit => "first-fit",
            Self::BestFit => "best-fit",
            Self::Driver => "driver",
            Self::StandIn => "highest-start",
            Self::Random => "random",
        }
    }
}

/// In which order NVIDIA's driver tries the starts of an instance of `size` memory slices on a
/// GPU of `slices`.
///
/// No document states its rule. On a GPU of eight slices this order explains every known capture:
///
/// - Seven `1g.5gb` requested at once on an A100 become instances 9, 7, 8, 11, 12, 13, 14
///   (rapidsai/dask-cuda#583). `-lgi` lists these at 6, 4, 5, 0, 1, 2, 3, on A100 and H100.
/// - NVIDIA's MIG user guide (creating GPU instances, example 2) has two `1g.5gb` at 6 and 4, then a
///   `2g.10gb` at 0.
/// - Example 3 has a first `2g.10gb` at 4, and then `1g.5gb` at 6, 0, 1, 2, 3.
/// - A first `3g` goes to 4 (also NVIDIA/DCGM#138 on H100).
///
/// For 1g with double memory and for GPUs of four slices there is no capture. The right half first, as
/// above, is assumed.
const fn driver_order(slices: u8, size: u8) -> &'static [u8] {
    match (slices, size) {
        (8, 1) => &[6, 4, 5, 0, 1, 2, 3],
        (8, 2) => &[6, 4, 0, 2],
        (8, 4) => &[4, 0],
        (4, 1) => &[2, 3, 0, 1],
        (4, 2) => &[2, 0],
        _ => &[0],
    }
}

/// One request: what is requested, when, and for how long.
#[derive(Clone, Copy, Debug)]
struct Request {
    profile: ProfileId,
    arrives: f64,
    stays: f64,
}

/// Results of the requests of all sequences under one rule.
#[derive(Clone, Debug, Default)]
struct Tally {
    requests: u64,
    refused: u64,
    /// Refused although enough memory and compute slices were free.
    fragmented: u64,
    /// Of these: requests that would have fitted with the same instances in other slots.
    avoidable: u64,
    /// Share of fragmented requests of each sequence.
    shares: Vec<f64>,
}

/// A GPU and the profiles that may be requested on it.
struct SimulatedGpu {
    key: &'static str,
    offer: &'static str,
    geometry: Geometry,
    space: StateSpace,
    /// Profiles on offer, each with the sum of the probabilities up to it.
    cumulated_shares: Vec<(ProfileId, f64)>,
    /// Every multiset of profiles that can exist at once.
    legal: BTreeSet<Vec<ProfileId>>,
}

impl SimulatedGpu {
    fn new(key: &'static str, offer: &'static str) -> anyhow::Result<Self> {
        let geometry = catalog::find(key)?.geometry();
        let offered = geometry.offer(offer)?;
        let space = StateSpace::new(&geometry, Some(&offered))?;
        let mut sum = 0.0;
        let mut cumulated_shares = Vec::new();
        for profile in geometry.profiles.iter().filter(|p| offered.contains(&p.id)) {
            sum += 1.0 / f64::from(profile.memory_slices);
            cumulated_shares.push((profile.id, sum));
        }
        let states = space.states().context("known cards have few states")?;
        let legal = states.map(|state| multiset(&space.layout(state))).collect();
        Ok(Self { key, offer, geometry, space, cumulated_shares, legal })
    }

    fn profile(&self, id: ProfileId) -> anyhow::Result<&Profile> {
        self.geometry.profile(id).context("only profiles of the card are drawn")
    }

    fn sum(&self) -> f64 {
        self.cumulated_shares.last().map_or(1.0, |(_, sum)| *sum)
    }

    /// Draws a sequence. A request's mean stay is the unit of time.
    fn sequence(&self, load: f64, requests: usize, seed: u64) -> Vec<Request> {
        let mut random = StdRng::seed_from_u64(seed);
        // Each profile brings as much load as any other: one slice for each unit of its share.
        let count: f64 = self.cumulated_shares.iter().map(|_| 1.0).sum();
        let mean_slices = count / self.sum();
        let rate = load * f64::from(self.geometry.memory_slices) / mean_slices;
        let mut now = 0.0;
        (0..requests)
            .map(|_| {
                now += exponential(&mut random) / rate;
                let drawn = random.random::<f64>() * self.sum();
                let found = self.cumulated_shares.iter().find(|(_, up_to)| drawn < *up_to);
                let profile =
                    found.or(self.cumulated_shares.last()).map_or(ProfileId(0), |(id, _)| *id);
                Request { profile, arrives: now, stays: exponential(&mut random) }
            })
            .collect()
    }

    fn choose(
        &self,
        rule: Rule,
        state: MigState,
        id: ProfileId,
        random: &mut StdRng,
    ) -> Option<Slot> {
        let ways: Vec<Slot> =
            self.space.allocations(state, id).into_iter().map(|(slot, _)| slot).collect();
        match rule {
            Rule::Reachability => self.space.best_placement(state, id).map(|(slot, _)| slot),
            Rule::LowestOfEquals => {
                let ways = self.space.placements(state, id).into_iter();
                ways.min_by_key(|(slot, reach)| (usize::MAX - reach, slot.start)).map(|(s, _)| s)
            }
            Rule::FirstFit => ways.first().copied(),
            Rule::StandIn => ways.last().copied(),
            Rule::BestFit => ways.into_iter().min_by_key(|s| (self.run_around(state, *s), s.start)),
            Rule::Driver => {
                let size = self.geometry.profile(id)?.memory_slices;
                let order = driver_order(self.geometry.memory_slices, size);
                let place = |slot: &Slot| order.iter().position(|start| *start == slot.start);
                ways.into_iter().min_by_key(|slot| place(slot).unwrap_or(order.len()))
            }
            Rule::Random => (!ways.is_empty()).then(|| ways[random.random_range(0..ways.len())]),
        }
    }

    /// Returns the length of the run of free slices around a legal slot.
    fn run_around(&self, state: MigState, slot: Slot) -> u32 {
        let taken = self.taken(state);
        let mut run = self.geometry.mask(slot).unwrap_or(0);
        let all_slices = u64::MAX >> (64 - u32::from(self.geometry.memory_slices));
        loop {
            let wider = (run | run << 1 | run >> 1) & !taken & all_slices;
            if wider == run {
                return run.count_ones();
            }
            run = wider;
        }
    }

    fn taken(&self, state: MigState) -> u64 {
        let mask = |slot: &Slot| self.geometry.mask(*slot).unwrap_or(0);
        self.space.layout(state).iter().map(mask).fold(0, |all, mask| all | mask)
    }

    fn enough_free(&self, state: MigState, profile: &Profile) -> bool {
        let total = self.geometry.profiles.iter().map(|p| p.compute_slices).max().unwrap_or(0);
        let layout = self.space.layout(state);
        let standing = layout.iter().filter_map(|slot| self.geometry.profile(slot.profile));
        let used: u32 = standing.map(|p| u32::from(p.compute_slices)).sum();
        let free = u32::from(self.geometry.memory_slices) - self.taken(state).count_ones();
        let of_its_kind = layout.iter().filter(|slot| slot.profile == profile.id).count();
        free >= u32::from(profile.memory_slices)
            && used + u32::from(profile.compute_slices) <= u32::from(total)
            && of_its_kind < usize::from(profile.max_instances)
    }

    fn could_stand(&self, state: MigState, more: ProfileId) -> bool {
        let mut profiles = multiset(&self.space.layout(state));
        profiles.push(more);
        profiles.sort_unstable();
        self.legal.contains(&profiles)
    }

    fn run(
        &self,
        rule: Rule,
        requests: &[Request],
        seed: u64,
        tally: &mut Tally,
    ) -> anyhow::Result<()> {
        let mut random = StdRng::seed_from_u64(!seed);
        let mut state = MigState::EMPTY;
        let mut standing: Vec<(Slot, f64)> = Vec::new();
        let mut fragmented = 0_u32;
        for request in requests {
            for (slot, _) in standing.extract_if(.., |(_, ends)| *ends <= request.arrives) {
                state = self.space.free(state, slot).context("it stands")?;
            }
            if let Some(slot) = self.choose(rule, state, request.profile, &mut random) {
                state = self.space.allocate(state, slot).context("rules choose legal slots")?;
                standing.push((slot, request.arrives + request.stays));
                continue;
            }
            tally.refused += 1;
            if self.enough_free(state, self.profile(request.profile)?) {
                fragmented += 1;
                tally.avoidable += u64::from(self.could_stand(state, request.profile));
            }
        }
        tally.requests += u64::try_from(requests.len())?;
        tally.fragmented += u64::from(fragmented);
        tally.shares.push(f64::from(fragmented) / f64::from(u32::try_from(requests.len())?));
        Ok(())
    }
}

fn multiset(layout: &Layout) -> Vec<ProfileId> {
    let mut profiles: Vec<_> = layout.iter().map(|slot| slot.profile).collect();
    profiles.sort_unstable();
    profiles
}

fn exponential(random: &mut StdRng) -> f64 {
    -(1.0 - random.random::<f64>()).ln()
}

/// Returns the mean and its standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let count: f64 = values.iter().map(|_| 1.0).sum();
    let mean = values.iter().sum::<f64>() / count;
    let variance = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    (mean, (variance / count).sqrt())
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let mut figures = Vec::new();
    for (key, offer) in MODELS {
        let gpu = SimulatedGpu::new(key, offer)?;
        for load in &arguments.loads {
            figures.push(compare(&gpu, *load, &arguments)?);
        }
    }
    let result = json!({
        "what": "requests that fail although enough slices are free, by placement rule",
        "machine": machine::facts(),
        "sequences": arguments.sequences,
        "requests_per_sequence": arguments.requests,
        "seed": arguments.seed,
        "figures": figures,
    });
    machine::report(&result, arguments.out.as_deref())
}

fn compare(gpu: &SimulatedGpu, load: f64, arguments: &Arguments) -> anyhow::Result<Value> {
    let mut tallies = Rule::ALL.map(|rule| (rule, Tally::default()));
    for seed in (arguments.seed..).take(usize::try_from(arguments.sequences)?) {
        let requests = gpu.sequence(load, arguments.requests, seed);
        for (rule, tally) in &mut tallies {
            gpu.run(*rule, &requests, seed, tally)?;
        }
    }
    let (ours, _) = mean(&tallies[0].1.shares);
    let rules: Vec<Value> = tallies
        .iter()
        .map(|(rule, tally)| {
            let (share, error) = mean(&tally.shares);
            let percent = |share: f64| (share * 1e5).round() / 1e3;
            json!({
                "rule": rule.name(),
                "requests": tally.requests,
                "refused": tally.refused,
                "fragmented": tally.fragmented,
                "avoidable": tally.avoidable,
                "fragmented_percent": percent(share),
                "standard_error_percent": percent(error),
                "ratio_to_reachability": (share / ours * 1e3).round() / 1e3,
            })
        })
        .collect();
    Ok(json!({ "card": gpu.key, "profiles": gpu.offer, "load": load, "rules": rules }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The starts that the driver chooses for profiles that are requested one after another.
    fn chosen(key: &'static str, names: &[&str]) -> Vec<Option<u8>> {
        let gpu = SimulatedGpu::new(key, "all").unwrap();
        let mut random = StdRng::seed_from_u64(0);
        let mut state = MigState::EMPTY;
        let mut starts = Vec::new();
        for name in names {
            let id = gpu.geometry.by_name(&name.parse().unwrap()).unwrap().id;
            let slot = gpu.choose(Rule::Driver, state, id, &mut random);
            state = slot.and_then(|slot| gpu.space.allocate(state, slot)).unwrap_or(state);
            starts.push(slot.map(|slot| slot.start));
        }
        starts
    }

    #[test]
    fn the_drivers_order_explains_every_capture() {
        let some = |starts: &[u8]| starts.iter().copied().map(Some).collect::<Vec<_>>();

        assert_eq!(chosen("a100-40gb", &["1g.5gb"; 7]), some(&[6, 4, 5, 0, 1, 2, 3]));
        let guide_2 = chosen("a100-40gb", &["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"]);
        assert_eq!(guide_2, [Some(6), Some(4), Some(0), None]);
        let guide_3 = chosen("a100-40gb", &["2g.10gb", "1g.5gb", "1g.5gb", "1g.5gb"]);
        assert_eq!(guide_3, some(&[4, 6, 0, 1]));
        assert_eq!(chosen("a100-80gb", &["3g.40gb", "4g.40gb"]), some(&[4, 0]));
        let h100 = chosen("h100-80gb-sxm", &["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]);
        assert_eq!(h100, some(&[4, 0, 2, 3]));
    }

    #[test]
    fn two_runs_of_one_seed_are_the_same() {
        let gpu = SimulatedGpu::new("a30-24gb", "plain").unwrap();
        let run = || {
            let mut tally = Tally::default();
            let requests = gpu.sequence(0.7, 300, 5);
            gpu.run(Rule::Random, &requests, 5, &mut tally).unwrap();
            (tally.refused, tally.fragmented, tally.avoidable)
        };

        assert_eq!(run(), run());
    }
}
