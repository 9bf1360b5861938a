use super::*;
use crate::steps::layout::StepNode;

fn layout(nodes: &[&[usize]]) -> StepLayout {
    let node = |(index, ranks): (usize, &&[usize])| StepNode {
        name: format!("n{index}"),
        ranks: ranks.to_vec(),
    };
    StepLayout { nodes: nodes.iter().enumerate().map(node).collect() }
}

fn exchange(nodes: &[&[usize]]) -> RankExchange {
    RankExchange::new("step_7.0", &layout(nodes))
}

/// Sends a text, and returns the texts of the answers with their ranks.
fn send(exchange: &mut RankExchange, rank: usize, text: &str) -> Vec<(usize, String)> {
    let actions = exchange.take(rank, text.as_bytes());
    let texts = actions.into_iter().map(|action| match action {
        RankAction::Answer { rank, bytes } => (rank, String::from_utf8(bytes).unwrap()),
        RankAction::Abort { rank, reason } => (rank, format!("abort: {reason}")),
    });
    texts.collect()
}

/// Writes a message of PMI-2.
fn pairs(text: &str) -> String {
    format!("{:6}{text}", text.len())
}

#[test]
fn a_process_of_mpich_gets_the_answers_that_hydra_gives() {
    let mut step = exchange(&[&[0, 1]]);

    // Recorded from MPICH 4.0.2 under its own mpirun.
    for (request, answer) in [
        (
            "cmd=init pmi_version=1 pmi_subversion=1\n",
            "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
        ),
        ("cmd=get_maxes\n", "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n"),
        ("cmd=get_appnum\n", "cmd=appnum appnum=0\n"),
        ("cmd=get_my_kvsname\n", "cmd=my_kvsname kvsname=step_7.0\n"),
        (
            "cmd=get kvsname=step_7.0 key=PMI_process_mapping\n",
            "cmd=get_result rc=0 msg=success value=(vector,(0,1,2))\n",
        ),
        (
            "cmd=put kvsname=step_7.0 key=-bcast-1-0 value=2F64\n",
            "cmd=put_result rc=0 msg=success\n",
        ),
        ("cmd=get_universe_size\n", "cmd=universe_size size=2\n"),
        ("cmd=finalize\n", "cmd=finalize_ack\n"),
    ] {
        assert_eq!(send(&mut step, 0, request), [(0, answer.to_owned())]);
    }
    let found = send(&mut step, 1, "cmd=get kvsname=step_7.0 key=-bcast-1-0\n");
    assert_eq!(found, [(1, "cmd=get_result rc=0 msg=success value=2F64\n".to_owned())]);
}

#[test]
fn a_barrier_opens_for_all_when_the_last_process_comes() {
    let mut step = exchange(&[&[0, 1], &[2]]);

    assert!(send(&mut step, 2, "cmd=barrier_in\n").is_empty());
    assert!(send(&mut step, 0, "cmd=barr").is_empty());
    assert!(send(&mut step, 0, "ier_in\n").is_empty());
    let opened = send(&mut step, 1, "cmd=barrier_in\n");

    assert_eq!(opened, [0, 1, 2].map(|rank| (rank, "cmd=barrier_out\n".to_owned())));
    assert!(send(&mut step, 1, "cmd=barrier_in\n").is_empty(), "the next one");
}

#[test]
fn a_process_of_version_two_begins_in_the_form_of_version_one() {
    let mut step = exchange(&[&[0], &[1]]);
    let init = send(&mut step, 1, "cmd=init pmi_version=2 pmi_subversion=0\n");
    assert_eq!(init[0].1, "cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n");

    let full = send(&mut step, 1, &pairs("cmd=fullinit;pmijobid=x;pmirank=1;threaded=FALSE;"));

    let expected = "cmd=fullinit-response;rc=0;pmi-version=2;pmi-subversion=0;rank=1;size=2;appnum=0;\
                    debugged=FALSE;pmiverbose=FALSE;";
    assert_eq!(full, [(1, pairs(expected))]);
    let put = send(&mut step, 1, &pairs("cmd=kvs-put;thrid=0x1;key=port;value=a;;b=c;"));
    assert_eq!(put, [(1, pairs("cmd=kvs-put-response;thrid=0x1;rc=0;"))]);
    let got = send(&mut step, 1, &pairs("cmd=kvs-get;jobid=step_7.0;srcid=1;key=port;"));
    assert_eq!(got, [(1, pairs("cmd=kvs-get-response;rc=0;found=TRUE;value=a;;b=c;"))]);
    let absent = send(&mut step, 1, &pairs("cmd=kvs-get;key=other;"));
    assert_eq!(absent, [(1, pairs("cmd=kvs-get-response;rc=0;found=FALSE;"))]);
    let size = send(&mut step, 1, &pairs("cmd=info-getjobattr;key=universeSize;"));
    assert_eq!(size, [(1, pairs("cmd=info-getjobattr-response;rc=0;found=TRUE;value=2;"))]);
}

