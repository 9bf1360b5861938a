//! Which instances of a GPU are the node's to use and to destroy, and what has to be put right
//! after a crash or a restart of the machine. Pure.
//!
//! Instances and, on newer generations, MIG mode end with the boot. The node remembers what it
//! had and makes it again; what it never had, and what somebody uses, it leaves alone.

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::MigReport;
use tessera_model::mig::compute::Cut;
use tessera_model::mig::{Geometry, PlanStep, Slot};
use tessera_model::{BootId, SliceId};

use crate::nvml::facts::{GpuFacts, InstanceFacts};

/// Whose the instances are that the node did not make.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdoptionPolicy {
    /// Somebody else's, always.
    Never,
    /// The node's, if they stood whole when its agent started; later ones are somebody else's.
    #[default]
    AtStart,
    /// The node's: nobody else is to partition its GPUs.
    Exclusive,
}

/// What the node has on one GPU; survives the agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct InstanceOwnership {
    /// Whether this agent has seen the GPU with MIG mode on.
    #[serde(skip)]
    seen: bool,
    /// The boot in which it was last seen.
    boot: Option<BootId>,
    /// Whether MIG mode was on then.
    mig: bool,
    /// The instances that are the node's.
    ours: Vec<OwnedInstance>,
    /// What a new boot took away and is being made again.
    owed: Option<LostLayout>,
}

/// One instance of the node's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnedInstance {
    slot: Slot,
    /// `None` while it is half made, or if it is cut further.
    slice: Option<SliceId>,
    /// Its compute instances, if it is cut further.
    #[serde(default)]
    cut: Cut,
    /// The devices over them.
    #[serde(default)]
    parts: Vec<SliceId>,
}

impl OwnedInstance {
    fn of(found: &InstanceFacts) -> Self {
        Self {
            slot: found.slot,
            slice: found.slice.clone(),
            cut: parts_of(found),
            parts: found.parts.iter().filter_map(|part| part.slice.clone()).collect(),
        }
    }

    /// Whether an instance in its place can be it: one that shows other devices only is not.
    fn is(&self, found: &InstanceFacts) -> bool {
        let own = || self.slice.iter().chain(&self.parts);
        let unseen = own().next().is_none() || found.slices().next().is_none();
        self.slot == found.slot && (unseen || found.slices().any(|there| own().any(|o| o == there)))
    }
}

/// Returns the compute instances of an instance that is cut further; none of one that isn't.
fn parts_of(found: &InstanceFacts) -> Cut {
    let mut cut = Cut::default();
    for part in &found.parts {
        cut.insert(part.slot);
    }
    cut
}

/// What a new boot took away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostLayout {
    /// MIG mode has to be switched on again.
    pub mode: bool,
    /// The instances that stood.
    pub slots: Vec<Slot>,
    /// The compute instances of those that were cut further.
    #[serde(default)]
    pub cuts: Vec<(Slot, Cut)>,
}

impl InstanceOwnership {
    /// Returns whether an instance is the node's.
    pub fn is_ours(&self, instance: &InstanceFacts) -> bool {
        self.ours.iter().any(|own| own.is(instance))
    }

    /// Takes in the first look at the GPU; returns what has to be made again, if anything.
    pub fn look(&mut self, facts: &GpuFacts, boot: BootId) -> Option<LostLayout> {
        // What an agent that was killed meanwhile still owed is owed.
        if let Some(lost) = self.lost(facts, boot) {
            self.owed = Some(lost);
        }
        self.boot = Some(boot);
        self.owed.clone()
    }

    /// Returns what has to be made again.
    pub const fn owed(&self) -> Option<&LostLayout> {
        self.owed.as_ref()
    }

    /// Takes in that all that could be made again stands.
    pub fn settled(&mut self) {
        self.owed = None;
    }

