//! Removes secrets from texts, line by line.

/// The replacement of a secret.
const GONE: &str = "REDACTED";
/// A word in a name that makes its value a secret.
const SECRET_WORDS: [&str; 6] = ["token", "password", "passwd", "secret", "credential", "apikey"];
/// The prefix of every personal token: `tsr_ROLE_ID_SECRET`.
const TOKEN_BEGIN: &str = "tsr_";

/// Removes a known token, personal tokens, passwords in URLs, values with secret names, and private keys.
#[derive(Clone, Debug)]
pub struct Redactor {
    known: Vec<String>,
}

impl Redactor {
    /// Knows the session's own token, if there is one.
    pub fn new(token: Option<&str>) -> Self {
        // A very short one would be found everywhere.
        let known = token.into_iter().filter(|token| token.len() >= 8).map(str::to_owned);
        Self { known: known.collect() }
    }

    /// Returns the text without secrets.
    pub fn clean(&self, text: &str) -> String {
        let mut inside_key = false;
        let mut cleaned = String::with_capacity(text.len());
        for line in text.split_inclusive('\n') {
            let ending = if line.ends_with('\n') { "\n" } else { "" };
            if line.contains("-----BEGIN") && line.contains("PRIVATE KEY") {
                inside_key = true;
                cleaned += GONE;
                cleaned += ending;
            }
            if inside_key {
                inside_key = !line.contains("-----END");
                continue;
            }
            cleaned += &self.clean_line(line.strip_suffix('\n').unwrap_or(line));
            cleaned += ending;
        }
        cleaned
    }

    fn clean_line(&self, line: &str) -> String {
        let mut line = line.to_owned();
        for secret in &self.known {
            line = line.replace(secret, GONE);
        }
        without_values(&without_passwords(&without_bearers(&without_tokens(&line))))
    }
}

/// Replaces the secret of each personal token, whole or cut. Role and id stay: the list of tokens shows them.
fn without_tokens(line: &str) -> String {
    let mut cleaned = String::new();
    let mut rest = line;
    while let Some(at) = rest.find(TOKEN_BEGIN) {
        let (before, after) = rest.split_at(at);
        cleaned += before;
        let end = after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        let (token, beyond) = after.split_at(end.unwrap_or(after.len()));
        let mut parts = token.splitn(4, '_');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(begin), Some(role), Some(id), Some(secret)) if !secret.is_empty() => {
                cleaned += &format!("{begin}_{role}_{id}_{GONE}");
            }
            _ => cleaned += token,
        }
        rest = beyond;
    }
    cleaned + rest
}

/// Replaces what follows `Bearer`.
fn without_bearers(line: &str) -> String {
    let lower = line.to_ascii_lowercase();
    let Some(at) = lower.find("bearer ") else { return line.to_owned() };
    let start = at + "bearer ".len();
    let rest = &line[start..];
    let end = rest.find(|c: char| c.is_whitespace() || c == '"').unwrap_or(rest.len());
    format!("{}{GONE}{}", &line[..start], &rest[end..])
}

/// Replaces the password in each `scheme://user:password@host`.
fn without_passwords(line: &str) -> String {
    let mut cleaned = String::new();
    let mut rest = line;
    while let Some(at) = rest.find("://") {
        let (before, after) = rest.split_at(at + 3);
        cleaned += before;
        let end = after
            .find(|c: char| c.is_whitespace() || matches!(c, '"' | '\'' | '<' | '>'))
            .unwrap_or(after.len());
        let (url, beyond) = after.split_at(end);
        match url.rsplit_once('@') {
            // A password may hold a slash or an at sign that its user forgot to escape.
            Some((login, host)) if login.contains(':') => {
                let user = login.split(':').next().unwrap_or_default();
                cleaned += &format!("{user}:{GONE}@{host}");
            }
            _ => cleaned += url,
        }
        rest = beyond;
    }
    cleaned + rest
}

