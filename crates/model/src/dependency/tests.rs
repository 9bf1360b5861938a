use super::*;
use DependencyVerdict::{Met, MetAt, Never, Unmet};

fn request(text: &str) -> DependencyRequest {
    text.parse().unwrap_or_else(|bad: BadField| panic!("{text}: {bad}"))
}

fn kinds(text: &str) -> Vec<(&'static str, Option<String>, u64)> {
    let conditions = request(text).conditions.into_iter();
    conditions.map(|c| (c.kind.word(), c.job.map(|job| job.to_string()), c.minutes)).collect()
}

fn on(kind: DependencyKind, first: u64, jobs: u32) -> Condition {
    let on = Some(JobRange { first: JobId::from_number(first), jobs });
    Condition { kind, on, name: first.to_string(), delay: Millis::ZERO, shift: 0, members: 1 }
}

fn dependency(conditions: Vec<Condition>) -> Dependency {
    Dependency { any: false, cancel_if_never: false, conditions }
}

fn ends(unfinished: u32, unsuccessful: u32) -> DependencyFacts {
    DependencyFacts::Ends { unfinished, unsuccessful }
}

fn verdict_of(condition: Condition, facts: DependencyFacts) -> DependencyVerdict {
    dependency(vec![condition]).verdict(JobId::from_number(99), 0, |_| Some(facts))
}

#[test]
fn conditions_read_as_slurm_writes_them() {
    let job = |text: &str| Some(text.to_owned());

    assert_eq!(
        kinds("afterok:12:13_4,singleton,after:5+10"),
        [
            ("afterok", job("12"), 0),
            ("afterok", job("13_4"), 0),
            ("singleton", None, 0),
            ("after", job("5"), 10)
        ]
    );
    assert_eq!(kinds("afterany:7_*"), [("afterany", job("7"), 0)]);
    assert_eq!(kinds("42"), [("afterany", job("42"), 0)], "a bare number");
    assert!(request("afterok:1?afternotok:2").any);
}

#[test]
fn an_invalid_dependency_is_refused_with_what_is_expected() {
    for text in [
        "",
        "afterok",
        "afterok:",
        "afterok:x",
        "soon:1",
        "afterok:1,after:2?after:3",
        "singleton:4",
        "afterok:1+5",
        "after:1+x",
        "expand:7",
    ] {
        let refused = text.parse::<DependencyRequest>();
        assert!(
            refused.is_err_and(|bad| bad.field == "dependency" && !bad.expected.is_empty()),
            "{text}"
        );
    }
}

#[test]
fn ends_decide_by_their_success() {
    use DependencyKind::{AfterAny, AfterNotOk, AfterOk};
    let cases = [
        (AfterOk, ends(1, 0), Unmet),
        (AfterOk, ends(0, 0), Met),
        (AfterOk, ends(3, 1), Never),
        (AfterAny, ends(1, 1), Unmet),
        (AfterAny, ends(0, 2), Met),
        (AfterNotOk, ends(1, 1), Unmet),
        (AfterNotOk, ends(0, 1), Met),
        (AfterNotOk, ends(0, 0), Never),
    ];

    for (kind, facts, expected) in cases {
        assert_eq!(verdict_of(on(kind, 1, 4), facts), expected, "{kind} {facts:?}");
    }
}

#[test]
fn minutes_count_from_the_last_start() {
    let started =
        |waiting, last| DependencyFacts::Starts { waiting, last: Millis::from_secs(last) };
    let plain = on(DependencyKind::After, 1, 2);
    let later = Condition { delay: Millis::from_secs(120), ..plain.clone() };

    assert_eq!(verdict_of(plain.clone(), started(1, 50)), Unmet);
    assert_eq!(verdict_of(plain, started(0, 50)), Met);
    assert_eq!(verdict_of(later, started(0, 50)), MetAt(Millis::from_secs(170)));
}

#[test]
fn a_task_waits_for_the_task_of_the_same_index_only() {
    let corresponding = Condition { shift: -2, ..on(DependencyKind::AfterCorr, 10, 3) };
    let both = dependency(vec![corresponding]);
    let question = |place| both.questions(JobId::from_number(50), place).next();
    let of =
        |job| Some(DependencyQuestion::Ends(JobRange { first: JobId::from_number(job), jobs: 1 }));

    assert_eq!([question(1), question(2), question(4), question(5)], [None, of(10), of(12), None]);
    assert_eq!(both.verdict(JobId::from_number(50), 1, |_| None), Met, "there is no counterpart");
}

#[test]
fn all_conditions_or_one_of_them_have_to_be_met() {
    let facts = |question| match question {
        DependencyQuestion::Ends(range) if range.first.number() == 1 => Some(ends(0, 0)),
        DependencyQuestion::Ends(range) if range.first.number() == 2 => Some(ends(0, 1)),
        DependencyQuestion::Ends(_) => Some(ends(1, 0)),
        DependencyQuestion::Starts(_) | DependencyQuestion::Earlier(_) => None,
    };
    let of = |any, jobs: &[u64]| {
        let conditions = jobs.iter().map(|job| on(DependencyKind::AfterOk, *job, 1)).collect();
        let dependency = Dependency { any, ..dependency(conditions) };
        dependency.verdict(JobId::from_number(99), 0, facts)
    };

    assert_eq!([of(false, &[1, 3]), of(false, &[1, 2]), of(false, &[1])], [Unmet, Never, Met]);
    assert_eq!([of(true, &[2, 3]), of(true, &[2]), of(true, &[2, 1])], [Unmet, Never, Met]);
}

#[test]
fn a_singleton_waits_for_earlier_jobs_and_unknown_facts_allow_no_start() {
    let single = Condition {
        kind: DependencyKind::Singleton,
        on: None,
        name: String::new(),
        delay: Millis::ZERO,
        shift: 0,
        members: 1,
    };
    let waits = DependencyFacts::Earlier(Some(JobId::from_number(3)));

    assert_eq!(verdict_of(single.clone(), waits), Unmet);
    assert_eq!(verdict_of(single.clone(), DependencyFacts::Earlier(None)), Met);
    assert_eq!(dependency(vec![single]).verdict(JobId::from_number(9), 0, |_| None), Unmet);
}

#[test]
fn a_dependency_is_shown_as_it_was_written_and_survives_its_storage() {
    let later = Condition { delay: Millis::from_secs(300), ..on(DependencyKind::After, 5, 1) };
    let both = dependency(vec![on(DependencyKind::AfterOk, 12, 3), later]);

    assert_eq!(both.to_string(), "afterok:12,after:5+5");
    let stored = serde_json::to_string(&both).unwrap();
    assert_eq!(serde_json::from_str::<Dependency>(&stored).unwrap(), both);
}
