//! Words that are not used here, and the ones that are used instead.

/// A word or phrase with the word to use instead.
#[derive(Clone, Copy, Debug)]
pub struct Banned {
    /// One spelling for each form, in lower case; several words match with one space between.
    pub forms: &'static [&'static str],
    /// What `docs/glossary.md` calls it.
    pub instead: &'static str,
}

const fn ban(forms: &'static [&'static str], instead: &'static str) -> Banned {
    Banned { forms, instead }
}

/// Every banned word. `docs/glossary.md` defines the words on the right.
pub const BANNED: &[Banned] = &[
    ban(
        &["told", "tell", "tells", "telling", "say", "says", "said", "saying", "untold"],
        "report, return, notify, state",
    ),
    ban(&["hear", "heard", "hears"], "receive, notice"),
    ban(&["foretold", "foretell", "foretells", "foretelling"], "predict"),
    ban(&["foresight", "foresights"], "prediction"),
    ban(&["came true", "come true", "comes true", "coming true"], "outcome, was accurate"),
    ban(&["picture", "pictures"], "cluster state, snapshot"),
    ban(&["company", "companies", "beside"], "co-location, co-runners, next to"),
    ban(&["seat", "seats", "seated", "seating", "reseat"], "placement, place"),
    ban(&["hall", "halls"], "capacity search"),
    ban(
        &["teacher", "teachers", "lesson", "lessons", "taught", "teach", "teaches", "untaught"],
        "trainer, training sample, train",
    ),
    ban(
        &[
            "operator word",
            "operator words",
            "operators words",
            "operator's word",
            "word of an operator",
            "words of operators",
            "lifted",
        ],
        "administrative override: set, cleared",
    ),
    ban(&["set back", "sets back", "setting back"], "rolled back, rollback"),
    ban(&["floor", "floors"], "memory estimate, minimum"),
    ban(&["book", "books"], "usage ledger"),
    ban(&["rival", "rivals"], "duplicate agents, contenders"),
    ban(&["custody"], "ownership"),
    ban(
        &["put aside", "puts aside", "putting aside", "puts its work aside", "asides"],
        "checkpoint",
    ),
    ban(&["worth"], "score, weight, value"),
    ban(&["mend", "mends", "mended", "mending"], "fix"),
    ban(&["wish", "wishes", "wished", "draft", "drafts"], "desired layout, plan preview"),
    ban(
        &[
            "change of a layout",
            "changes of layouts",
            "change of layout",
            "layout change",
            "layout changes",
        ],
        "layout plan",
    ),
    ban(
        &["believe", "believed", "believes", "doubt", "doubted", "doubts"],
        "trusted, low-confidence",
    ),
    ban(&["lately", "of late", "of all that was had"], "recent usage, recently"),
    ban(&["beat", "beats"], "heartbeat"),
    ban(&["hub", "hubs"], "registry, router"),
    ban(&["desk", "desks", "shelf", "shelves"], "store, cache"),
    ban(&["room"], "free space, capacity"),
    ban(&["atlas"], "placement index"),
    ban(&["tape", "tapes"], "round replay"),
    ban(&["card", "cards", "silicon"], "GPU, device"),
    ban(
        &[
            "in turns",
            "take turns",
            "takes turns",
            "taking turns",
            "took turns",
            "fair turns",
            "whose turn",
            "its turn",
            "their turn",
            "his turn",
        ],
        "kernel-level sharing, service order, next in the queue",
    ),
    ban(
        &["ask", "asks", "asked", "asking", "want", "wants", "wanted", "unasked"],
        "request, requested",
    ),
    ban(&["amend", "amends", "amended"], "job update"),
    ban(&["sheet", "sheets"], "launch specification"),
    ban(&["fresh job", "fresh jobs"], "submitted job"),
    ban(&["move rest", "rest between moves"], "migration cooldown"),
    ban(&["crowd", "crowds", "tenant", "tenants", "sits there", "sit there"], "co-runners"),
    ban(&["outlook", "outlooks"], "availability"),
    ban(&["inquiry", "inquiries"], "explain query"),
    ban(&["mint", "mints", "minted", "minting"], "new id"),
    ban(&["chance", "chances"], "random number generator, probability"),
    ban(
        &["who waits", "who wait", "whoever", "whomever", "whom"],
        "the waiting job, the process that …, the user who …",
    ),
    ban(&["is no moment", "all the same"], "is not a valid time, anyway"),
    ban(
        &["change of contexts", "changes of contexts", "changing contexts"],
        "context switch, context switches",
    ),
    ban(&["anew"], "again"),
    ban(&["for ever"], "forever, without a limit"),
    ban(&["in vain"], "without success, too long"),
    ban(&["besides"], "in addition to, other than, except"),
    ban(&["shall"], "is to, must, will"),
    ban(&["stand idle", "stands idle", "standing idle"], "be idle"),
    ban(&["made late", "serve answers", "serves answers"], "becomes late, online job"),
    ban(&["gone for good"], "lost, removed"),
    ban(&["came to its end"], "ended, completed"),
    ban(&["what became of"], "result, outcome"),
    ban(&["had of late"], "recent usage"),
    ban(&["behind everybody's back", "as ever"], "without its knowledge, as before"),
];

