//! What nodes learn of kernels adds up in the store, each report once.

use tessera_controller::store::{connect, kernel_profiles};
use tessera_kernel_queue::{Dims, KernelId, Nanos, ProfileDelta, TaskProfile};
use tessera_model::NodeId;

fn note(profile: &mut TaskProfile, samples: &[(u8, u64)]) {
    for (number, took) in samples {
        let sides = Dims([1; 3]);
        let id = KernelId::new(format!("k{number}"), sides, sides).unwrap();
        let index = profile.intern(&id).unwrap();
        let kernel = profile.kernel_mut(index).unwrap();
        kernel.took.add(Nanos::new(*took));
        profile.pairs.add(None, index, Nanos::new(*took / 3));
    }
}

fn node(number: u128) -> NodeId {
    NodeId::from_uuid(uuid::Uuid::from_u128(number))
}

#[tokio::test]
async fn reports_of_two_nodes_add_up_to_the_bit_and_count_once_each() {
    let mut connection = connect(&crate::database::fresh().await).await.unwrap();
    let task = "ada: train";
    assert_eq!(kernel_profiles::read_profile(&mut connection, task).await.unwrap(), None);
    let samples = |seed: u64| -> Vec<(u8, u64)> {
        (0..40).map(|n| (u8::try_from(n % 7).unwrap(), 1_000_000 + seed * 977 + n * n)).collect()
    };
    let mut expected = TaskProfile::default();
    let mut base = TaskProfile::default();
    for (number, who) in [(1, 1), (2, 1), (1, 2), (3, 1)] {
        let mut now = base.clone();
        let new = samples(number * 10 + u64::try_from(who).unwrap());
        note(&mut now, &new);
        note(&mut expected, &new);
        let learned = ProfileDelta::between(&base, &now);
        for _ in 0..2 {
            let reported =
                kernel_profiles::add_report(&mut connection, node(who), number, task, &learned);
            reported.await.unwrap();
        }
        base = kernel_profiles::read_profile(&mut connection, task).await.unwrap().unwrap();
    }

    let means = |profile: &TaskProfile| {
        profile.kernels().iter().map(|k| (k.id.clone(), k.took)).collect::<Vec<_>>()
    };
    assert_eq!(means(&base), means(&expected));
}

#[tokio::test]
async fn profiles_that_changed_in_one_moment_are_all_read() {
    let mut connection = connect(&crate::database::fresh().await).await.unwrap();
    let mut known = TaskProfile::default();
    note(&mut known, &[(1, 1_000_000); 40]);
    let index = known.index(&known.kernels()[0].id.clone()).unwrap();
    known.kernel_mut(index).unwrap().gap.add(Nanos::new(3_000_000));
    known.close_measuring();
    let bytes = serde_json::to_vec(&known).unwrap();
    let tasks = 2 * kernel_profiles::BUSY_MAX + 7;
    sqlx::query(
        "INSERT INTO kernel_profiles (task_key, profile, kernels, measured) \
         SELECT 'ada: ' || number, $1, 1, true FROM generate_series(1, $2) AS number",
    )
    .bind(&bytes)
    .bind(tasks)
    .execute(&mut connection)
    .await
    .unwrap();

    let mut read = kernel_profiles::ReadTo::default();
    let mut found = std::collections::BTreeSet::new();
    loop {
        let (busy, next) = kernel_profiles::read_task_loads(&mut connection, &read).await.unwrap();
        for (task, _) in busy {
            assert!(found.insert(task.clone()), "{task} was read twice");
        }
        if next == read {
            break;
        }
        read = next;
    }

    assert_eq!(i64::try_from(found.len()).unwrap(), tasks);
    // Only what changes afterwards is read again.
    sqlx::query("UPDATE kernel_profiles SET updated_at = now() WHERE task_key = 'ada: 9'")
        .execute(&mut connection)
        .await
        .unwrap();
    let (busy, _) = kernel_profiles::read_task_loads(&mut connection, &read).await.unwrap();
    assert_eq!(busy.len(), 1);
    assert_eq!(busy[0].0, "ada: 9");
    assert_eq!(Some(busy[0].1.busy), known.busy());
}
