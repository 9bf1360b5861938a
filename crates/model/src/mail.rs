//! Mail about a job: the events that its user requests, and who gets it.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::ids::BadId;
use crate::life::words;
use crate::spec::BadField;

/// Maximum number of addresses that one job may name.
pub const ADDRESSES_MAX: usize = 8;
/// Longest address, as in RFC 5321.
const ADDRESS_BYTES_MAX: usize = 254;

words! {
    /// An event of a job about which its user gets mail, by the names of batch schedulers.
    MailType {
        /// The job's program starts.
        Begin = "begin",
        /// The job ended, whatever its result.
        End = "end",
        /// The job failed, or reached its time limit.
        Fail = "fail",
        /// The job goes back to the queue after it had a place.
        Requeue = "requeue",
        /// The job is cancelled, since the jobs that it waits for can never let it start.
        InvalidDepend = "invalid_depend",
        /// The job reached its time limit.
        TimeLimit = "time_limit",
        /// The job has run for 90 % of its time limit.
        TimeLimit90 = "time_limit_90",
        /// The job has run for 80 % of its time limit.
        TimeLimit80 = "time_limit_80",
        /// The job has run for half of its time limit.
        TimeLimit50 = "time_limit_50",
        /// Each task of an array gets its own mail.
        ArrayTasks = "array_tasks",
    }
}

impl MailType {
    /// What `all` stands for.
    pub const USUAL: [Self; 5] =
        [Self::Begin, Self::End, Self::Fail, Self::Requeue, Self::InvalidDepend];

    /// Returns the percentage of the time limit that the event is about, if it is about one.
    pub const fn limit_percent(self) -> Option<u8> {
        match self {
            Self::TimeLimit90 => Some(90),
            Self::TimeLimit80 => Some(80),
            Self::TimeLimit50 => Some(50),
            Self::Begin
            | Self::End
            | Self::Fail
            | Self::Requeue
            | Self::InvalidDepend
            | Self::TimeLimit
            | Self::ArrayTasks => None,
        }
    }
}

/// Who gets mail: `user` or `user@host`. It has no letter that means anything in a header or to a mail program.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct MailAddress(String);

impl MailAddress {
    /// Returns the address as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for MailAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl FromStr for MailAddress {
    type Err = BadId;

    fn from_str(text: &str) -> Result<Self, BadId> {
        let (name, host) = match text.split_once('@') {
            Some((name, host)) => (name, Some(host)),
            None => (text, None),
        };
        let is_good = text.len() <= ADDRESS_BYTES_MAX
            && is_word(name, "._%+=-")
            && host.is_none_or(|host| is_word(host, ".-"));
        if is_good {
            return Ok(Self(text.to_owned()));
        }
        Err(BadId {
            kind: "mail address",
            text: text.to_owned(),
            expected: "a user, or an address such as ada@example.org",
        })
    }
}

/// Returns whether a text has letters, digits and `others` only, and begins with a letter, a digit
/// or an underscore.
fn is_word(text: &str, others: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.starts_with(is_plain) && text.chars().all(|c| is_plain(c) || others.contains(c))
}

impl From<MailAddress> for String {
    fn from(address: MailAddress) -> Self {
        address.0
    }
}

impl TryFrom<String> for MailAddress {
    type Error = BadId;

    fn try_from(text: String) -> Result<Self, BadId> {
        text.parse()
    }
}

/// The mail that a job's user requests: at least one event, and at least one address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MailRules {
    /// The events, each once and in order.
    pub types: Vec<MailType>,
    /// Who gets the mail.
    pub to: Vec<MailAddress>,
}

impl MailRules {
    /// Reads the events and the addresses of a request. Without an address, the job's user gets the mail.
    ///
    /// # Errors
    ///
    /// [`BadField`] names the first word that is no event, or no address.
    pub fn parse(
        types: &[String],
        addresses: Option<&str>,
        user: &str,
    ) -> Result<Option<Self>, BadField> {
        let types = parse_types(types)?;
        let is_named = addresses.is_some();
        let to = parse_addresses(addresses.unwrap_or(user));
        match types.iter().any(|kind| *kind != MailType::ArrayTasks) {
            true => Ok(Some(Self { types, to: to? })),
            // A wrong address is an error also if nothing is sent.
            false if is_named => to.map(|_| None),
            false => Ok(None),
        }
    }

