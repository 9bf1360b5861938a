//! A layout that a person requests, and the best placements of its instances.

use std::fmt;
use std::str::FromStr;

use super::arrange::{ArrangementSearch, SearchLimitReached, TRIES_MAX};
use super::compute::{COMPUTE_SLICES_MAX, IllegalCut};
use super::geometry::{Geometry, IllegalLayout, Layout, ProfileId, ProfileName, Slot};
use super::plan::InstanceOccupant;
use super::subsets::{Subsets, split};
use crate::ids::BadId;

/// Maximum number of instances that a layout may name: more than any GPU has memory slices.
const INSTANCES_MAX: usize = 64;

/// One instance that is requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredInstance {
    /// What it is to be.
    pub profile: ProfileName,
    /// First memory slice; `None`: the best placement is chosen.
    pub start: Option<u8>,
    /// The compute slices of its compute instances; empty: one over the whole of it.
    pub cut: Vec<u8>,
}

/// All instances that are to exist on a GPU, and no others.
///
/// Written as `3g.20gb,2g.10gb,1g.5gb@6`; `7x1g.5gb` means seven of them, and `empty` for
/// none at all. `1c+2c.3g.20gb` is one GPU instance with two compute instances.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredLayout(pub Vec<DesiredInstance>);

/// Why a desired layout can't be arranged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArrangementError {
    /// The GPU offers no such profile.
    #[error("the GPU offers no {profile}")]
    UnknownProfile {
        /// What was requested.
        profile: ProfileName,
    },
    /// A placement that was named is none.
    #[error(transparent)]
    Illegal(#[from] IllegalLayout),
    /// Compute instances that were requested can't be.
    #[error("{profile} can't be cut so: {problem}")]
    IllegalCut {
        /// Of what GPU instance.
        profile: ProfileName,
        /// What is wrong.
        problem: IllegalCut,
    },
    /// The instances cannot coexist on this GPU, at any placement.
    #[error("these instances cannot coexist on the GPU, at any placement")]
    DoNotFit,
    /// They could, but not with these instances, which must stay.
    #[error("instances that are in use are in the way")]
    InTheWay {
        /// The fewest instances in use that have to end before there is such a layout.
        busy: Vec<Slot>,
    },
    /// There are too many ways to try them all.
    #[error("there are more than {TRIES_MAX} ways to place these instances: name their starts")]
    TooMany,
}

impl FromStr for DesiredLayout {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let bad = || BadId {
            kind: "DesiredLayout",
            text: text.to_owned(),
            expected: "profiles with or without their first memory slice, such as \
                       3g.20gb,2x1g.5gb,2g.10gb@4, or empty; with several compute instances in one \
                       GPU instance 1c+2c.3g.20gb",
        };
        if matches!(text.trim(), "empty" | "none") {
            return Ok(Self::default());
        }
        let mut desired = Vec::new();
        for part in text.split(',') {
            let (count, rest) = match part.trim().split_once(['x', '*']) {
                Some((count, rest)) if count.chars().all(|c| c.is_ascii_digit()) => {
                    (count.parse().map_err(|_| bad())?, rest)
                }
                Some(_) | None => (1, part.trim()),
            };
            let (profile, start) = match rest.split_once('@') {
                Some((profile, start)) => (profile, Some(start.parse().map_err(|_| bad())?)),
                None => (rest, None),
            };
            let (cut, profile) = cut_of(profile).ok_or_else(bad)?;
            let profile: ProfileName = profile.parse().map_err(|_| bad())?;
            let several_in_one_place = count > 1 && start.is_some();
            // Of "2x1c.3g.20gb" it is unknown whether it is one GPU instance or two.
            let unclear = count > 1 && !cut.is_empty();
            if count == 0 || count > INSTANCES_MAX || several_in_one_place || unclear {
                return Err(bad());
            }
            desired.extend(std::iter::repeat_n(DesiredInstance { profile, start, cut }, count));
        }
        if desired.len() > INSTANCES_MAX { Err(bad()) } else { Ok(Self(desired)) }
    }
}