    /// Returns what a new boot took away; `None` in the boot in which the GPU was last seen.
    fn lost(&self, facts: &GpuFacts, boot: BootId) -> Option<LostLayout> {
        if self.boot.is_none_or(|last| last == boot) || !self.mig {
            return None;
        }
        // A mode that outlives the boot and is off was switched off by somebody.
        let mode = match facts.mig {
            MigReport::On { .. } => false,
            MigReport::Off if facts.mode_volatile && !facts.used => true,
            MigReport::Off | MigReport::Unsupported => return None,
        };
        let cut = self.ours.iter().filter(|own| !own.cut.is_empty());
        Some(LostLayout {
            mode,
            slots: self.ours.iter().map(|own| own.slot).collect(),
            cuts: cut.map(|own| (own.slot, own.cut)).collect(),
        })
    }

    /// Takes an instance that stands into ownership.
    pub fn take(&mut self, instance: &InstanceFacts) {
        self.ours.retain(|own| own.slot != instance.slot);
        self.ours.push(OwnedInstance::of(instance));
        self.ours.sort_by_key(|own| own.slot);
    }

    /// Takes in what stands. `intent` is the step that was about to be made when this was read:
    /// what it makes is the node's.
    pub fn observe(
        &mut self,
        facts: &GpuFacts,
        boot: BootId,
        intent: Option<PlanStep>,
        adopt: AdoptionPolicy,
    ) {
        self.boot = Some(boot);
        self.mig = matches!(facts.mig, MigReport::On { .. });
        if !self.mig {
            self.ours.clear();
            return;
        }
        let first = !std::mem::replace(&mut self.seen, true);
        let adopted = |found: &InstanceFacts| match adopt {
            AdoptionPolicy::Never => false,
            // A half-made one may be somebody's work under way, and would be removed.
            AdoptionPolicy::AtStart => first && found.compute > 0,
            AdoptionPolicy::Exclusive => true,
        };
        let made = |slot: Slot| match intent {
            Some(PlanStep::Create(intended) | PlanStep::Cut(intended, _)) => slot == intended,
            Some(PlanStep::Destroy(_)) | None => false,
        };
        let kept: Vec<_> = facts
            .instances
            .iter()
            .filter(|found| adopted(found) || made(found.slot) || self.is_ours(found))
            .map(|found| {
                // Devices that can't be seen for a moment keep their names.
                let known = self.ours.iter().find(|own| own.slot == found.slot);
                let unseen = found.compute > 0 && found.slices().next().is_none();
                known.filter(|_| unseen).cloned().unwrap_or_else(|| OwnedInstance::of(found))
            })
            .collect();
        self.ours = kept;
    }

    /// Returns the instances of the node's that have no compute instance: what a crash or a
    /// failure left, in the way of everything and good for nothing.
    pub fn half_made(&self, facts: &GpuFacts) -> Vec<Slot> {
        let left = |i: &&InstanceFacts| i.compute == 0 && i.users.is_empty() && self.is_ours(i);
        facts.instances.iter().filter(left).map(|instance| instance.slot).collect()
    }
}

/// Returns the steps that make as much of a lost layout as there is space for. What
/// stands is left alone, save that instances which are half made are completed.
pub fn restore(
    geometry: &Geometry,
    standing: &[InstanceFacts],
    lost: &LostLayout,
) -> Vec<PlanStep> {
    let mut layout: Vec<Slot> = standing.iter().map(|instance| instance.slot).collect();
    let mut steps = Vec::new();
    for slot in &lost.slots {
        let cut = lost.cuts.iter().find(|(of, _)| of == slot);
        let step = cut.map_or(PlanStep::Create(*slot), |(_, cut)| PlanStep::Cut(*slot, *cut));
        let there = standing.iter().find(|instance| instance.slot == *slot);
        if there.is_some_and(|instance| lacks(instance, step)) {
            steps.push(step);
        }
        if there.is_some() {
            continue;
        }
        layout.push(*slot);
        if geometry.check(&layout).is_ok() {
            steps.push(step);
        } else {
            layout.pop();
        }
    }
    steps
}

