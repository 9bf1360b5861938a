//! One GPU as a row of boxes, as wide as their memory.

use super::JobNames;
use crate::session::OutputScreen;
use tessera_api_types::{GpuDetails, InstanceDetails};

/// Columns for one memory slice, with its border: enough for `1g.10gb`, and eight of them fit
/// on a terminal of 80 columns.
const SLICE_COLUMNS: usize = 9;
/// Number of slices with which a GPU without MIG is drawn.
const WHOLE_SLICES: u8 = 8;
/// Backgrounds on which both black and white text are readable; jobs use them one after another.
const JOB_STYLES: &[&str] = &["30;46", "30;42", "30;43", "30;45", "30;44", "30;47"];

/// One box.
struct BarCell {
    slices: u8,
    upper: String,
    lower: String,
    fill: char,
    style: &'static str,
}

/// Draws the boxes of `gpu`, four lines.
pub fn draw(gpu: &GpuDetails, names: &JobNames, screen: OutputScreen) -> String {
    boxes(&cells(gpu, names), screen)
}

fn boxes(cells: &[BarCell], screen: OutputScreen) -> String {
    let mut text = String::new();
    text.push_str(&border(cells, '┌', '┬', '┐'));
    text.push_str(&content(cells, screen, |cell| &cell.upper));
    text.push_str(&content(cells, screen, |cell| &cell.lower));
    text.push_str(&border(cells, '└', '┴', '┘'));
    text
}

/// Draws instances of which only start, size and name are known, in order of their starts.
pub fn draw_slots<'n>(
    total: u8,
    slots: impl IntoIterator<Item = (u8, u8, &'n str)>,
    screen: OutputScreen,
) -> String {
    let mut cells = Vec::new();
    let mut at = 0;
    for (start, size, name) in slots {
        if start > at {
            cells.push(BarCell::free(start - at));
        }
        let (upper, lower) = (name.to_owned(), format!("at {start}"));
        cells.push(BarCell { slices: size, upper, lower, fill: ' ', style: "0" });
        at = start.saturating_add(size);
    }
    if at < total {
        cells.push(BarCell::free(total - at));
    }
    boxes(&cells, screen)
}

/// Cuts the GPU into boxes: its instances, and what lies between them.
fn cells(gpu: &GpuDetails, names: &JobNames) -> Vec<BarCell> {
    let total = if gpu.memory_slices == 0 { WHOLE_SLICES } else { gpu.memory_slices };
    let mut instances: Vec<&InstanceDetails> = gpu.instances.iter().collect();
    instances.sort_by_key(|instance| instance.start);
    let mut cells = Vec::new();
    let mut at = 0;
    for instance in instances {
        let size = if gpu.memory_slices == 0 { total } else { instance.size };
        if instance.start < at || instance.start.saturating_add(size) > total || size == 0 {
            // No hardware can report this; the other instances are still drawn.
            continue;
        }
        if instance.start > at {
            cells.push(BarCell::free(instance.start - at));
        }
        cells.push(BarCell::of(instance, size, names));
        at = instance.start + size;
    }
    if at < total {
        cells.push(BarCell::free(total - at));
    }
    cells
}

#[expect(clippy::cast_possible_truncation, reason = "less than the number of styles")]
fn style_of(job: u64) -> &'static str {
    JOB_STYLES[(job % JOB_STYLES.len() as u64) as usize]
}

impl BarCell {
    fn free(slices: u8) -> Self {
        Self { slices, upper: String::new(), lower: String::new(), fill: '·', style: "2" }
    }

    fn of(instance: &InstanceDetails, slices: u8, names: &JobNames) -> Self {
        let (lower, style) = match (instance.state.as_str(), instance.job_id) {
            (_, Some(job)) => {
                let name = instance.job_name.as_deref().unwrap_or_default();
                let shown = names.get(&job).cloned().unwrap_or_else(|| job.to_string());
                (format!("{shown} {name}"), style_of(job))
            }
            ("stuck" | "foreign" | "quarantined", None) => (instance.state.clone(), "31"),
            ("leaving", None) => ("to be destroyed".to_owned(), "33"),
            ("shared", None) => {
                let parts = instance.sharers.iter().filter_map(|sharer| sharer.sm_percent);
                let sm: Option<u32> = parts.map(u32::from).reduce(|sum, sm| sum + sm);
                let how = sm.map_or("interleaved".to_owned(), |sm| format!("{sm} %"));
                let first = instance.sharers.first().map_or(0, |sharer| sharer.job_id);
                (format!("{} jobs {how}", instance.sharers.len()), style_of(first))
            }
            ("cut", None) => {
                let taken = instance.parts.iter().filter(|part| part.job_id.is_some()).count();
                (format!("{taken} of {} parts in use", instance.parts.len()), "2")
            }
            ("unfinished", None) => ("being created".to_owned(), "33"),
            (state, None) => (state.to_owned(), "2"),
        };
        Self { slices, upper: instance.profile.clone(), lower, fill: ' ', style }
    }

    fn width(&self) -> usize {
        usize::from(self.slices) * SLICE_COLUMNS - 1
    }
}

fn border(cells: &[BarCell], left: char, middle: char, right: char) -> String {
    let parts: Vec<String> = cells.iter().map(|cell| "─".repeat(cell.width())).collect();
    format!("{left}{}{right}\n", parts.join(&middle.to_string()))
}

fn content(cells: &[BarCell], screen: OutputScreen, line: impl Fn(&BarCell) -> &String) -> String {
    let parts = cells
        .iter()
        .map(|cell| screen.paint(cell.style, &fit(line(cell).trim_end(), cell.width(), cell.fill)));
    format!("│{}│\n", parts.collect::<Vec<_>>().join("│"))
}

/// Cuts or fills text to exactly `width` columns.
fn fit(text: &str, width: usize, fill: char) -> String {
    // Names from outside may contain control characters, which would break the drawing.
    let clean = text.chars().map(|c| if c.is_control() { '?' } else { c });
    let mut fitted: Vec<char> = clean.collect();
    if fitted.len() > width {
        fitted.truncate(width.saturating_sub(1));
        fitted.push('…');
    }
    fitted.resize(width, fill);
    fitted.into_iter().collect()
}