/// Reads the part of a name that lists compute instances: `1c+2c` of `1c+2c.3g.20gb`.
fn cut_of(text: &str) -> Option<(Vec<u8>, &str)> {
    let Some((cut, profile)) = text.split_once("c.") else { return Some((Vec::new(), text)) };
    let size = |part: &str| part.parse().ok().filter(|n| (1..=COMPUTE_SLICES_MAX).contains(n));
    let mut sizes: Vec<_> = cut.split("c+").map(size).collect::<Option<_>>()?;
    sizes.sort_unstable();
    Some((sizes, profile)).filter(|(sizes, _)| sizes.len() <= usize::from(COMPUTE_SLICES_MAX))
}

impl fmt::Display for DesiredLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("empty");
        }
        for (place, instance) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { "," };
            f.write_str(comma)?;
            for (place, slices) in instance.cut.iter().enumerate() {
                let dot = if place + 1 == instance.cut.len() { "." } else { "+" };
                write!(f, "{slices}c{dot}")?;
            }
            write!(f, "{}", instance.profile)?;
            if let Some(start) = instance.start {
                write!(f, "@{start}")?;
            }
        }
        Ok(())
    }
}

impl DesiredLayout {
    /// Finds the best layout of these instances: it keeps every busy one, then needs the fewest
    /// steps, then leaves the most futures open by `reach`, then has the lowest starts.
    ///
    /// `reach` returns a legal layout's `R` (MIGM §4).
    ///
    /// # Errors
    ///
    /// [`ArrangementError`] states what keeps the instances from standing together.
    pub fn arrange(
        &self,
        geometry: &Geometry,
        standing: &[InstanceOccupant],
        reach: impl Fn(&Layout) -> usize,
    ) -> Result<Layout, ArrangementError> {
        let (named, open) = self.resolve(geometry)?;
        let present: Layout = standing.iter().map(|o| o.slot).collect();
        let busy: Vec<Slot> = standing.iter().filter(|o| o.busy).map(|o| o.slot).collect();
        let mut search = ArrangementSearch::new(geometry, &present, reach);
        if let Some(layout) = search.run(&busy, &named, &open)? {
            return Ok(layout);
        }
        for size in 1..=busy.len() {
            for chosen in Subsets::new(busy.len(), size) {
                let (gone, stay) = split(&busy, &chosen);
                if search.run(&stay, &named, &open)?.is_some() {
                    return Err(ArrangementError::InTheWay { busy: gone });
                }
            }
        }
        Err(ArrangementError::DoNotFit)
    }

    /// Returns the instances with a start, and the profiles of the others.
    fn resolve(&self, geometry: &Geometry) -> Result<(Layout, Vec<ProfileId>), ArrangementError> {
        let (mut named, mut open) = (Layout::new(), Vec::new());
        for instance in &self.0 {
            let profile = geometry.by_name(&instance.profile).ok_or_else(|| {
                ArrangementError::UnknownProfile { profile: instance.profile.clone() }
            })?;
            match instance.start {
                None => open.push(profile.id),
                Some(start) => {
                    let slot = Slot { start, profile: profile.id };
                    geometry.mask(slot)?;
                    if !named.insert(slot) {
                        return Err(IllegalLayout::Overlap { slice: start }.into());
                    }
                }
            }
        }
        geometry.check(&named)?;
        Ok((named, open))
    }
}