    /// Returns whether mail about an event is requested.
    pub fn has(&self, kind: MailType) -> bool {
        self.types.contains(&kind)
    }
}

fn parse_types(words: &[String]) -> Result<Vec<MailType>, BadField> {
    let mut types = Vec::new();
    for word in words {
        match word.to_ascii_lowercase().as_str() {
            "none" => types.clear(),
            "all" => types.extend(MailType::USUAL),
            word => types.push(word.parse().map_err(|bad: BadId| {
                let expected = format!("none, all, or {}", bad.expected);
                BadField::new("mail_types", format!("{:?} is unknown", bad.text), expected)
            })?),
        }
    }
    types.sort_unstable();
    types.dedup();
    Ok(types)
}

fn parse_addresses(text: &str) -> Result<Vec<MailAddress>, BadField> {
    let bad = |problem: String| {
        BadField::new(
            "mail_user",
            problem,
            format!(
                "1 to {ADDRESSES_MAX} addresses such as ada@example.org, with commas between them"
            ),
        )
    };
    let addresses = text.split(',').map(|address| {
        address
            .trim()
            .parse()
            .map_err(|wrong: BadId| bad(format!("{:?} is no address", wrong.text)))
    });
    let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
    match addresses.len() {
        1..=ADDRESSES_MAX => Ok(addresses),
        count => Err(bad(format!("{count} addresses are too many"))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rules(types: &[&str], to: Option<&str>) -> Result<Option<MailRules>, BadField> {
        let types: Vec<_> = types.iter().map(|word| (*word).to_owned()).collect();
        MailRules::parse(&types, to, "ada")
    }

    #[test]
    fn all_stands_for_five_events_and_none_takes_back_what_came_before_it() {
        assert_eq!(rules(&["ALL"], None).unwrap().unwrap().types, MailType::USUAL);
        assert_eq!(rules(&["END", "NONE"], None), Ok(None));
        let both = rules(&["none", "time_limit_90", "END", "end"], None).unwrap().unwrap();
        assert_eq!(both.types, [MailType::End, MailType::TimeLimit90]);
    }

    #[test]
    fn the_jobs_user_gets_the_mail_unless_addresses_are_named() {
        let to = |named| rules(&["end"], named).unwrap().unwrap().to;

        assert_eq!(to(None), ["ada".parse().unwrap()]);
        let named = ["bob@example.org", "lab+gpu@example.org"].map(|to| to.parse().unwrap());
        assert_eq!(to(Some("bob@example.org, lab+gpu@example.org")), named);
    }

    #[test]
    fn what_is_no_event_and_what_is_no_address_is_refused_with_what_would_be_right() {
        let bad = rules(&["often"], None).unwrap_err();
        assert!(
            bad.to_string()
                .contains("mail_types: \"often\" is unknown; none, all, or one of begin"),
            "{bad}"
        );
        let many = ["a"; ADDRESSES_MAX + 1].join(",");
        for wrong in [
            "",
            "a b",
            "a\nBcc: x",
            "-oX/tmp/f",
            "|sh",
            "/etc/passwd",
            "a@",
            "a@-b",
            "a@b@c",
            &many,
        ] {
            let bad = rules(&["end"], Some(wrong)).unwrap_err();
            assert!(bad.to_string().contains("ada@example.org"), "{wrong:?}: {bad}");
            assert_eq!(rules(&[], Some(wrong)).unwrap_err().field, "mail_user");
        }
    }

    proptest! {
        #[test]
        fn an_address_holds_no_letter_that_ends_a_header_or_names_a_program(text in "\\PC*|.*|[a-z@.|/\\n\\r<>,;:-]*") {
            if let Ok(address) = text.parse::<MailAddress>() {
                let plain = |c: char| c.is_ascii_alphanumeric() || "._%+=-@".contains(c);
                prop_assert!(address.as_str().chars().all(plain), "{address}");
                prop_assert!(!address.as_str().starts_with('-'));
            }
        }
    }
}
