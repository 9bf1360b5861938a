//! Paragraphs, and the sentences in them.

/// The most words that a sentence may have.
pub const WORDS_MAX: usize = 30;

/// A piece of text that belongs together: a paragraph, a list item, a table's cell, a string.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paragraph {
    /// The lines, each with its number in the file.
    pub lines: Vec<(usize, String)>,
}

/// One sentence, on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sentence {
    /// The line of the file on which it begins.
    pub line: usize,
    /// The words, with one space between them.
    pub text: String,
}

impl Paragraph {
    /// A paragraph of one line.
    pub fn new(line: usize, text: impl Into<String>) -> Self {
        Self { lines: vec![(line, text.into())] }
    }

    /// Divides the paragraph into sentences.
    pub fn sentences(&self) -> Vec<Sentence> {
        let words: Vec<(usize, &str)> = self
            .lines
            .iter()
            .flat_map(|(line, text)| text.split_whitespace().map(|word| (*line, word)))
            .collect();
        let mut sentences = Vec::new();
        let mut begin = 0;
        for at in 0..words.len() {
            let next = words.get(at + 1).map(|(_, word)| *word);
            if next.is_none_or(|next| ends_sentence(words[at].1, next)) {
                let text: Vec<&str> = words[begin..=at].iter().map(|(_, word)| *word).collect();
                sentences.push(Sentence { line: words[begin].0, text: text.join(" ") });
                begin = at + 1;
            }
        }
        sentences
    }
}

impl Sentence {
    /// Counts the words: marks alone, such as a dash or an arrow, are none.
    pub fn word_count(&self) -> usize {
        self.text.split(' ').filter(|word| word.chars().any(char::is_alphanumeric)).count()
    }
}

fn ends_sentence(word: &str, next: &str) -> bool {
    const ABBREVIATIONS: [&str; 5] = ["e.g.", "i.e.", "vs.", "cf.", "etc."];
    let bare = word.trim_end_matches(['"', '\'', ')', ']', '*', '_', '”', '’']);
    let stops = bare.ends_with(['.', '!', '?', '…']) || word.ends_with(".:");
    let begins = next
        .trim_start_matches(['"', '\'', '(', '[', '*', '_', '“', '‘'])
        .starts_with(|c: char| c.is_uppercase() || c.is_numeric() || c == CODE_MARK);
    stops && begins && !ABBREVIATIONS.contains(&bare)
}

/// Begins the word that stands for a piece of code.
pub const CODE_MARK: char = '`';

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_end_at_full_stops_before_capitals() {
        let paragraph = Paragraph {
            lines: vec![
                (7, "The job waits, e.g. for a GPU. Its limit".to_owned()),
                (8, "is 1.5 h. \"Nothing\" starts.".to_owned()),
            ],
        };

        let sentences = paragraph.sentences();

        let shown: Vec<_> = sentences.iter().map(|s| (s.line, s.text.as_str())).collect();
        assert_eq!(
            shown,
            [
                (7, "The job waits, e.g. for a GPU."),
                (7, "Its limit is 1.5 h."),
                (8, "\"Nothing\" starts.")
            ]
        );
    }

    #[test]
    fn dashes_and_arrows_are_no_words() {
        let sentence = Sentence { line: 1, text: "submit → program – in 5 ms".to_owned() };

        assert_eq!(sentence.word_count(), 5);
    }
}
