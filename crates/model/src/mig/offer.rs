//! Which profiles are on offer, in the words of the papers and of people.

use std::collections::BTreeSet;

use super::geometry::{Geometry, ProfileId, ProfileName};

/// Words for groups of profiles, joined by `+`.
const WORDS: &str = "plain, double, me, joined by +, or all, or names of profiles with commas";

/// A choice of profiles that names nothing, or something that this GPU doesn't have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadOffer {
    /// Not a word for a group, nor a profile's name.
    #[error("{word:?} is no choice of profiles: expected {WORDS}")]
    Word {
        /// The part of the text that can't be read.
        word: String,
    },
    /// The GPU has no such profile.
    #[error("this GPU has no profile {name:?}; it has {}", has.join(", "))]
    Profile {
        /// The name that no GPU offers.
        name: String,
        /// The names that it has.
        has: Vec<String>,
    },
    /// The choice holds no profile of this GPU.
    #[error("this GPU has no profile of the kind {text:?}")]
    Empty {
        /// The choice.
        text: String,
    },
}

impl Geometry {
    /// Reads a choice of profiles: `all`, groups joined by `+` (`plain+double+me`), or names
    /// separated by commas (`1g.5gb,2g.10gb`).
    ///
    /// `plain` are the sizes of the papers, `double` those with more memory for as many compute
    /// slices (`1g.10gb`), `me` those with media extensions (`1g.5gb+me`).
    ///
    /// # Errors
    ///
    /// [`BadOffer`].
    pub fn offer(&self, text: &str) -> Result<BTreeSet<ProfileId>, BadOffer> {
        let text = text.trim();
        let offer = match text {
            "all" => self.profiles.iter().map(|p| p.id).collect(),
            names if names.contains("g.") => self.named(names)?,
            groups => self.groups(groups)?,
        };
        match offer.is_empty() {
            true => Err(BadOffer::Empty { text: text.to_owned() }),
            false => Ok(offer),
        }
    }

    fn named(&self, names: &str) -> Result<BTreeSet<ProfileId>, BadOffer> {
        let one = |name: &str| {
            let parsed: Option<ProfileName> = name.trim().parse().ok();
            let found = parsed.and_then(|name| self.by_name(&name));
            let has = || self.profiles.iter().map(|p| p.name.to_string()).collect();
            found
                .map(|p| p.id)
                .ok_or_else(|| BadOffer::Profile { name: name.trim().to_owned(), has: has() })
        };
        names.split(',').map(one).collect()
    }

    fn groups(&self, groups: &str) -> Result<BTreeSet<ProfileId>, BadOffer> {
        let plain = self.plain();
        let mut offer = BTreeSet::new();
        for word in groups.split('+') {
            match word.trim() {
                "plain" => offer.extend(plain.iter().copied()),
                "double" => {
                    let doubled = |p: &&super::Profile| !p.has_suffix() && !plain.contains(&p.id);
                    offer.extend(self.profiles.iter().filter(doubled).map(|p| p.id));
                }
                "me" => {
                    let media = |p: &&super::Profile| p.name.as_str().ends_with("gb+me");
                    offer.extend(self.profiles.iter().filter(media).map(|p| p.id));
                }
                other => return Err(BadOffer::Word { word: other.to_owned() }),
            }
        }
        Ok(offer)
    }
}

#[cfg(test)]
mod tests {
    use crate::mig::catalog;

    #[test]
    fn groups_and_names_choose_profiles() {
        let a100 = catalog::models()["a100-40gb"].geometry();
        let count = |text: &str| a100.offer(text).map(|offer| offer.len());

        assert_eq!(count("plain"), Ok(5));
        assert_eq!(count("plain+double"), Ok(6));
        assert_eq!(count("plain + me"), Ok(6));
        assert_eq!(count("plain+double+me"), count("all"));
        assert_eq!(count("1g.5gb+me, 7g.40gb"), Ok(2));
    }

    #[test]
    fn a_choice_of_nothing_is_refused_with_the_choices() {
        let a30 = catalog::models()["a30-24gb"].geometry();
        let message = |text: &str| a30.offer(text).unwrap_err().to_string();

        assert!(message("plane").contains("expected plain, double, me"));
        assert!(message("1g.5gb").contains("it has 1g.6gb, 1g.6gb+me"));
        assert_eq!(message("double"), "this GPU has no profile of the kind \"double\"");
    }
}