/// Words that don't continue "of its own" with the thing that it has, as in "a thread of its own that waits".
const NO_NOUNS: [&str; 36] = [
    "and", "as", "at", "because", "before", "behind", "below", "besides", "but", "by", "can",
    "each", "for", "from", "has", "here", "in", "is", "may", "next", "now", "on", "only", "or",
    "over", "since", "so", "that", "this", "through", "to", "when", "where", "which", "who",
    "with",
];

/// Returns "of its own" where it stands after its noun ("a thread of its own"), with what to write instead.
/// Before a noun ("jobs of its own user") it is fine.
pub fn own_after_noun(text: &str) -> Option<(&'static str, &'static str)> {
    let text = text.to_lowercase();
    let is_after_noun = |phrase: &str| {
        text.match_indices(phrase).any(|(at, _)| {
            let rest = &text[at + phrase.len()..];
            let next = rest.trim_start();
            let word: String = next.chars().take_while(|c| c.is_alphanumeric()).collect();
            let is_whole = !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
            let has_noun = next.starts_with(['`', '"', '\'']) || !word.is_empty();
            is_whole && (!has_noun || NO_NOUNS.contains(&word.as_str()))
        })
    };
    ["of its own", "of their own"]
        .into_iter()
        .find(|phrase| is_after_noun(phrase))
        .map(|phrase| (phrase, "its own …, a separate …"))
}

/// Returns the banned words in a text, each with what to write instead.
///
/// Words are compared whole and without regard to case. In names of metrics (`tessera_…`) each
/// part between underscores is a word, too.
pub fn banned_words(text: &str) -> Vec<(&'static str, &'static str)> {
    let words = words_of(text);
    let mut found = Vec::new();
    for banned in BANNED {
        for form in banned.forms {
            let wanted: Vec<&str> = form.split(' ').collect();
            if words.windows(wanted.len()).any(|window| window == wanted) {
                found.push((*form, banned.instead));
            }
        }
    }
    found
}

fn words_of(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    for token in text.split(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '\'' | '’'))) {
        let token = token.trim_matches(['\'', '’', '_']).to_lowercase().replace('’', "'");
        if token.starts_with("tessera_") {
            words.extend(token.split('_').map(str::to_owned));
        } else if !token.is_empty() {
            words.push(token);
        }
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<&'static str> {
        banned_words(text).into_iter().map(|(form, _)| form).collect()
    }

    #[test]
    fn a_banned_word_is_found_whole_and_in_any_case() {
        assert_eq!(found("Told, what the hall says"), ["told", "says", "hall"]);
    }

    #[test]
    fn a_phrase_is_found_over_marks_between_its_words() {
        assert_eq!(found("a database that is set back"), ["set back"]);
        assert_eq!(found("the operators' words"), ["operators words"]);
    }

    #[test]
    fn parts_of_longer_words_are_fine() {
        let fine = "The shallow heartbeat of a wildcard challenges a runbook; headroom, asked_by.";

        assert_eq!(found(fine), [""; 0]);
    }

    #[test]
    fn own_after_its_noun_is_found_and_own_before_a_noun_is_fine() {
        for wrong in ["A thread of its own.", "tasks of their own that wait", "of its own; it"] {
            assert!(own_after_noun(wrong).is_some(), "{wrong}");
        }
        for fine in ["jobs of its own user", "percent of its own compute slices", "its own thread"]
        {
            assert_eq!(own_after_noun(fine), None, "{fine}");
        }
    }

    #[test]
    fn names_of_metrics_are_read_word_by_word() {
        assert_eq!(found("tessera_company_predictions_total"), ["company"]);
    }
}
