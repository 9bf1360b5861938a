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

fn draw(told: &Predictions) -> String {
    let model = told.model.as_ref().map_or_else(
        || {
            "No model of how slices compare yet: enough tasks must have run on several kinds of \
             slices. Earlier runs and the rule speak alone."
                .to_owned()
        },
        words,
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
    let trusted = match model.trusted {
        true => "It is asked before a job joins others.",
        false => {
            "It is not asked now: it is off by too much, or its predictions stopped to come true. \
             Users' wishes decide until a new one is trained."
        }
    };
    let mut text = format!(
        "Model {} of speeds beside others under MPS: {}, learned {} from {} runs.\n\
         On {} runs of tasks that it had not seen it was off by {:.1} % of a job's speed alone, and \
         {:.0} % lay in its interval.\n{trusted}",
        model.version,
        model.learner,
        moment(model.trained_at),
        model.rows,
        model.held_out_rows,
        model.held_out_error * 100.0,
        model.held_out_covered * 100.0,
    );
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

fn words(model: &PredictorView) -> String {
    let trusted = match model.trusted {
        true => "It is asked where a task never ran on such a slice.",
        false => {
            "It is not asked now: its predictions stopped to come true. The cautious rule stands in \
             until a new one is trained."
        }
    };
    format!(
        "Model {} of how slices compare: {}, learned {} from {} pairs of slices.\n\
         On {} pairs of tasks that it had not seen it was off by {:.1} %, and {:.0} % lay in its \
         interval.\n{trusted}",
        model.version,
        model.learner,
        moment(model.trained_at),
        model.rows,
        model.held_out_rows,
        model.held_out_error * 100.0,
        model.held_out_covered * 100.0,
    )
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
