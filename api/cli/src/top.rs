//! `tessera top`: the current and recent load of every GPU, and its jobs.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use console::Term;
use tessera_model::Bytes;

use super::failure::CommandFailure;
use super::session::{CommandSession, OutputScreen, or_dash, write_out};
use super::spark;
use tessera_api_types::{
    ClusterSeries, GpuListing, GpuSeries, JobFigures, SeriesPoint, SeriesQuery,
};

/// Columns of a drawn line, and number of points that are requested.
const WIDTH: usize = 24;
/// How far the drawn lines look back, in seconds: a column for each report of a node.
const SINCE_SECS: u64 = 120;
/// Lines of a terminal whose size is unknown.
const LINES: usize = 24;

#[derive(Args)]
pub struct Top {
    /// Show only GPUs of this node
    #[arg(short = 'w', long, value_name = "NODE")]
    node: Option<String>,
    /// Print once and exit; this is the default if standard output is not a terminal
    #[arg(long)]
    once: bool,
    /// Seconds between updates
    #[arg(long, value_name = "SECS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
}

impl Top {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        if session.json || self.once || !session.screen.terminal {
            let series = self.series(session).await?;
            let gpus = if session.json { None } else { Some(session.client.gpus().await?) };
            session.print(&series, |series| draw(series, gpus.as_ref(), session.screen))?;
            return Ok(0);
        }
        self.live(session).await
    }

    async fn series(&self, session: &CommandSession) -> Result<ClusterSeries, CommandFailure> {
        let points = u32::try_from(WIDTH).ok();
        let query = SeriesQuery { since_secs: Some(SINCE_SECS), points };
        let mut series = session.client.series(&query).await?;
        if let Some(node) = &self.node {
            series.items.retain(|gpu| gpu.node == *node);
        }
        Ok(series)
    }

    /// Redraws until the user ends it.
    async fn live(&self, session: &CommandSession) -> Result<u8, CommandFailure> {
        let ended = tokio::signal::ctrl_c();
        tokio::pin!(ended);
        // The alternate screen: the earlier contents are restored at the end.
        write_out("\x1b[?1049h\x1b[?25l")?;
        let shown = loop {
            if let Err(failure) = self.draw_screen(session).await {
                break Err(failure);
            }
            tokio::select! {
                _ = &mut ended => break Ok(0),
                () = tokio::time::sleep(Duration::from_secs(self.interval)) => {}
            }
        };
        write_out("\x1b[?25h\x1b[?1049l")?;
        shown
    }

    async fn draw_screen(&self, session: &CommandSession) -> Result<(), CommandFailure> {
        let series = self.series(session).await?;
        let gpus = session.client.gpus().await?;
        let text = draw(&series, Some(&gpus), session.screen);
        let lines = Term::stdout().size_checked().map_or(LINES, |(lines, _)| lines.into());
        write_out(&frame(&text, lines))
    }
}

/// Draws a frame over the previous one, cut to the terminal.
fn frame(text: &str, lines: usize) -> String {
    let total = text.lines().count();
    let space = lines.saturating_sub(1).max(1);
    let mut frame = String::from("\x1b[H");
    let whole = if total > space { space.saturating_sub(1) } else { total };
    for line in text.lines().take(whole) {
        let _ = write!(frame, "{line}\x1b[K\r\n");
    }
    if whole < total {
        let _ = write!(frame, "… {} more lines\x1b[K\r\n", total - whole);
    }
    frame.push_str("\x1b[J");
    frame
}

/// Names of jobs by number.
type Names<'g> = BTreeMap<u64, &'g str>;

fn draw(series: &ClusterSeries, gpus: Option<&GpuListing>, screen: OutputScreen) -> String {
    if series.items.is_empty() {
        return "No GPU has been reported yet.\n".to_owned();
    }
    let names = gpus.map(names).unwrap_or_default();
    let busy = series.items.iter().filter(|gpu| !gpu.jobs.is_empty()).count();
    let jobs: usize = series.items.iter().map(|gpu| gpu.jobs.len()).sum();
    let watts: f64 = series.items.iter().filter_map(|gpu| newest(gpu, |p| p.power_watts)).sum();
    let count = series.items.len();
    let mut text =
        format!("GPUs {count}   with jobs {busy}   jobs {jobs}   power {watts:.0} W\n\n");
    for gpu in &series.items {
        text.push_str(&one(gpu, &names, screen));
    }
    text
}

fn names(gpus: &GpuListing) -> Names<'_> {
    let instances = || gpus.items.iter().flat_map(|gpu| &gpu.instances);
    let alone = instances().filter_map(|i| Some((i.job_id?, i.job_name.as_deref()?)));
    let sharers = instances().flat_map(|instance| &instance.sharers);
    let sharers = sharers.filter_map(|sharer| Some((sharer.job_id, sharer.job_name.as_deref()?)));
    alone.chain(sharers).collect()
}

