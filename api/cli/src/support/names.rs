//! Pseudonyms in place of the names of users, accounts and groups, and of e-mail addresses: the same ones in all
//! parts of a bundle, and others in the next bundle.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::BuildHasher;

use serde_json::Value;

/// Fields of pages and of logs that hold a user's name.
const USER_FIELDS: [&str; 5] = ["user", "principal", "by", "requested_by", "submitted_by"];
/// Names that stand for no person.
const SERVICES: [&str; 7] = ["", "-", "*", "root", "nobody", "tessera", "tessera-agent"];
/// Numbers of the accounts of people. Those above belong to services that systemd starts.
const PEOPLE: std::ops::Range<u32> = 1_000..61_184;

/// What a name stands for. A name with two meanings is the first of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Named {
    User,
    Account,
    Group,
}

impl Named {
    fn word(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Account => "account",
            Self::Group => "group",
        }
    }
}

/// The names that the parts of a bundle mention.
#[derive(Clone, Debug, Default)]
pub struct KnownNames {
    names: BTreeMap<String, Named>,
    services: BTreeSet<String>,
}

impl KnownNames {
    /// Adds a name.
    pub fn add(&mut self, name: &str, named: Named) {
        let known = self.names.entry(name.to_owned()).or_insert(named);
        *known = named.min(*known);
    }

