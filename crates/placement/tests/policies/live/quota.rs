//! `tessera` in a controller, under quotas.

use super::*;

fn accounts(of: &[(u64, &'static str, u32)]) -> BTreeMap<JobId, (&'static str, u32)> {
    of.iter().map(|(job, name, quota)| (JobId::from_number(*job), (*name, *quota))).collect()
}

/// Makes each job its account's: all jobs of a user have one account.
fn owned(mut queue: Vec<QueuedJob>, told: &Told) -> Vec<QueuedJob> {
    for job in &mut queue {
        job.user = told.accounts.get(&job.id).map_or("nobody", |(name, _)| name).into();
    }
    queue
}

/// Returns the compute slices of every account once the decisions are carried out.
fn held_after(
    cluster: &ClusterView,
    told: &Told,
    said: &[Decision],
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
    for decision in said {
        let gpu =
            |id: &tessera_model::GpuId| cluster.gpus.iter().find(|gpu| gpu.id == *id).unwrap();
        match decision {
            Decision::Start { job, place, .. } => {
                // Sharers' parts are counted with their slice, which others may have.
                let slot = place.slot.map_or(7, |slot| slices(gpu(&place.gpu), slot));
                placements.insert(*job, slot);
            }
            Decision::Reshape { reshape, .. } => placements.extend(
                reshape
                    .placements
                    .iter()
                    .map(|s| (s.job, slices(gpu(&reshape.gpu), s.slot.unwrap()))),
            ),
            Decision::Wait { .. } => {}
        }
    }
    let mut held: BTreeMap<&'static str, u32> = BTreeMap::new();
    for (job, slices) in placements {
        if let Some((name, _)) = told.accounts.get(&job) {
            *held.entry(name).or_default() += slices;
        }
    }
    held
}

#[test]
fn an_account_gets_no_more_than_its_quota_and_is_told_so() {
    let view = cluster([a100(&[("3g.20gb", 4, taken(9))])]);
    let told = Told {
        accounts: accounts(&[(9, "ada", 4), (1, "ada", 4), (2, "ada", 4), (3, "bob", 9)]),
        ..Told::default()
    };

    let said = decide(&view, &told, &owned(queue([gib(4), gib(4), gib(4)]), &told));

    let shown = short(&view, &said);
    assert!(shown.iter().any(|line| line.starts_with("1: +1g.5gb")), "{shown:?}");
    assert!(shown.iter().any(|line| line.starts_with("3: +1g.5gb")), "{shown:?}");
    let Some(Decision::Wait { reason, why, .. }) =
        said.iter().find(|d| matches!(d, Decision::Wait { job, .. } if job.number() == 2))
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
fn who_asks_for_more_than_the_quota_is_told_what_it_would_have_to_be() {
    let view = cluster([a100(&[])]);
    let told = Told { accounts: accounts(&[(1, "ada", 4)]), ..Told::default() };

    let said = decide(&view, &told, &queue([GpuRequest::Whole]));

    let [Decision::Wait { why, .. }] = &said[..] else { panic!("{said:?}") };
    assert_eq!(why.would_start_if.as_deref(), Some("the quota of ada is raised to 7"));
}

#[test]
fn a_job_that_its_quota_holds_keeps_nobody_behind_it_waiting() {
    let view = cluster([a100(&[])]);
    let told = Told { accounts: accounts(&[(1, "ada", 1), (2, "bob", 7)]), ..Told::default() };

    let said = decide(&view, &told, &owned(queue([gib(15), gib(15)]), &told));

    let started =
        said.iter().any(|d| matches!(d, Decision::Start { job, .. } if job.number() == 2));
    assert!(started, "{:?}", short(&view, &said));
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
        let mut told = Told::of(&known.into_iter().collect::<Vec<_>>());
        let name = |at: usize| (["ada", "bob", "cyd"][at], quotas[at]);
        told.accounts =
            whose.into_iter().map(|(job, at)| (JobId::from_number(job), name(at))).collect();
        let queue = owned(queue, &told);
        let slices_of = |said: &[Decision]| held_after(&cluster, &told, said);
        let before = slices_of(&[]);

        let said = decide(&cluster, &told, &queue);

        for (account, holds) in slices_of(&said) {
            let quota = told.accounts.values().find(|(name, _)| *name == account).unwrap().1;
            let had = before.get(account).copied().unwrap_or(0);
            prop_assert!(holds <= quota.max(had), "{account} holds {holds} of {quota}, had {had}");
        }
        for decision in &said {
            if let Decision::Wait { job, reason, .. } = decision {
                prop_assert!(reason.word() != "quota" || told.accounts.contains_key(job));
            }
        }
    }
}
