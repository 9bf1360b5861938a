//! The tables of spans and attributes in `docs/tracing.md` are those of the code.

use std::collections::BTreeSet;

use super::tools::{constants, read};

/// Returns the names in the first column of the table below a heading.
fn first_column(page: &str, heading: &str) -> BTreeSet<String> {
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.filter_map(|row| row.split('`').next()).map(str::to_owned).collect()
}

#[test]
fn every_span_and_attribute_is_in_the_page_and_no_other() {
    let (page, names) = (read("docs/tracing.md"), read("crates/telemetry/src/names.rs"));
    let (_, spans) = names.split_once("pub mod span").unwrap();
    let (spans, rest) = spans.split_once("pub mod event").unwrap();
    let (events, attributes) = rest.split_once("pub mod attribute").unwrap();

    assert_eq!(first_column(&page, "Spans"), constants(spans));
    assert_eq!(first_column(&page, "Attributes"), constants(attributes));
    for event in constants(events) {
        assert!(page.contains(&format!("`{event}`")), "{event}");
    }
}

#[test]
fn the_attributes_of_each_span_are_known_ones() {
    let page = read("docs/tracing.md");
    let known = first_column(&page, "Attributes");
    let (_, spans) = page.split_once("\n## Spans\n").unwrap();
    let rows = spans.split("\n## ").next().unwrap().lines().filter(|line| line.starts_with("| `"));
    for row in rows {
        let attributes = row.rsplit('|').nth(1).unwrap();
        for attribute in attributes.split('`').skip(1).step_by(2) {
            assert!(known.contains(attribute), "{attribute} in {row}");
        }
    }
}
