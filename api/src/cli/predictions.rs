//! How good predictions are: `tessera predictions`.

use std::fmt::Write as _;

use clap::Args;

use super::failure::Failure;
use super::session::{Session, moment, table};
use crate::types::{
    CompanyOutcomes, MemoryOutcomes, PredictionOutcomes, Predictions, PredictorView,
};

#[derive(Args)]
pub struct PredictionList {}

impl PredictionList {
    pub async fn run(self, session: &Session) -> Result<u8, Failure> {
        session.print(&session.client.predictions().await?, draw)?;
        Ok(0)
    }
}

/// What is said of a kind of model.
struct About {
    /// What it tells.
    tells: &'static str,
    /// What a row is that it learned from.
    rows: &'static str,
    /// Of what its error is a part, after "%".
    part: &'static str,
    /// What comes of it as long as it is trusted.
    trusted: &'static str,
    /// Why it is not asked otherwise, and what stands in for it.
    instead: &'static str,
}

const SLICES: About = About {
    tells: "how slices compare",
    rows: "pairs of slices",
    part: "",
    trusted: "It is asked where a task never ran on such a slice.",
    instead: "its predictions stopped to come true. The cautious rule stands in until a new one is \
            trained.",
};
const COMPANY: About = About {
    tells: "speeds beside others under MPS",
    rows: "runs",
    part: " of a job's speed alone",
    trusted: "It is asked before a job joins others.",
    instead: "it is off by too much, or its predictions stopped to come true. Users' wishes decide until \
            a new one is trained.",
};

impl About {
    fn say(&self, model: &PredictorView) -> String {
        let Self { tells, rows, part, trusted, instead } = self;
        let asked = match model.trusted {
            true => (*trusted).to_owned(),
            false => format!("It is not asked now: {instead}"),
        };
        let (held_out, off, covered) =
            (model.held_out_rows, model.held_out_error * 100.0, model.held_out_covered * 100.0);
        format!(
            "Model {} of {tells}: {}, learned {} from {} {rows}.\n\
             On {held_out} {rows} of tasks that it had not seen it was off by {off:.1} %{part}, and \
             {covered:.0} % lay in its interval.\n{asked}",
            model.version,
            model.learner,
            moment(model.trained_at),
            model.rows,
        )
    }
}

fn draw(told: &Predictions) -> String {
    let model = told.model.as_ref().map_or_else(
        || {
            "No model of how slices compare yet: enough tasks must have run on several kinds of \
             slices. Earlier runs and the rule speak alone."
                .to_owned()
        },
        |model| SLICES.say(model),
    );
    let times = match told.outcomes.is_empty() {
        true => "No predicted run has come to its end yet.\n".to_owned(),
        false => {
            let header = ["PREDICTED BY", "OUTCOMES", "WITHIN", "OFF BY"];
            table(Some(&header), told.outcomes.iter().map(row))
        }
    };
    format!("{model}\n\n{times}\n{}\n\n{}", memory(&told.memory), company(told))
}

fn company(told: &Predictions) -> String {
    let Some(model) = &told.company_model else {
        return "No model of speeds beside others under MPS yet: enough runs must have shared slices \
                on which their tasks also ran alone. Users' wishes decide who shares."
            .to_owned();
    };
    let mut text = COMPANY.say(model);
    if let Some(error) = told.company.median_error {
        let CompanyOutcomes { outcomes, within, .. } = told.company;
        let _ = write!(
            text,
            "\nOf {outcomes} predictions whose company stayed, {within} lay in their interval; half were \
             off by less than {:.1} %.",
            error * 100.0
        );
    }
    text
}

fn memory(of: &MemoryOutcomes) -> String {
    let MemoryOutcomes { outcomes, within, short, doubted_tasks } = of;
    let mut text = match outcomes {
        0 => "Memory: no run of a job that names no size has told yet what it had.".to_owned(),
        _ => format!(
            "Memory: of {outcomes} runs of jobs that name no size, {within} kept within what was \
             foretold and {short} needed more."
        ),
    };
    if *doubted_tasks > 0 {
        let _ = write!(
            text,
            "\n{doubted_tasks} of their tasks kept to it too seldom: their jobs ask for half as much \
             again."
        );
    }
    text
}

fn row(of: &PredictionOutcomes) -> Vec<String> {
    let by = match of.basis.as_str() {
        "same_slice" => "earlier runs on such slices",
        "learned" => "earlier runs on other slices and the model",
        "other_slice" => "earlier runs on other slices, by the rule",
        "other_model" => "earlier runs on other GPUs, by the rule",
        "time_limit" => "the time limit alone",
        other => other,
    };
    vec![
        by.to_owned(),
        of.outcomes.to_string(),
        of.within.to_string(),
        format!("{:.1} %", of.median_error * 100.0),
    ]
}
