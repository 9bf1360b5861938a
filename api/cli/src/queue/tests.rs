use time::macros::datetime;

use super::*;

fn job(id: u64, state: &str, short: &str) -> JobView {
    JobView {
        id,
        name_id: id.to_string(),
        array_id: None,
        array_index: None,
        gang: None,
        name: "train".into(),
        user: "ada".into(),
        state: state.into(),
        state_short: short.into(),
        reason: None,
        reason_text: None,
        gpu_request: "any slice".into(),
        class: "offline".into(),
        priority: 5,
        submitted_at: datetime!(2026-01-01 12:00 UTC),
        started_at: None,
        ended_at: None,
        exit_code: None,
        attempts: 0,
        node: None,
        gpu: None,
        gpu_index: None,
        slice: None,
        profile: None,
    }
}

fn waiting_task(id: u64, index: u32) -> JobView {
    JobView {
        name_id: format!("10_{index}"),
        array_id: Some(10),
        array_index: Some(index),
        reason: Some("node_not_avail".into()),
        ..job(id, "queued", "PD")
    }
}

#[test]
fn running_jobs_come_first_and_waiting_tasks_share_a_line() {
    let running = JobView {
        started_at: Some(datetime!(2026-01-01 12:00:10 UTC)),
        node: Some("n1".into()),
        gpu_index: Some(0),
        profile: Some("1g.5gb".into()),
        ..job(20, "running", "R")
    };
    let items = vec![running, waiting_task(13, 3), waiting_task(12, 2), waiting_task(10, 0)];
    let page = JobPage { items, next_cursor: None };

    let text = draw(&page, Some(HEADER), datetime!(2026-01-01 12:01:15 UTC));

    let expected = "\
JOBID     NAME   USER  ST  TIME  CLASS    REQUEST    GPU       NODE(REASON)
20        train  ada   R   1:05  offline  any slice  0:1g.5gb  n1
10_0      train  ada   PD  0:00  offline  any slice  -         (NodeNotAvail)
10_[2-3]  train  ada   PD  0:00  offline  any slice  -         (NodeNotAvail)
";
    assert_eq!(text, expected);
}

#[test]
fn states_are_read_as_people_write_them() {
    for (text, words) in [
        ("PD", "queued,held"),
        ("r", "running"),
        ("RUNNING", "running"),
        ("pending,CG", "queued,held,stopping"),
        ("COMPLETED", "succeeded"),
        ("timed_out", "timed_out"),
        ("TIMEOUT", "timed_out"),
        ("active", "active"),
    ] {
        assert_eq!(parse_states(text), Ok(StateList(words.into())), "{text:?}");
    }
    assert!(parse_states("all").unwrap().0.contains("queued,held,placing"));
    assert!(parse_states("sleeping").unwrap_err().to_string().contains("PD, CF"));
}

fn drawn(format: &str, header: bool) -> String {
    let running = JobView {
        name: "long-training".into(),
        started_at: Some(datetime!(2026-01-01 12:00:10 UTC)),
        node: Some("n1".into()),
        ..job(20, "running", "R")
    };
    let waiting = JobView { reason_text: Some("all taken".into()), ..waiting_task(11, 1) };
    let now = datetime!(2026-01-01 12:01:15 UTC);
    format.parse::<QueueFormat>().unwrap().draw(&[&running, &waiting], header, now)
}

#[test]
fn a_format_of_codes_is_read_as_squeue_reads_it() {
    assert_eq!(
        drawn("%.6i %8j %t %T 100%% %M", true),
        " JOBID NAME     ST STATE   100% TIME\n\
         \x20   20 long-tra R  RUNNING 100% 1:05\n\
         \x20 10_1 train    PD QUEUED  100% 0:00\n"
    );
    assert_eq!(drawn("%i/%R", false), "20/n1\n10_1/(NodeNotAvail)\n");
    assert_eq!(drawn("%S %e", false), "2026-01-01T12:00:10Z N/A\nN/A N/A\n");
}

#[test]
fn a_format_may_name_columns_instead() {
    assert_eq!(drawn("jobid, state,why", false), "20  RUNNING\n10_1  QUEUED  all taken\n");
    assert_eq!(drawn("jobid,user", true), "JOBID  USER\n20     ada\n10_1   ada\n");
}

#[test]
fn a_wrong_format_is_refused_with_the_columns_that_exist() {
    for (format, words) in [
        ("%Z", "%Z is not a known code; choose from %i (jobid)"),
        ("%10", "ends within a code"),
        ("%9999i", "too wide"),
        ("jobid,nam", "\"nam\" is not a column; choose from jobid,"),
    ] {
        let error = format.parse::<QueueFormat>().err().unwrap().to_string();

        assert!(error.contains(words), "{error}");
    }
}