impl From<SearchLimitReached> for ArrangementError {
    fn from(_: SearchLimitReached) -> Self {
        Self::TooMany
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mig::{StateSpace, catalog};

    fn a100() -> Geometry {
        catalog::models()["a100-40gb"].geometry()
    }

    fn slot(geometry: &Geometry, name: &str, start: u8) -> Slot {
        Slot { start, profile: geometry.by_name(&name.parse().unwrap()).unwrap().id }
    }

    fn words(geometry: &Geometry, layout: &Layout) -> Vec<String> {
        let name = |slot: &Slot| geometry.profile(slot.profile).unwrap().name.to_string();
        layout.iter().map(|slot| format!("{}@{}", name(slot), slot.start)).collect()
    }

    fn arrange(text: &str, standing: &[(&str, u8, bool)]) -> Result<Vec<String>, ArrangementError> {
        let geometry = a100();
        let plain = geometry.plain();
        let space = StateSpace::new(&geometry, Some(&plain)).unwrap();
        let standing: Vec<_> = standing
            .iter()
            .map(|(name, start, busy)| InstanceOccupant {
                slot: slot(&geometry, name, *start),
                busy: *busy,
            })
            .collect();
        let reach = |layout: &Layout| space.state(layout).map_or(0, |s| space.reachability(s));
        let desired: DesiredLayout = text.parse().unwrap();
        desired.arrange(&geometry, &standing, reach).map(|layout| words(&geometry, &layout))
    }

    #[test]
    fn a_layout_is_read_and_written_as_users_write_it() {
        for (text, written) in [
            ("3g.20gb, 2g.10gb,1g.5gb@6", "3g.20gb,2g.10gb,1g.5gb@6"),
            ("2x1g.5gb", "1g.5gb,1g.5gb"),
            ("empty", "empty"),
            ("1g.10gb+me", "1g.10gb+me"),
            ("2c+1c.3g.20gb@4,1g.5gb", "1c+2c.3g.20gb@4,1g.5gb"),
            ("1c.3g.20gb", "1c.3g.20gb"),
        ] {
            assert_eq!(text.parse::<DesiredLayout>().unwrap().to_string(), written);
        }
        for bad in [
            "",
            "3g",
            "1g.5gb@x",
            "0x1g.5gb",
            "2x1g.5gb@4",
            "65x1g.5gb",
            "1g.5gb,,",
            "2x1c.3g.20gb",
            "0c.3g.20gb",
            "9c.3g.20gb",
            "1c+.3g.20gb",
            "1+1c.3g.20gb",
        ] {
            assert!(bad.parse::<DesiredLayout>().is_err(), "{bad}");
        }
    }

    #[test]
    fn without_placements_the_most_futures_stay_open() {
        // MIGM, figure 3: a 1g.5gb costs the fewest futures on the last slice.
        assert_eq!(arrange("1g.5gb", &[]).unwrap(), ["1g.5gb@6"]);
        assert_eq!(arrange("3g.20gb,2g.10gb,1g.5gb", &[]).unwrap().len(), 3, "the three coexist");
    }

    #[test]
    fn what_is_busy_stays_where_it_is() {
        let standing = [("2g.10gb", 4, true), ("1g.5gb", 0, false)];

        let layout = arrange("3g.20gb,2g.10gb", &standing).unwrap();

        assert_eq!(layout, ["3g.20gb@0", "2g.10gb@4"]);
    }

    #[test]
    fn a_layout_without_space_for_busy_instances_names_them() {
        let geometry = a100();

        let refused = arrange("7g.40gb", &[("2g.10gb", 4, true), ("1g.5gb", 0, false)]);

        let busy = vec![slot(&geometry, "2g.10gb", 4)];
        assert_eq!(refused, Err(ArrangementError::InTheWay { busy }));
    }

    #[test]
    fn what_no_gpu_of_the_kind_can_hold_is_refused() {
        assert_eq!(arrange("8x1g.5gb", &[]), Err(ArrangementError::DoNotFit));
        assert!(matches!(arrange("9g.99gb", &[]), Err(ArrangementError::UnknownProfile { .. })));
        assert!(matches!(
            arrange("3g.20gb@1", &[]),
            Err(ArrangementError::Illegal(IllegalLayout::NotAStart { .. }))
        ));
        assert!(matches!(arrange("1g.5gb@1,2g.10gb@0", &[]), Err(ArrangementError::Illegal(_))));
    }

    #[test]
    fn what_stands_already_is_kept_among_equals() {
        let full = [("1g.5gb", 0, false), ("2g.10gb", 2, false), ("3g.20gb", 4, false)];

        let layout = arrange("1g.5gb,2g.10gb,3g.20gb", &full).unwrap();

        assert_eq!(layout, ["1g.5gb@0", "2g.10gb@2", "3g.20gb@4"]);
    }
}