    /// Adds the names in a page of the API.
    pub fn add_page(&mut self, page: &Value) {
        match page {
            Value::Object(fields) => {
                // A user without an account is listed like one.
                let is_user = fields.get("named") == Some(&Value::Bool(false));
                for (field, value) in fields {
                    match value {
                        Value::String(name) if USER_FIELDS.contains(&field.as_str()) => {
                            self.add(name, Named::User);
                        }
                        Value::String(name) if field == "account" => {
                            self.add(name, if is_user { Named::User } else { Named::Account });
                        }
                        _ => self.add_page(value),
                    }
                }
            }
            Value::Array(items) => items.iter().for_each(|item| self.add_page(item)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }

    /// Adds the names in a controller's settings.
    pub fn add_settings(&mut self, settings: &toml::Table) {
        for key in ["admins", "operators"] {
            self.add_all(settings.get(key));
        }
        let table = |key| settings.get(key).and_then(toml::Value::as_table);
        for (name, _) in table("quotas").into_iter().flatten() {
            self.add(name, Named::User);
        }
        for (name, account) in table("accounts").into_iter().flatten() {
            self.add(name, Named::Account);
            for key in ["members", "coordinators"] {
                self.add_all(account.get(key));
            }
        }
        let roles = table("oidc").and_then(|oidc| oidc.get("roles")).and_then(|r| r.as_table());
        for (group, _) in roles.into_iter().flatten() {
            self.add(group, Named::Group);
        }
    }

    /// Adds the users of a list, and the groups, which follow an at sign.
    fn add_all(&mut self, list: Option<&toml::Value>) {
        for name in list.and_then(toml::Value::as_array).into_iter().flatten() {
            match name.as_str().map(|name| (name, name.strip_prefix('@'))) {
                Some((_, Some(group))) => self.add(group, Named::Group),
                Some((user, None)) => self.add(user, Named::User),
                None => {}
            }
        }
    }

    /// Adds the people of a list of accounts in the form of `/etc/passwd`, and their full names.
    pub fn add_system_accounts(&mut self, list: &str) {
        for line in list.lines() {
            let fields: Vec<_> = line.split(':').collect();
            let &[name, _, uid, _, comment, ..] = fields.as_slice() else { continue };
            match uid.parse::<u32>() {
                Ok(uid) if PEOPLE.contains(&uid) => {
                    self.add(name, Named::User);
                    let full = comment.split(',').next().unwrap_or_default().trim();
                    // One word may be any word, such as the purpose of the account.
                    if full.contains(' ') {
                        self.add(full, Named::User);
                    }
                }
                _ => {
                    self.services.insert(name.to_owned());
                }
            }
        }
    }

    /// Adds the users in fields of log lines, and the owners of homes in paths.
    pub fn add_text(&mut self, text: &str) {
        for line in text.lines() {
            let json = line.find('{').and_then(|at| serde_json::from_str(&line[at..]).ok());
            if let Some(fields) = json {
                self.add_page(&fields);
            }
            let keys = USER_FIELDS.map(|field| format!("{field}="));
            for key in keys.iter().map(String::as_str).chain(["/home/"]) {
                for (at, _) in line.match_indices(key) {
                    let is_inside = line[..at].ends_with(is_word);
                    let value = line[at + key.len()..].trim_start_matches('"');
                    let end = value.find(ends_name).unwrap_or(value.len());
                    // Numbers of accounts are no names.
                    if !is_inside && value[..end].contains(|c: char| !c.is_ascii_digit()) {
                        self.add(&value[..end], Named::User);
                    }
                }
            }
        }
    }

    /// Gives each name its pseudonym. The order of the numbers comes from `salt` and reveals nothing about the names.
    pub fn pseudonyms(self, salt: &impl BuildHasher) -> Pseudonyms {
        let services = self.services;
        let is_service = |name: &str| SERVICES.contains(&name) || services.contains(name);
        let mut names: Vec<_> =
            self.names.into_iter().filter(|(name, _)| !is_service(name)).collect();
        names.sort_by_cached_key(|(name, _)| salt.hash_one(name));
        let mut counts = BTreeMap::new();
        let mut pseudonyms = Pseudonyms::default();
        for (name, named) in names {
            let number: &mut u32 = counts.entry(named.word()).or_default();
            *number += 1;
            pseudonyms.insert(name, format!("{}-{number}", named.word()));
        }
        pseudonyms
    }
}

/// Names with their replacements.
#[derive(Clone, Debug, Default)]
pub struct Pseudonyms {
    /// By the first word of the name, the longest name first.
    by_word: HashMap<String, Vec<(String, String)>>,
    addresses: BTreeMap<String, String>,
}

impl Pseudonyms {
    fn insert(&mut self, name: String, pseudonym: String) {
        let start = name.find(is_word).unwrap_or(name.len());
        let word = first_word(&name[start..]).to_owned();
        if !word.is_empty() {
            let names = self.by_word.entry(word).or_default();
            names.push((name[start..].to_owned(), pseudonym));
            names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
        }
    }

    /// Returns what each pseudonym stands for.
    pub fn meanings(&self) -> BTreeMap<&str, &str> {
        let names = self.by_word.values().flatten();
        let names = names.map(|(name, pseudonym)| (pseudonym.as_str(), name.as_str()));
        names
            .chain(self.addresses.iter().map(|(name, new)| (new.as_str(), name.as_str())))
            .collect()
    }

    /// Returns the text with pseudonyms in place of names and of addresses.
    pub fn replace(&mut self, text: &str) -> String {
        let text = self.without_names(text);
        self.without_addresses(&text)
    }

    fn without_names(&self, text: &str) -> String {
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(start) = rest.find(is_word_or_escape) {
            let (before, after) = rest.split_at(start);
            replaced += before;
            // What follows a backslash in a string of JSON is no part of a word.
            if after.starts_with('\\') {
                let end = after.char_indices().nth(2).map_or(after.len(), |(at, _)| at);
                replaced += &after[..end];
                rest = &after[end..];
                continue;
            }
            let word = first_word(after);
            let names = self.by_word.get(word).map(Vec::as_slice).unwrap_or_default();
            let found = names.iter().find(|(name, _)| {
                after.strip_prefix(name.as_str()).is_some_and(|rest| !rest.starts_with(is_word))
            });
            let (old, new) =
                found.map_or((word, word), |(name, new)| (name.as_str(), new.as_str()));
            replaced += new;
            rest = &after[old.len()..];
        }
        replaced + rest
    }

    fn without_addresses(&mut self, text: &str) -> String {
        let mut replaced = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('@') {
            let start = rest[..at]
                .rfind(|c| !is_local(c))
                .map_or(0, |end| end + rest[end..].chars().next().map_or(0, char::len_utf8));
            let domain = &rest[at + 1..];
            let end = domain.find(|c| !is_domain(c)).unwrap_or(domain.len());
            let domain = domain[..end].trim_end_matches(['.', '-']);
            let end = at + 1 + domain.len();
            if start < at && is_of_internet(domain) && !ends_in_url(&rest[..start]) {
                let number = self.addresses.len() + 1;
                let address = self.addresses.entry(rest[start..end].to_owned());
                let address = address.or_insert_with(|| format!("address-{number}"));
                replaced += &rest[..start];
                replaced += address;
            } else {
                replaced += &rest[..end];
            }
            rest = &rest[end..];
        }
        replaced + rest
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_word_or_escape(c: char) -> bool {
    is_word(c) || c == '\\'
}

fn first_word(text: &str) -> &str {
    let end = text.find(|c| !is_word(c)).unwrap_or(text.len());
    &text[..end]
}

fn ends_name(c: char) -> bool {
    c.is_whitespace() || matches!(c, '"' | '\'' | '/' | ',' | ';' | ':' | ')' | ']' | '}')
}

fn is_local(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '%' | '+' | '-')
}

fn is_domain(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '.' | '-')
}

/// Returns whether a name has the form of a domain; layouts such as `2g.10gb@4` and units don't.
fn is_of_internet(domain: &str) -> bool {
    let Some((_, top)) = domain.rsplit_once('.') else { return false };
    top.len() >= 2 && top.chars().all(|c| c.is_ascii_alphabetic()) && top != "service"
}

/// Returns whether a text ends within a URL, whose part before an at sign is a login.
fn ends_in_url(text: &str) -> bool {
    let delimits = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>');
    text.rsplit(delimits).next().is_some_and(|word| word.contains("://"))
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn known(names: &[(&str, Named)]) -> Pseudonyms {
        let mut known = KnownNames::default();
        names.iter().for_each(|(name, named)| known.add(name, *named));
        known.pseudonyms(&RandomState::new())
    }

    #[test]
    fn a_name_is_replaced_as_a_word_and_nowhere_else() {
        let mut names = known(&[("ada", Named::User), ("lab-a", Named::Account)]);

        let text = names.replace("ada: adam canada /home/ada/x ada's lab-a lab-ab lab (ada) _ada");

        assert_eq!(
            text,
            "user-1: adam canada /home/user-1/x user-1's account-1 lab-ab lab (user-1) _ada"
        );
    }

    #[test]
    fn the_longest_of_several_names_is_the_one_that_is_meant() {
        let mut names = known(&[("ada", Named::User), ("ada-lab", Named::Account)]);

        assert_eq!(names.replace("ada-lab of ada"), "account-1 of user-1");
    }

    #[test]
    fn a_name_after_an_escaped_line_break_is_replaced() {
        let mut names = known(&[("ada", Named::User)]);

        assert_eq!(names.replace(r#"{"reason":"for\nada"}"#), r#"{"reason":"for\nuser-1"}"#);
    }

    #[test]
    fn addresses_are_replaced_and_layouts_units_and_databases_are_not() {
        let mut names = known(&[]);
        let text = "to a.b+c@lab.example.org. 2g.10gb@4 x@y.service postgres://x:y@db.lab/t a.b+c@lab.example.org";

        assert_eq!(
            names.replace(text),
            "to address-1. 2g.10gb@4 x@y.service postgres://x:y@db.lab/t address-1"
        );
    }

    #[test]
    fn names_come_from_pages_settings_logs_paths_and_the_system() {
        let mut known = KnownNames::default();
        known.add_page(&json!({"items": [
            {"account": "lab", "named": true, "users": [{"user": "ada"}]},
            {"account": "bob", "named": false, "drained": {"by": "carol", "reason": "x"}},
        ]}));
        known.add_settings(
            &"operators = ['dan', '@ops']\n[quotas]\nerin = 1\n'*' = 2\n\
              [accounts]\nlab-b = { members = ['frank'], coordinators = ['grace'] }\n\
              [oidc]\nissuer = 'https://x'\nroles = { heads = 'admin' }"
                .parse()
                .unwrap(),
        );
        known.add_text(
            "audit principal=\"heidi\" by=ivan user=1500\n\
             x: {\"fields\":{\"principal\":\"judy\"}}\nin /home/ken/x",
        );
        known.add_system_accounts(
            "root:x:0:0:root:/root:/bin/sh\nlea:x:1000:1000:Lea Li,,:/:/bin/sh\n\
             postgres:x:106:1:P S:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh",
        );
        known.add("postgres", Named::User);

        let pseudonyms = known.pseudonyms(&RandomState::new());

        let mut found: Vec<_> = pseudonyms
            .meanings()
            .into_iter()
            .map(|(new, name)| (new.split('-').next().unwrap(), name))
            .collect();
        found.sort_unstable();
        let user = |name| ("user", name);
        let mut expected = vec![("account", "lab"), ("account", "lab-b")];
        expected.extend([("group", "heads"), ("group", "ops"), user("Lea Li"), user("ada")]);
        expected.extend(["bob", "carol", "dan", "erin", "frank", "grace", "heidi"].map(user));
        expected.extend(["ivan", "judy", "ken", "lea"].map(user));
        assert_eq!(found, expected);
    }

    proptest! {
        #[test]
        fn a_known_name_never_remains_as_a_word(
            name in "[a-z][a-z0-9_.-]{2,12}[a-z0-9]", before in "\\PC{0,20}[ /\"(=:]",
            after in "[ /\")]\\PC{0,20}",
        ) {
            let mut names = known(&[(&name, Named::User)]);
            let inside = format!("{before}{name}{after}");

            let replaced = names.replace(&inside);

            // A backslash before the name makes its first letter an escape.
            prop_assume!(!before.contains('\\'));
            let starts = replaced.match_indices(&name).filter(|(at, _)| {
                !replaced[..*at].ends_with(is_word)
                    && !replaced[at + name.len()..].starts_with(is_word)
            });
            prop_assert_eq!(starts.count(), 0, "{}", replaced);
        }
    }
}