/// Replaces the value in `name = value` and `name: value` if the name is a secret's.
fn without_values(line: &str) -> String {
    let Some(at) = line.find(['=', ':']) else { return line.to_owned() };
    let name = line[..at].to_ascii_lowercase();
    // Metrics and sentences have such words, too, but not as the last word of a name.
    let name = name.trim().trim_matches('"').trim_start_matches("export ").replace(['-', '_'], "");
    let secret = SECRET_WORDS.iter().any(|word| name.ends_with(word));
    let value = line[at + 1..].trim().trim_matches([',', '"']);
    let harmless = matches!(value, "" | "true" | "false" | "null");
    if secret && !name.contains(' ') && !harmless {
        format!("{} {GONE}", &line[..=at])
    } else {
        line.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn passwords_of_databases_are_removed_and_hosts_stay() {
        let line =
            "database = \"postgres://tessera:pa:ss/w@rd@db.lab:5432/tessera?sslmode=require\"";

        let cleaned = Redactor::new(None).clean(line);

        assert_eq!(
            cleaned,
            "database = \"postgres://tessera:REDACTED@db.lab:5432/tessera?sslmode=require\""
        );
    }

    #[test]
    fn private_keys_and_tokens_are_removed() {
        let text = "a\n-----BEGIN PRIVATE KEY-----\nMIGH\n-----END PRIVATE KEY-----\nb\n\
                    TESSERA_TOKEN=0123456789\nAuthorization: Bearer abc.def\nneeds-token = true\n";

        let cleaned = Redactor::new(None).clean(text);

        assert_eq!(
            cleaned,
            "a\nREDACTED\nb\nTESSERA_TOKEN= REDACTED\nAuthorization: Bearer REDACTED\n\
             needs-token = true\n"
        );
    }

    #[test]
    fn the_secrets_of_personal_tokens_are_removed_and_their_ids_stay() {
        let text =
            "refused tsr_user_4f2k9qx1_Ab3Cut, tsr_admin_00000000_Zz9, and tsr_user_4f2k9qx1";

        let cleaned = Redactor::new(None).clean(text);

        assert_eq!(
            cleaned,
            "refused tsr_user_4f2k9qx1_REDACTED, tsr_admin_00000000_REDACTED, and tsr_user_4f2k9qx1"
        );
    }

    #[test]
    fn addresses_without_a_password_are_unchanged() {
        let line = "listening on http://127.0.0.1:7070/docs, see https://example.org:8443/a?b=c";

        assert_eq!(Redactor::new(None).clean(line), line);
    }

    proptest! {
        #[test]
        fn the_sessions_token_never_remains(
            token in "[A-Za-z0-9]{20,40}", before in "\\PC{0,30}", after in "\\PC{0,30}",
        ) {
            let cleaned = Redactor::new(Some(&token)).clean(&format!("{before}{token}{after}\n"));

            prop_assert!(!cleaned.contains(&token), "{}", cleaned);
        }

        #[test]
        fn the_secret_of_a_personal_token_never_remains(
            role in "metrics|user|operator|admin", id in "[0-9a-v]{8}", secret in "[A-Za-z0-9]{49}",
            before in "\\PC{0,30}", after in "[ \",;&)\\]]\\PC{0,30}",
        ) {
            let text = format!("{before}tsr_{role}_{id}_{secret}{after}\n");
            let cleaned = Redactor::new(None).clean(&text);

            prop_assert!(!cleaned.contains(&secret), "{}", cleaned);
        }

        #[test]
        fn a_password_in_a_url_never_remains(
            password in "[A-Za-z0-9/:@+%]{12,24}", path in "[a-z/]{0,10}",
        ) {
            let text = format!("x postgres://ada:{password}@db/{path} y");
            let cleaned = Redactor::new(None).clean(&text);

            prop_assert!(!cleaned.contains(&password), "{}", cleaned);
        }
    }
}