/// Whether an instance of the node's lacks compute instances of what a step makes, as it does when
/// an agent was killed while it made them. What has more or others is somebody's own doing.
fn lacks(instance: &InstanceFacts, step: PlanStep) -> bool {
    let missing = |cut: Cut| {
        let parts = parts_of(instance);
        instance.slice.is_none()
            && parts.len() < cut.len()
            && parts.iter().all(|slot| cut.contains(slot))
    };
    instance.compute == 0 || matches!(step, PlanStep::Cut(_, cut) if missing(cut))
}

impl InstanceOwnership {
    /// Returns the step that an agent died over, if its instance is the node's, stands idle, and
    /// has other compute instances than it was to have: then it is finished. One that was to go
    /// and has lost some of its own already goes; a whole one is as it was before the step.
    pub fn unfinished(&self, facts: &GpuFacts, intent: Option<PlanStep>) -> Option<PlanStep> {
        let step = intent?;
        let slot = step.slot();
        let MigReport::On { geometry } = &facts.mig else { return None };
        let slices = geometry.profile(slot.profile)?.compute_slices;
        let found = facts.instances.iter().find(|instance| instance.slot == slot)?;
        let is_half = found.compute > 0
            && match step {
                PlanStep::Create(_) => false,
                PlanStep::Cut(_, cut) => found.cut(slices) != cut,
                PlanStep::Destroy(_) => Cut::whole(slices) != Ok(found.cut(slices)),
            };
        (is_half && found.users.is_empty() && self.is_ours(found)).then_some(step)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tessera_frames::cluster::ComputeInstanceReport;
    use tessera_model::Bytes;
    use tessera_model::mig::catalog;
    use tessera_model::mig::compute::ComputeSlot;

    use crate::nvml::facts::InstanceUser;

    fn boot(number: u128) -> BootId {
        BootId::from_uuid(uuid::Uuid::from_u128(number))
    }

    fn geometry() -> Geometry {
        catalog::models()["a100-40gb"].geometry()
    }

    fn small(start: u8) -> Slot {
        let profile = geometry().by_name(&"1g.5gb".parse().unwrap()).unwrap().id;
        Slot { start, profile }
    }

    fn instance(slot: Slot, whole: bool) -> InstanceFacts {
        InstanceFacts {
            slot,
            number: u32::from(slot.start) + 7,
            compute: whole.into(),
            slice: whole.then(|| format!("MIG-{}", slot.start).parse().unwrap()),
            parts: Vec::new(),
            memory: Bytes::ZERO,
            sms: 0,
            users: Vec::new(),
        }
    }

    fn facts(mig: MigReport, instances: Vec<InstanceFacts>) -> GpuFacts {
        GpuFacts {
            gpu: "GPU-1".parse().unwrap(),
            index: 0,
            model: "A100".into(),
            memory: Bytes::ZERO,
            mig,
            instances,
            bus: None,
            minor: None,
            recovery: None,
            remap_pending: false,
            mode_volatile: true,
            used: false,
        }
    }

    fn on(instances: Vec<InstanceFacts>) -> GpuFacts {
        facts(MigReport::On { geometry: geometry() }, instances)
    }

    #[test]
    fn what_an_agent_finds_at_its_start_is_taken_on_and_what_comes_later_is_not() {
        for (adopt, first, later) in [
            (AdoptionPolicy::Never, false, false),
            (AdoptionPolicy::AtStart, true, false),
            (AdoptionPolicy::Exclusive, true, true),
        ] {
            let mut ownership = InstanceOwnership::default();
            ownership.observe(&on(vec![instance(small(0), true)]), boot(1), None, adopt);
            let both = on(vec![instance(small(0), true), instance(small(1), true)]);
            ownership.observe(&both, boot(1), None, adopt);

            let ours: Vec<_> = both.instances.iter().map(|i| ownership.is_ours(i)).collect();
            assert_eq!(ours, [first, later], "{adopt:?}");
        }
    }

    #[test]
    fn what_a_step_makes_is_ours_and_a_strangers_instance_in_its_place_is_not() {
        let mut ownership = InstanceOwnership::default();
        ownership.observe(&on(vec![]), boot(1), None, AdoptionPolicy::AtStart);
        let half = on(vec![instance(small(0), false)]);
        ownership.observe(
            &half,
            boot(1),
            Some(PlanStep::Create(small(0))),
            AdoptionPolicy::AtStart,
        );
        assert_eq!(ownership.half_made(&half), [small(0)]);

        let whole = on(vec![instance(small(0), true)]);
        ownership.observe(&whole, boot(1), None, AdoptionPolicy::AtStart);
        assert!(ownership.half_made(&whole).is_empty() && ownership.is_ours(&whole.instances[0]));

        let mut other = instance(small(0), true);
        other.slice = Some("MIG-other".parse().unwrap());
        ownership.observe(&on(vec![other.clone()]), boot(1), None, AdoptionPolicy::AtStart);
        assert!(!ownership.is_ours(&other));
    }

    #[test]
    fn the_next_agent_takes_on_what_came_while_there_was_none() {
        let mut ownership = InstanceOwnership::default();
        ownership.observe(&on(vec![]), boot(1), None, AdoptionPolicy::AtStart);
        let both = on(vec![instance(small(0), true), instance(small(1), false)]);
        ownership.observe(&both, boot(1), None, AdoptionPolicy::AtStart);
        assert!(!ownership.is_ours(&both.instances[0]), "it came under the agent's eyes");

        let file = serde_json::to_vec(&ownership).unwrap();
        let mut ownership: InstanceOwnership = serde_json::from_slice(&file).unwrap();
        ownership.observe(&both, boot(1), None, AdoptionPolicy::AtStart);

        assert!(ownership.is_ours(&both.instances[0]));
        assert!(!ownership.is_ours(&both.instances[1]), "somebody may be making it");
    }

    #[test]
    fn a_strangers_half_made_instance_is_left_alone() {
        for seen in [true, false] {
            let mut ownership = InstanceOwnership { seen, ..InstanceOwnership::default() };
            let half = on(vec![instance(small(0), false)]);
            ownership.observe(&half, boot(1), None, AdoptionPolicy::AtStart);

            assert!(ownership.half_made(&half).is_empty());
        }
    }

    #[test]
    fn a_new_boot_takes_the_layout_and_on_newer_generations_the_mode() {
        let mut ownership = InstanceOwnership::default();
        assert_eq!(ownership.lost(&on(vec![]), boot(1)), None, "never seen before");
        ownership.observe(
            &on(vec![instance(small(3), true)]),
            boot(1),
            None,
            AdoptionPolicy::AtStart,
        );
        let slots = vec![small(3)];

        assert_eq!(ownership.lost(&on(vec![]), boot(1)), None, "the same boot");
        let lost = Some(LostLayout { mode: false, slots: slots.clone(), cuts: Vec::new() });
        assert_eq!(ownership.lost(&on(vec![]), boot(2)), lost);
        let off = facts(MigReport::Off, vec![]);
        assert_eq!(
            ownership.lost(&off, boot(2)),
            Some(LostLayout { mode: true, slots, cuts: Vec::new() })
        );
        let older = GpuFacts { mode_volatile: false, ..off.clone() };
        assert_eq!(ownership.lost(&older, boot(2)), None, "somebody switched it off");
        let used = GpuFacts { used: true, ..off.clone() };
        assert_eq!(ownership.lost(&used, boot(2)), None, "nothing busy is touched");

        ownership.observe(&off, boot(2), None, AdoptionPolicy::AtStart);
        assert_eq!(ownership.lost(&off, boot(3)), None, "it was off before");
    }

    fn third(slot: Slot, starts: &[u8]) -> InstanceFacts {
        let part = |start: &u8| ComputeInstanceReport {
            slot: ComputeSlot { start: *start, slices: 1 },
            slice: Some(format!("MIG-{}-{start}", slot.start).parse().unwrap()),
            sms: 14,
        };
        let parts: Vec<_> = starts.iter().map(part).collect();
        let compute = u32::try_from(parts.len()).unwrap();
        InstanceFacts { compute, parts, ..instance(slot, false) }
    }

    #[test]
    fn a_cut_instance_comes_back_cut_and_one_that_was_interrupted_is_finished() {
        let three =
            Slot { start: 0, profile: geometry().by_name(&"3g.20gb".parse().unwrap()).unwrap().id };
        let full = third(three, &[0, 1, 2]);
        let cut = parts_of(&full);
        let step = PlanStep::Cut(three, cut);
        let mut ownership = InstanceOwnership::default();
        ownership.observe(&on(vec![full.clone()]), boot(1), None, AdoptionPolicy::AtStart);

        let lost = ownership.lost(&on(vec![]), boot(2)).unwrap();

        assert_eq!(lost.cuts, [(three, cut)]);
        assert_eq!(restore(&geometry(), &[], &lost), [step]);
        let partly = third(three, &[0]);
        assert_eq!(restore(&geometry(), std::slice::from_ref(&partly), &lost), [step]);
        assert_eq!(restore(&geometry(), std::slice::from_ref(&full), &lost), []);

        ownership.observe(&on(vec![partly.clone()]), boot(1), Some(step), AdoptionPolicy::AtStart);
        assert!(ownership.is_ours(&partly), "the intent was to make it");
        assert_eq!(ownership.unfinished(&on(vec![partly.clone()]), Some(step)), Some(step));
        assert_eq!(
            ownership.unfinished(&on(vec![full]), Some(step)),
            None,
            "it is as it should be"
        );
        assert_eq!(ownership.unfinished(&on(vec![]), Some(step)), None, "nothing was begun");
        let used =
            InstanceFacts { users: vec![InstanceUser { pid: 7, ours: false }], ..partly.clone() };
        assert_eq!(ownership.unfinished(&on(vec![used.clone()]), Some(step)), None, "it is in use");
        let going = Some(PlanStep::Destroy(three));
        assert_eq!(
            ownership.unfinished(&on(vec![partly.clone()]), going),
            going,
            "half of it went"
        );
        assert_eq!(ownership.unfinished(&on(vec![used]), going), None, "it is in use");
        let whole =
            InstanceFacts { slice: partly.slices().next().cloned(), ..instance(three, true) };
        assert_eq!(ownership.unfinished(&on(vec![whole]), going), None, "nothing was begun");
        let mut stranger = partly;
        stranger.parts[0].slice = Some("MIG-other".parse().unwrap());
        assert_eq!(ownership.unfinished(&on(vec![stranger]), Some(step)), None, "another made it");
    }

    proptest! {
        /// Whatever stands already stays, and the whole is legal.
        #[test]
        fn a_restored_layout_is_legal_and_touches_nothing(
            lost in prop::collection::btree_set((0..7_u8, prop::sample::select(vec!["1g.5gb", "2g.10gb", "3g.20gb"])), 0..6),
            standing in prop::collection::btree_set(0..7_u8, 0..3),
        ) {
            let geometry = geometry();
            let lost: Vec<_> = lost.into_iter().map(|(start, name)| Slot {
                start, profile: geometry.by_name(&name.parse().unwrap()).unwrap().id,
            }).collect();
            let standing: Vec<_> = standing.into_iter().map(|s| instance(small(s), true)).collect();
            let lost = LostLayout { mode: false, slots: lost, cuts: Vec::new() };
            let steps = restore(&geometry, &standing, &lost);
            let mut layout: Vec<_> = standing.iter().map(|i| i.slot).collect();
            for step in steps {
                let PlanStep::Create(slot) = step else { panic!("{step:?}") };
                prop_assert!(lost.slots.contains(&slot));
                layout.push(slot);
                prop_assert!(geometry.check(&layout).is_ok());
            }
        }
    }
}