fn one(gpu: &GpuSeries, names: &Names, screen: OutputScreen) -> String {
    let title = format!("{} GPU {}", gpu.node, gpu.index);
    let mut text = screen.paint("1", &title);
    if gpu.points.is_empty() {
        text.push_str("  no measurements\n");
    } else {
        let memory =
            spark::figure(&gpu.points, gpu.step_secs, |p| p.memory_bytes.map(spark::bytes));
        let memory = spark::line(&memory, spark::bytes(gpu.memory_total_bytes), WIDTH);
        let used = newest(gpu, |p| p.memory_bytes).map(Bytes::new);
        let activity = spark::figure(&gpu.points, gpu.step_secs, |p| p.activity);
        let activity = spark::line(&activity, 1.0, WIDTH);
        let percent = newest(gpu, |p| p.activity).map(percent);
        let watts = newest(gpu, |p| p.power_watts).map(|watts| format!("{watts:.0} W"));
        let total = Bytes::new(gpu.memory_total_bytes);
        let _ = writeln!(text, "  {}", or_dash(watts));
        let _ = writeln!(text, "  memory {memory}  {} of {total}", or_dash(used));
        let _ = writeln!(text, "  busy   {activity}  {}", or_dash(percent));
    }
    for job in &gpu.jobs {
        text.push_str(&job_line(job, names));
    }
    text
}

fn job_line(job: &JobFigures, names: &Names) -> String {
    let name = names.get(&job.job_id).copied().unwrap_or_default();
    format!(
        "    {:<8} {name:<20} {:>10}  {:>5}  {:>10}\n",
        job.job_id,
        or_dash(job.memory_bytes.map(Bytes::new)),
        or_dash(job.activity.map(percent)),
        or_dash(job.energy_joules.map(|joules| format!("{joules:.1} J"))),
    )
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Returns the newest value of a figure.
fn newest<T>(gpu: &GpuSeries, read: impl Fn(&SeriesPoint) -> Option<T>) -> Option<T> {
    gpu.points.iter().rev().find_map(read)
}

#[cfg(test)]
mod tests {
    use time::OffsetDateTime;

    use super::*;

    const PLAIN: OutputScreen = OutputScreen { terminal: false, colour: false };

    fn gpu(points: Vec<SeriesPoint>) -> GpuSeries {
        GpuSeries {
            gpu: "GPU-1".into(),
            node: "node-a".into(),
            index: 0,
            memory_total_bytes: 40 << 30,
            step_secs: 5,
            points,
            jobs: vec![JobFigures {
                job_id: 42,
                attempt: "att_1".into(),
                memory_bytes: Some(3 << 30),
                activity: Some(0.25),
                energy_joules: None,
            }],
        }
    }

    fn point(secs: i64, share: f64) -> SeriesPoint {
        SeriesPoint {
            at: OffsetDateTime::from_unix_timestamp(secs).unwrap(),
            memory_bytes: Some(20 << 30),
            memory_max_bytes: Some(20 << 30),
            activity: Some(share),
            activity_max: Some(share),
            power_watts: Some(123.4),
            energy_joules: Some(1.0),
        }
    }

    #[test]
    fn a_gpu_shows_its_lines_its_newest_figures_and_who_has_it() {
        let all = ClusterSeries { items: vec![gpu(vec![point(0, 0.0), point(5, 1.0)])] };

        let text = draw(&all, None, PLAIN);

        assert!(text.starts_with("GPUs 1   with jobs 1   jobs 1   power 123 W\n"), "{text}");
        assert!(text.contains("▁█  100 %"), "{text}");
        assert!(text.contains("▅▅  20 GiB of 40 GiB"), "{text}");
        assert!(text.contains("42"), "{text}");
    }

    #[test]
    fn values_that_were_never_reported_are_shown_as_missing() {
        let all = ClusterSeries { items: vec![gpu(Vec::new())] };

        assert!(draw(&all, None, PLAIN).contains("no measurements"));
        assert!(draw(&ClusterSeries { items: Vec::new() }, None, PLAIN).contains("No GPU"));
    }

    #[test]
    fn a_drawing_never_has_more_lines_than_the_terminal() {
        let text = "x\n".repeat(100);
        for lines in 1..30 {
            assert!(
                frame(&text, lines).matches("\r\n").count()
                    <= lines.max(2) - 1 + usize::from(lines < 3)
            );
        }
        assert!(frame(&text, 10).contains("92 more lines"));
        assert!(!frame("x\n", 10).contains("more"));
    }
}
