//! What operators say: words that stay in force until they are taken back.

use tessera_model::mig::Slot;
use tessera_model::{GpuId, Millis};
use tessera_placement::{Closed, Closure, OperatorWord};
use tessera_wire::frames::ToAgent;

use super::{Cluster, Effect, Gpu, Round};
use crate::ports::operator::{
    Kind, On, OperatorDone, OperatorOrder, OperatorRefused, RefusedKind, SliceName,
};
use crate::store::operator::{Change, EventRow, Target, Word};

/// Refuses an order.
pub(super) fn refused(kind: RefusedKind, problem: impl Into<String>) -> OperatorRefused {
    OperatorRefused { kind, problem: problem.into(), expected: None }
}

impl Cluster {
    /// Carries an order out, or notes it to be carried out as soon as its GPU is free for it.
    pub(super) fn operate(
        &mut self,
        token: u64,
        order: OperatorOrder,
        now: Millis,
        round: &mut Round,
    ) {
        let answer = match order {
            OperatorOrder::Say { kind, on, by, reason } => self.target(&on).map(|target| {
                self.say(Word { kind, target, by, reason, said_unix: self.now_unix }, round)
            }),
            OperatorOrder::Lift { kind, on, by } => self.lift(kind, &on, &by, round),
            OperatorOrder::Apply(wish) => {
                self.note_wish(token, wish, now);
                return;
            }
        };
        round.operated.push((token, answer));
    }

    /// Puts a word in force. One that is said again without a reason is the same word.
    pub(super) fn say(&mut self, word: Word, round: &mut Round) -> OperatorDone {
        let key = (word.kind, word.target.clone());
        let known = self.words.get(&key);
        if known.is_some_and(|known| word.reason.is_none() || known.reason == word.reason) {
            return OperatorDone::Said { changed: false };
        }
        let said_unix = known.map_or(word.said_unix, |known| known.said_unix);
        let word = Word { said_unix, ..word };
        let text = format!("{} is {word}", self.name_of(&word.target));
        round.events.push(self.event(word.kind.word(), &word.target, &word.by, text));
        round.words.push(Change::Say(word.clone()));
        round.shape_changed = true;
        self.words.insert(key, word);
        OperatorDone::Said { changed: true }
    }

    fn lift(
        &mut self,
        kind: Kind,
        on: &On,
        by: &str,
        round: &mut Round,
    ) -> Result<OperatorDone, OperatorRefused> {
        let target = self.target(on)?;
        if kind == Kind::Drained
            && let Some(word) = self.only_the_node_is_drained(&target)
        {
            let name = self.name_of(&target);
            let node = self.name_of(&word.target);
            return Err(OperatorRefused {
                expected: Some("undrain the whole node".to_owned()),
                ..refused(
                    RefusedKind::InTheWay,
                    format!("{name} is not drained by itself: {node} is {word}"),
                )
            });
        }
        let mut lifted = Vec::new();
        for (found, at) in self.words.keys() {
            // A GPU that is cleared is cleared with its slices.
            let within =
                matches!((at, &target), (Target::Slice(of, _), Target::Gpu(gpu)) if of == gpu);
            if *found == kind && (*at == target || within) {
                lifted.push((*found, at.clone()));
            }
        }
        if kind == Kind::Quarantined {
            self.clear(&target, round);
        }
        let word = match kind {
            Kind::Drained => "undrained",
            Kind::Quarantined => "cleared",
            Kind::Pinned => "unpinned",
        };
        let changed = !lifted.is_empty();
        for key in lifted {
            self.words.remove(&key);
            let text = format!("{} is {word} (by {by})", self.name_of(&key.1));
            round.events.push(self.event(word, &key.1, by, text));
            round.words.push(Change::Lift(key.0, key.1));
            round.shape_changed = true;
        }
        Ok(OperatorDone::Said { changed })
    }

    /// Lets the node forget what it holds against a GPU or a slice, and tries it again at once.
    fn clear(&mut self, target: &Target, round: &mut Round) {
        let (gpu, slot) = match target {
            Target::Gpu(gpu) => (gpu, None),
            Target::Slice(gpu, slot) => (gpu, Some(*slot)),
            Target::Node(_) => return,
        };
        let Some(known) = self.gpus.get_mut(gpu) else { return };
        known.paused_until = Millis::ZERO;
        known.failures = 0;
        let frame = ToAgent::Clear { epoch: self.epoch, gpu: gpu.clone(), slot };
        round.effects.push(Effect::Send { node: known.node, frame: Box::new(frame) });
    }

    fn only_the_node_is_drained(&self, target: &Target) -> Option<&Word> {
        let Target::Gpu(gpu) = target else { return None };
        let node = Target::Node(self.gpus.get(gpu)?.node);
        let own = self.words.contains_key(&(Kind::Drained, target.clone()));
        if own { None } else { self.words.get(&(Kind::Drained, node)) }
    }

    fn target(&self, on: &On) -> Result<Target, OperatorRefused> {
        match on {
            On::Node(name) => {
                let found = self.nodes.iter().find(|(_, node)| node.name == *name);
                let missing = || refused(RefusedKind::NotFound, format!("there is no node {name}"));
                found.map(|(id, _)| Target::Node(*id)).ok_or_else(missing)
            }
            On::Gpu(gpu) => self.known(gpu).map(|_| Target::Gpu(gpu.clone())),
            On::Slice(gpu, slice) => {
                let slot = self.slot_of(self.known(gpu)?, slice)?;
                Ok(Target::Slice(gpu.clone(), slot))
            }
        }
    }

