//! Which instances of a GPU the node may use and destroy, and what it has to restore after a crash
//! or a reboot. Pure.
//!
//! Instances and, on newer generations, MIG mode end with the boot. The node remembers its
//! instances and creates them again. It doesn't touch instances that it never had, or that are in
//! use.

use serde::{Deserialize, Serialize};
use tessera_frames::cluster::MigReport;
use tessera_model::mig::compute::Cut;
use tessera_model::mig::{Geometry, PlanStep, Slot};
use tessera_model::{BootId, SliceId};

use crate::nvml::facts::{GpuFacts, InstanceFacts};

/// The ownership of instances that the node did not create.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AdoptionPolicy {
    /// They are always foreign.
    Never,
    /// The node owns them if they were complete when its agent started; later ones are foreign.
    #[default]
    AtStart,
    /// The node owns them: no other program should partition its GPUs.
    Exclusive,
}

/// What the node owns on one GPU, which survives restarts of the agent.
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
    /// The instances that the node owns.
    ours: Vec<OwnedInstance>,
    /// The part of the layout that a reboot removed and that is being created again.
    owed: Option<LostLayout>,
}

/// One instance that the node owns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnedInstance {
    slot: Slot,
    /// Its MIG device; `None` while it is only partly created, or if it is divided.
    slice: Option<SliceId>,
    /// Its compute instances, if it is divided.
    #[serde(default)]
    cut: Cut,
    /// Their MIG devices.
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

    /// Returns whether an instance in its slot can be the same: one that has only other devices is
    /// not.
    fn is(&self, found: &InstanceFacts) -> bool {
        let own = || self.slice.iter().chain(&self.parts);
        let unseen = own().next().is_none() || found.slices().next().is_none();
        self.slot == found.slot && (unseen || found.slices().any(|there| own().any(|o| o == there)))
    }
}

/// Returns the compute instances of a divided instance; empty for others.
fn parts_of(found: &InstanceFacts) -> Cut {
    let mut cut = Cut::default();
    for part in &found.parts {
        cut.insert(part.slot);
    }
    cut
}

/// What a reboot removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LostLayout {
    /// MIG mode has to be switched on again.
    pub mode: bool,
    /// The earlier instances.
    pub slots: Vec<Slot>,
    /// The compute instances of those that were divided.
    #[serde(default)]
    pub cuts: Vec<(Slot, Cut)>,
}

impl InstanceOwnership {
    /// Returns whether the node owns an instance.
    pub fn is_ours(&self, instance: &InstanceFacts) -> bool {
        self.ours.iter().any(|own| own.is(instance))
    }

    /// Handles the first reading of the GPU; returns what has to be created again, if anything.
    pub fn look(&mut self, facts: &GpuFacts, boot: BootId) -> Option<LostLayout> {
        // Work that a killed agent had not finished is still to be done.
        if let Some(lost) = self.lost(facts, boot) {
            self.owed = Some(lost);
        }
        self.boot = Some(boot);
        self.owed.clone()
    }

    /// Returns what has to be created again.
    pub const fn owed(&self) -> Option<&LostLayout> {
        self.owed.as_ref()
    }

    /// Records that everything possible was created again.
    pub fn settle(&mut self) {
        self.owed = None;
    }

    /// Returns what a reboot removed; `None` in the boot in which the GPU was last seen.
    fn lost(&self, facts: &GpuFacts, boot: BootId) -> Option<LostLayout> {
        if self.boot.is_none_or(|last| last == boot) || !self.mig {
            return None;
        }
        // If a persistent mode is off, an administrator switched it off.
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

    /// Takes ownership of an existing instance.
    pub fn take(&mut self, instance: &InstanceFacts) {
        self.ours.retain(|own| own.slot != instance.slot);
        self.ours.push(OwnedInstance::of(instance));
        self.ours.sort_by_key(|own| own.slot);
    }

    /// Records the existing instances. `intent` is the step under way at the reading: the node owns
    /// what it creates.
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
            // A partly created instance may be another program's work under way, and would be
            // removed.
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
                // Devices that are temporarily invisible keep their names.
                let known = self.ours.iter().find(|own| own.slot == found.slot);
                let unseen = found.compute > 0 && found.slices().next().is_none();
                known.filter(|_| unseen).cloned().unwrap_or_else(|| OwnedInstance::of(found))
            })
            .collect();
        self.ours = kept;
    }

    /// Returns the node's instances without a compute instance: leftovers of a crash or a failure,
    /// which are useless and block space.
    pub fn half_made(&self, facts: &GpuFacts) -> Vec<Slot> {
        let left = |i: &&InstanceFacts| i.compute == 0 && i.users.is_empty() && self.is_ours(i);
        facts.instances.iter().filter(left).map(|instance| instance.slot).collect()
    }
}

/// Returns the steps that restore as much of a lost layout as fits. Existing instances are not
/// changed, but partly created ones are completed.
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

/// Returns whether one of the node's instances lacks compute instances of a step, because an agent
/// was killed during the step. An instance with more or other ones was changed by another program.
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
    /// Returns the step during which an agent died, if it has to be finished. The node owns the
    /// instance, it is idle, and its compute instances differ from the step's goal. An instance
    /// that was being destroyed and lost some of its compute instances is destroyed; a complete one
    /// is as before the step.
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
    fn instances_found_at_the_start_are_adopted_and_later_ones_are_not() {
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
    fn an_instance_of_a_step_is_owned_and_a_foreign_one_in_its_slot_is_not() {
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
    fn the_next_agent_adopts_instances_that_appeared_while_none_ran() {
        let mut ownership = InstanceOwnership::default();
        ownership.observe(&on(vec![]), boot(1), None, AdoptionPolicy::AtStart);
        let both = on(vec![instance(small(0), true), instance(small(1), false)]);
        ownership.observe(&both, boot(1), None, AdoptionPolicy::AtStart);
        assert!(!ownership.is_ours(&both.instances[0]), "it appeared while the agent ran");

        let file = serde_json::to_vec(&ownership).unwrap();
        let mut ownership: InstanceOwnership = serde_json::from_slice(&file).unwrap();
        ownership.observe(&both, boot(1), None, AdoptionPolicy::AtStart);

        assert!(ownership.is_ours(&both.instances[0]));
        assert!(!ownership.is_ours(&both.instances[1]), "another program may be creating it");
    }

    #[test]
    fn a_foreign_partly_created_instance_is_not_touched() {
        for seen in [true, false] {
            let mut ownership = InstanceOwnership { seen, ..InstanceOwnership::default() };
            let half = on(vec![instance(small(0), false)]);
            ownership.observe(&half, boot(1), None, AdoptionPolicy::AtStart);

            assert!(ownership.half_made(&half).is_empty());
        }
    }

    #[test]
    fn a_reboot_removes_the_layout_and_on_newer_generations_the_mode() {
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
        assert_eq!(ownership.lost(&older, boot(2)), None, "an administrator switched it off");
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
    fn a_divided_instance_is_restored_and_an_interrupted_one_is_finished() {
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
        assert!(ownership.is_ours(&partly), "the intent was to create it");
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
            "half of it was destroyed"
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
        /// Existing instances stay, and the resulting layout is legal.
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
