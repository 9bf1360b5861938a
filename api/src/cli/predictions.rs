//! How good predictions of run times are: `tessera predictions`.

use clap::Args;

use super::failure::Failure;
use super::session::{Session, moment, table};
use crate::types::{PredictionOutcomes, Predictions, PredictorView};

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
    if told.outcomes.is_empty() {
        return format!("{model}\n\nNo predicted run has come to its end yet.");
    }
    let header = ["PREDICTED BY", "OUTCOMES", "WITHIN", "OFF BY"];
    format!("{model}\n\n{}", table(Some(&header), told.outcomes.iter().map(row)))
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