    pub(super) fn known(&self, gpu: &GpuId) -> Result<&Gpu, OperatorRefused> {
        let missing = || refused(RefusedKind::NotFound, format!("there is no {gpu}"));
        self.gpus.get(gpu).ok_or_else(missing)
    }

    /// Finds an instance that stands, or a place that is quarantined.
    fn slot_of(&self, gpu: &Gpu, slice: &SliceName) -> Result<Slot, OperatorRefused> {
        let standing = gpu.report.instances.iter().flat_map(|i| {
            let parts = i.parts.iter().filter_map(|part| part.slice.as_ref());
            let whole = std::iter::once((i.slot, i.slice.as_ref()));
            whole.chain(parts.map(|slice| (i.slot, Some(slice))))
        });
        let noted = self.quarantined(&gpu.report.gpu).map(|slot| (slot, None));
        let name = |slot: Slot| gpu.slot_name(slot);
        let all: Vec<_> = standing.chain(noted).collect();
        let found = all.iter().find(|(slot, id)| match slice {
            SliceName::At(start) => slot.start == *start,
            SliceName::Named(profile, start) => {
                slot.start == *start && name(*slot) == format!("{profile}@{start}")
            }
            SliceName::Id(wanted) => *id == Some(wanted),
        });
        found.map(|(slot, _)| *slot).ok_or_else(|| {
            let stand: Vec<_> = all.iter().map(|(slot, _)| name(*slot)).collect();
            let there = match stand.is_empty() {
                true => "another GPU: no instance stands on this one".to_owned(),
                false => format!("one of {}", stand.join(", ")),
            };
            let gpu = self.gpu_name(gpu);
            OperatorRefused {
                expected: Some(there),
                ..refused(RefusedKind::NotFound, format!("{gpu} has no such instance"))
            }
        })
    }

    /// The places on a GPU that are quarantined one by one.
    pub(super) fn quarantined(&self, gpu: &GpuId) -> impl Iterator<Item = Slot> {
        self.words.keys().filter_map(move |(kind, target)| match target {
            Target::Slice(of, slot) if of == gpu && *kind == Kind::Quarantined => Some(*slot),
            Target::Slice(..) | Target::Gpu(_) | Target::Node(_) => None,
        })
    }

    /// What was said of a node, a GPU or a slice, if it is in force.
    pub(super) fn word(&self, kind: Kind, target: Target) -> Option<&Word> {
        self.words.get(&(kind, target))
    }

    /// What operators (and the node itself) said of a GPU, as policies see it.
    pub(super) fn operator_word(&self, gpu: &Gpu) -> OperatorWord {
        let id = &gpu.report.gpu;
        let name = self.gpu_name(gpu);
        let at = |kind| self.word(kind, Target::Gpu(id.clone()));
        let closed = |how, word: &Word| {
            let name = self.name_of(&word.target);
            let undone = match how {
                Closure::Drained => "undrained",
                Closure::Quarantined => "cleared",
                // Policies keep, operators do not.
                Closure::Kept => "free",
            };
            Closed { how, words: format!("{name} is {word}"), until: format!("{name} is {undone}") }
        };
        let quarantined = at(Kind::Quarantined).map(|word| closed(Closure::Quarantined, word));
        let by_itself = || {
            let aside = gpu.report.quarantine.as_ref()?;
            Some(Closed {
                how: Closure::Quarantined,
                words: format!("{name} is set aside by its node ({})", aside.reason),
                until: format!("{name} is cleared"),
            })
        };
        let unplannable = || {
            let why = gpu.unplannable()?;
            Some(Closed {
                how: Closure::Quarantined,
                words: format!("{name} can't be planned for ({why})"),
                until: format!("MIG mode of {name} is switched off"),
            })
        };
        let drained = || {
            let of_node = || self.word(Kind::Drained, Target::Node(gpu.node));
            at(Kind::Drained).or_else(of_node).map(|word| closed(Closure::Drained, word))
        };
        OperatorWord {
            closed: quarantined.or_else(by_itself).or_else(unplannable).or_else(drained),
            pinned: at(Kind::Pinned).map(|word| format!("the layout of {name} is {word}")),
        }
    }

    /// Such as `GPU 0 of node a`.
    pub(super) fn gpu_name(&self, gpu: &Gpu) -> String {
        let node = self.nodes.get(&gpu.node).map_or("?", |node| node.name.as_str());
        format!("GPU {} of node {node}", gpu.report.index)
    }

    fn name_of(&self, target: &Target) -> String {
        let gpu_name = |gpu: &GpuId| {
            self.gpus.get(gpu).map_or_else(|| gpu.to_string(), |gpu| self.gpu_name(gpu))
        };
        match target {
            Target::Node(node) => {
                let name = self.nodes.get(node).map(|node| node.name.to_string());
                format!("node {}", name.unwrap_or_else(|| node.to_string()))
            }
            Target::Gpu(gpu) => gpu_name(gpu),
            Target::Slice(gpu, slot) => {
                let slot = self.gpus.get(gpu).map(|gpu| gpu.slot_name(*slot));
                format!("{} of {}", slot.unwrap_or_default(), gpu_name(gpu))
            }
        }
    }

    pub(super) fn event(
        &self,
        kind: &'static str,
        target: &Target,
        by: &str,
        text: String,
    ) -> EventRow {
        let (node, gpu) = match target {
            Target::Node(node) => (Some(*node), None),
            Target::Gpu(gpu) | Target::Slice(gpu, _) => {
                (self.gpus.get(gpu).map(|known| known.node), Some(gpu.clone()))
            }
        };
        let node = node.and_then(|id| self.nodes.get(&id)).map(|node| node.name.to_string());
        EventRow { kind, node, gpu, by: Some(by.to_owned()), text }
    }
}