#[test]
fn values_of_a_node_are_waited_for_on_that_node_only() {
    let mut step = exchange(&[&[0, 1], &[2]]);
    for rank in 0..3 {
        send(&mut step, rank, "cmd=init pmi_version=2 pmi_subversion=0\n");
    }
    let get = pairs("cmd=info-getnodeattr;key=shm;wait=TRUE;");
    assert!(send(&mut step, 1, &get).is_empty() && send(&mut step, 2, &get).is_empty());

    let answers = send(&mut step, 0, &pairs("cmd=info-putnodeattr;key=shm;value=/x;"));

    let waiting = (1, pairs("cmd=info-getnodeattr-response;rc=0;found=TRUE;value=/x;"));
    assert_eq!(answers, [waiting, (0, pairs("cmd=info-putnodeattr-response;rc=0;"))]);
}

#[test]
fn a_process_is_missed_between_its_init_and_its_finalize() {
    let mut step = exchange(&[&[0, 1]]);
    assert!(!step.is_missed(0), "a program without MPI");
    send(&mut step, 0, "cmd=init pmi_version=1 pmi_subversion=1\n");
    assert!(step.is_missed(0));
    send(&mut step, 0, "cmd=finalize\n");
    assert!(!step.is_missed(0) && !step.is_missed(9));
}

#[test]
fn aborts_and_messages_that_make_no_sense_end_the_step() {
    let mut step = exchange(&[&[0, 1]]);

    let aborted = send(&mut step, 1, "cmd=abort exitcode=3\n");
    assert_eq!(aborted, [(1, "abort: code 3".to_owned())]);
    send(&mut step, 0, "cmd=init pmi_version=2 pmi_subversion=0\n");
    let aborted = send(&mut step, 0, "lengthcmd=x;");
    assert_eq!(aborted, [(0, "abort: a message of PMI-2 has no length".to_owned())]);
    let endless = "x".repeat(MESSAGE_MAX + 1);
    assert_eq!(send(&mut step, 1, &endless)[0].1, "abort: a message of PMI is too long");
}

#[test]
fn what_is_not_possible_is_refused_and_the_process_goes_on() {
    let mut step = exchange(&[&[0]]);
    let long = "k".repeat(KEY_MAX + 1);
    let long = format!("cmd=put kvsname=s key={long} value=1\n");
    for request in [
        "cmd=init pmi_version=3 pmi_subversion=0\n",
        "cmd=create_kvs\n",
        "cmd=get kvsname=s key=none\n",
        "mcmd=spawn\nnprocs=1\nexecname=a\ntotspawns=2\nspawnssofar=1\nendcmd\nmcmd=spawn\ntotspawns=2\nspawnssofar=2\nendcmd\n",
        long.as_str(),
    ] {
        let answers = send(&mut step, 0, request);
        assert_eq!(answers.len(), 1, "{request}");
        assert!(answers[0].1.contains("rc=-1"), "{answers:?}");
    }
    assert_eq!(send(&mut step, 0, "cmd=get_appnum\n")[0].1, "cmd=appnum appnum=0\n");
}

#[test]
fn a_published_port_is_found_until_it_is_withdrawn() {
    let mut step = exchange(&[&[0, 1]]);
    send(&mut step, 0, "cmd=publish_name service=s port=tag#0 description#x\n");
    let found = send(&mut step, 1, "cmd=lookup_name service=s\n");
    assert_eq!(found[0].1, "cmd=lookup_result rc=0 info=ok port=tag#0 description#x\n");
    send(&mut step, 0, "cmd=unpublish_name service=s\n");
    assert!(send(&mut step, 1, "cmd=lookup_name service=s\n")[0].1.contains("rc=1"));
}

#[test]
fn the_nodes_of_ranks_are_written_as_blocks() {
    assert_eq!(mapping(&[0, 0, 1, 1, 2, 2]), "(vector,(0,3,2))");
    assert_eq!(mapping(&[0, 0, 1]), "(vector,(0,1,2),(1,1,1))");
    assert_eq!(mapping(&[0, 1, 0, 1]), "(vector,(0,2,1),(0,2,1))");
}
