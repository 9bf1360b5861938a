//! The accuracy of predictions: `tessera predictions`.

use std::fmt::Write as _;

use clap::Args;

use super::failure::CommandFailure;
use super::session::{CommandSession, moment, table};
use tessera_api_types::{
    ColocationOutcomes, MemoryOutcomes, PredictionOutcomes, PredictionReport, PredictorView,
};

#[derive(Args)]
pub struct PredictionList {}

impl PredictionList {
    pub async fn run(self, session: &CommandSession) -> Result<u8, CommandFailure> {
        session.print(&session.client.predictions().await?, draw)?;
        Ok(0)
    }
}

/// The texts about one kind of model.
struct ModelTexts {
    /// What it predicts.
    predicts: &'static str,
    /// The kind of training sample.
    samples: &'static str,
    /// The reference of its error, after "%".
    part: &'static str,
    /// When it is used, while it is trusted.
    trusted: &'static str,
    /// Why it is not used otherwise, and what replaces it.
    instead: &'static str,
}

const SLICES: ModelTexts = ModelTexts {
    predicts: "relative slice speeds",
    samples: "pairs of slices",
    part: "",
    trusted: "It is used where a task never ran on such a slice.",
    instead: "its recent predictions were not accurate. A conservative rule replaces it until a new \
            one is trained.",
};
const COLOCATION: ModelTexts = ModelTexts {
    predicts: "speeds with co-runners under MPS",
    samples: "runs",
    part: " of a job's speed without co-runners",
    trusted: "It is used before a job joins others on a slice.",
    instead: "its error is too large, or its recent predictions were not accurate. Users' requests \
            decide until a new one is trained.",
};

impl ModelTexts {
    fn describe(&self, model: &PredictorView) -> String {
        let Self { predicts, samples, part, trusted, instead } = self;
        let used = match model.trusted {
            true => (*trusted).to_owned(),
            false => format!("It is not used now: {instead}"),
        };
        let (held_out, off, covered) =
            (model.held_out_rows, model.held_out_error * 100.0, model.held_out_covered * 100.0);
        format!(
            "Model {} of {predicts}: {}, trained {} on {} {samples}.\n\
             On {held_out} {samples} of other tasks its mean error was {off:.1} %{part}, and \
             {covered:.0} % were within its interval.\n{used}",
            model.version,
            model.learner,
            moment(model.trained_at),
            model.rows,
        )
    }
}

fn draw(report: &PredictionReport) -> String {
    let model = report.model.as_ref().map_or_else(
        || {
            "There is no model of relative slice speeds yet: too few tasks have run on several kinds \
             of slices. Predictions use earlier runs and the conservative rule."
                .to_owned()
        },
        |model| SLICES.describe(model),
    );
    let times = match report.outcomes.is_empty() {
        true => "No predicted run has ended yet.\n".to_owned(),
        false => {
            let header = ["BASIS", "OUTCOMES", "WITHIN", "MEDIAN ERROR"];
            table(Some(&header), report.outcomes.iter().map(row))
        }
    };
    format!("{model}\n\n{times}\n{}\n\n{}", memory(&report.memory), colocation(report))
}

fn colocation(report: &PredictionReport) -> String {
    let Some(model) = &report.colocation_model else {
        return "There is no model of speeds with co-runners under MPS yet: too few runs have shared \
                slices whose tasks also ran alone. Users' requests decide which jobs share."
            .to_owned();
    };
    let mut text = COLOCATION.describe(model);
    if let Some(error) = report.colocation.median_error {
        let ColocationOutcomes { outcomes, within, .. } = report.colocation;
        let _ = write!(
            text,
            "\nOf {outcomes} predictions with unchanged co-runners, {within} were within their \
             interval; the median error was {:.1} %.",
            error * 100.0
        );
    }
    text
}

fn memory(of: &MemoryOutcomes) -> String {
    let MemoryOutcomes { outcomes, within, short, low_confidence_tasks } = of;
    let mut text = match outcomes {
        0 => "Memory: no run of a job that requests no size has been measured yet.".to_owned(),
        _ => format!(
            "Memory: of {outcomes} runs of jobs that request no size, {within} were within the \
             predicted interval and {short} needed more."
        ),
    };
    if *low_confidence_tasks > 0 {
        let _ = write!(
            text,
            "\n{low_confidence_tasks} low-confidence tasks exceeded their predictions too often: \
             their estimates are raised by half."
        );
    }
    text
}

fn row(of: &PredictionOutcomes) -> Vec<String> {
    let by = match of.basis.as_str() {
        "same_slice" => "earlier runs on such slices",
        "learned" => "earlier runs on other slices and the model",
        "other_slice" => "earlier runs on other slices, scaled by the rule",
        "compared_models" => "earlier runs on other GPUs, and how other tasks compare on both",
        "other_model" => "earlier runs on other GPUs, scaled by the rule",
        "time_limit" => "the time limit",
        other => other,
    };
    vec![
        by.to_owned(),
        of.outcomes.to_string(),
        of.within.to_string(),
        format!("{:.1} %", of.median_error * 100.0),
    ]
}
