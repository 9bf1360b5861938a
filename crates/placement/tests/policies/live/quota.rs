//! `tessera` in a controller, under quotas.

use super::*;

fn accounts(of: &[(u64, &'static str, u32)]) -> BTreeMap<JobId, (&'static str, u32)> {
    of.iter().map(|(job, name, quota)| (JobId::from_number(*job), (*name, *quota))).collect()
}

/// Assigns each job to its account: all jobs of a user have one account.
fn owned(mut queue: Vec<QueuedJob>, facts_known: &KnownFacts) -> Vec<QueuedJob> {
    for job in &mut queue {
        job.user = facts_known.accounts.get(&job.id).map_or("nobody", |(name, _)| name).into();
    }
    queue
}

/// Returns the compute slices of every account after the decisions are carried out.
fn held_after(
    cluster: &ClusterView,
    facts_known: &KnownFacts,
    decided: &[Decision],
) -> BTreeMap<&'static str, u32> {
    let mut placements: BTreeMap<JobId, u32> = BTreeMap::new();
    let slices = |gpu: &GpuView, slot: tessera_model::mig::Slot| {
        u32::from(gpu.mig.as_ref().unwrap().geometry.profile(slot.profile).unwrap().compute_slices)
    };
    for gpu in &cluster.gpus {
        for instance in &gpu.instances {
            if let (InstanceState::Taken { job }, Some(slot)) = (&instance.state, instance.slot) {
                placements.insert(*job, slices(gpu, slot));
            }
        }
    }
    for decision in decided {
        let gpu =
            |id: &tessera_model::GpuId| cluster.gpus.iter().find(|gpu| gpu.id == *id).unwrap();
        match decision {
            Decision::Start { job, place, .. } => {
                // Shares are counted with their slice, which another job may have.
                let slot = place.slot.map_or(7, |slot| slices(gpu(&place.gpu), slot));
                placements.insert(*job, slot);
            }
            Decision::Reshape { reshape, .. } => placements.extend(
                reshape
                    .placements
                    .iter()
                    .map(|s| (s.job, slices(gpu(&reshape.gpu), s.slot.unwrap()))),
            ),
            Decision::Wait { .. } | Decision::Preempt { .. } => {}
        }
    }
    let mut held: BTreeMap<&'static str, u32> = BTreeMap::new();
    for (job, slices) in placements {
        if let Some((name, _)) = facts_known.accounts.get(&job) {
            *held.entry(name).or_default() += slices;
        }
    }
    held
}

#[test]
fn an_account_gets_no_more_than_its_quota_with_that_reason() {
    let view = cluster([a100(&[("3g.20gb", 4, taken(9))])]);
    let facts_known = KnownFacts {
        accounts: accounts(&[(9, "ada", 4), (1, "ada", 4), (2, "ada", 4), (3, "bob", 9)]),
        ..KnownFacts::default()
    };

    let decided =
        decide(&view, &facts_known, &owned(queue([gib(4), gib(4), gib(4)]), &facts_known));

    let shown = short(&view, &decided);
    assert!(shown.iter().any(|line| line.starts_with("1: +1g.5gb")), "{shown:?}");
    assert!(shown.iter().any(|line| line.starts_with("3: +1g.5gb")), "{shown:?}");
    let Some(Decision::Wait { reason, why, .. }) =
        decided.iter().find(|d| matches!(d, Decision::Wait { job, .. } if job.number() == 2))
    else {
        panic!("{shown:?}")
    };
    assert_eq!(reason.word(), "quota");
    assert_eq!(
        why.summary,
        "jobs of ada hold 4 of their limit of 4 compute slices, and this job needs \
         at least 1 more"
    );
    assert_eq!(
        why.would_start_if.as_deref(),
        Some("jobs of ada that hold 1 compute slice end, or the quota is raised to 5")
    );
}

#[test]
fn a_request_beyond_the_quota_gets_the_quota_that_it_needs() {
    let view = cluster([a100(&[])]);
    let facts_known = KnownFacts { accounts: accounts(&[(1, "ada", 4)]), ..KnownFacts::default() };

    let decided = decide(&view, &facts_known, &queue([GpuRequest::Whole]));

    let [Decision::Wait { why, .. }] = &decided[..] else { panic!("{decided:?}") };
    assert_eq!(why.would_start_if.as_deref(), Some("the quota of ada is raised to 7"));
}

#[test]
fn a_job_that_waits_for_its_quota_holds_up_no_later_job() {
    let view = cluster([a100(&[])]);
    let facts_known =
        KnownFacts { accounts: accounts(&[(1, "ada", 1), (2, "bob", 7)]), ..KnownFacts::default() };

    let decided = decide(&view, &facts_known, &owned(queue([gib(15), gib(15)]), &facts_known));

    let started =
        decided.iter().any(|d| matches!(d, Decision::Start { job, .. } if job.number() == 2));
    assert!(started, "{:?}", short(&view, &decided));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_account_gets_more_than_its_quota(
        cluster in arbitrary::cluster(),
        queue in arbitrary::queue(),
        known in prop::collection::btree_map(residents(), 1_u64..100_000, 0..60),
        quotas in prop::collection::vec(0_u32..20, 3),
        whose in prop::collection::btree_map(residents(), 0_usize..3, 0..80),
    ) {
        let cluster = numbered(cluster);
        let mut facts_known = KnownFacts::of(&known.into_iter().collect::<Vec<_>>());
        let name = |at: usize| (["ada", "bob", "cyd"][at], quotas[at]);
        facts_known.accounts =
            whose.into_iter().map(|(job, at)| (JobId::from_number(job), name(at))).collect();
        let queue = owned(queue, &facts_known);
        let slices_of = |decided: &[Decision]| held_after(&cluster, &facts_known, decided);
        let before = slices_of(&[]);

        let decided = decide(&cluster, &facts_known, &queue);

        for (account, holds) in slices_of(&decided) {
            let quota = facts_known.accounts.values().find(|(name, _)| *name == account).unwrap().1;
            let had = before.get(account).copied().unwrap_or(0);
            prop_assert!(holds <= quota.max(had), "{account} holds {holds} of {quota}, had {had}");
        }
        for decision in &decided {
            if let Decision::Wait { job, reason, .. } = decision {
                prop_assert!(reason.word() != "quota" || facts_known.accounts.contains_key(job));
            }
        }
    }
}
