//! What the cluster could ever hold.

use tessera_model::Bytes;
use tessera_model::spec::GpuRequest::{Unknown, Whole};
use tessera_placement::{ClusterView, Feasibility, largest_possible};

use crate::build::*;

#[test]
fn the_largest_place_is_the_largest_profile_or_a_gpu_with_mig_off() {
    let mixed = cluster([a100(&[]), a30(&[])]);
    let with_whole = cluster([a100(&[]), unpartitioned(81_920, IDLE)]);

    assert_eq!(largest_possible(&mixed), Some(Bytes::from_mib(40_192)));
    assert_eq!(largest_possible(&with_whole), Some(Bytes::from_mib(81_920)));
    assert_eq!(largest_possible(&ClusterView::default()), None);
}

#[test]
fn what_runs_now_does_not_matter() {
    let full = cluster([a100(&[("7g.40gb", 0, taken(17))])]);

    for ask in [Unknown, Whole, gib(5), named("1g.5gb+me")] {
        assert_eq!(could_ever_fit(&full, &ask), Feasibility::Yes, "{ask}");
    }
}

#[test]
fn unavailable_hardware_differs_from_hardware_that_was_never_seen() {
    let cluster = cluster([a30(&[]), away(a100(&[]))]);

    assert_eq!(could_ever_fit(&cluster, &gib(20)), Feasibility::Yes);
    assert_eq!(could_ever_fit(&cluster, &gib(30)), Feasibility::OnlyUnavailable);
    assert_eq!(could_ever_fit(&cluster, &named("3g.20gb")), Feasibility::OnlyUnavailable);
    let never = could_ever_fit(&cluster, &gib(40));
    let Feasibility::Never { largest, profiles } = never else { panic!("{never:?}") };
    assert_eq!(largest, Some(Bytes::from_mib(40_192)));
    assert_eq!(profiles.first().map(String::as_str), Some("1g.5gb"));
    assert!(profiles.contains(&"4g.24gb".to_owned()), "{profiles:?}");
}

#[test]
fn an_empty_cluster_holds_nothing() {
    assert_eq!(
        could_ever_fit(&ClusterView::default(), &Unknown),
        Feasibility::Never { largest: None, profiles: Vec::new() }
    );
}
