//! Profiles of tasks' kernels, as the API shows them.

use sqlx::PgConnection;
use tessera_api_types::{KernelTask, KernelTasks, KernelTime, KernelView, TaskKernels};
use tessera_kernel_queue::mean::Mean;
use tessera_kernel_queue::{KernelProfile, Nanos};

use crate::principal::JobScope;
use crate::store::columns::RowRef;
use crate::store::{StoreError, kernel_profiles};

/// Maximum number of tasks in one answer.
const TASKS_MAX: i64 = 1_000;

/// Lists the tasks that have a profile, the latest first.
pub(super) async fn tasks(
    at: &mut PgConnection,
    scope: &JobScope,
) -> Result<KernelTasks, StoreError> {
    let rows = sqlx::query!(
        r#"
        SELECT task_key, kernels, measured, reports, updated_at
          FROM kernel_profiles
         WHERE $2::text[] IS NULL OR split_part(task_key, ': ', 1) = ANY ($2)
         ORDER BY updated_at DESC, task_key LIMIT $1
        "#,
        TASKS_MAX,
        scope.users() as Option<&[String]>,
    )
    .fetch_all(at)
    .await
    .map_err(StoreError::while_trying_to("list the kernel profiles"))?;
    let items = rows.into_iter().map(|found| {
        let row = RowRef::new("kernel_profiles", &found.task_key);
        Ok(KernelTask {
            kernels: row.number("kernels", found.kernels)?,
            measured: found.measured,
            reports: row.number("reports", found.reports)?,
            updated_at: found.updated_at,
            task_key: found.task_key,
        })
    });
    Ok(KernelTasks { items: items.collect::<Result<_, StoreError>>()? })
}

/// Shows one task's kernels, those with the most device time first.
pub(super) async fn task(
    at: &mut PgConnection,
    task: &str,
) -> Result<Option<TaskKernels>, StoreError> {
    let Some(profile) = kernel_profiles::read_profile(at, task).await? else { return Ok(None) };
    let mut kernels: Vec<_> = profile.kernels().iter().map(view).collect();
    let weight = |kernel: &KernelView| {
        kernel.took.as_ref().map_or(0.0, |took| took.mean_us * f64::from(took.samples))
    };
    kernels.sort_by(|a, b| weight(b).total_cmp(&weight(a)));
    Ok(Some(TaskKernels { task_key: task.to_owned(), measured: profile.is_measured(), kernels }))
}

fn view(kernel: &KernelProfile) -> KernelView {
    KernelView {
        name: kernel.id.name().to_owned(),
        grid: kernel.id.grid.0.to_vec(),
        block: kernel.id.block.0.to_vec(),
        took: time(&kernel.took),
        gap: time(&kernel.gap),
    }
}

fn time(mean: &Mean) -> Option<KernelTime> {
    let of = mean.mean()?;
    Some(KernelTime { mean_us: micros(of), samples: mean.samples(), tight: mean.is_tight() })
}

fn micros(time: Nanos) -> f64 {
    std::time::Duration::from_nanos(time.get()).as_secs_f64() * 1e6
}
