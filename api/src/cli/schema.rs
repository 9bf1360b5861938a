//! The schemas of what `--json` prints, made from the API's types so that they can't drift.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use tessera_sim::cluster::experiment::Finding;
use utoipa::OpenApi;

use super::failure::Failure;
use super::mig::{CutReport, LegalityReport, StateReport};
use super::replay::report::Report;
use super::simulate::Simulation;
use super::simulate::check::HistoryCheck;
use crate::types::{
    ClusterEvents, ClusterInfo, ClusterSeries, DecisionView, Decisions, DoctorReport, Explain, Gpu,
    Gpus, JobDetail, JobEvents, JobPage, KernelTasks, LayoutApplied, LayoutChange, LayoutChanges,
    LayoutOutlook, LayoutPlan, Node, Nodes, OperatorResult, Predictions, Problem, Submitted,
    TaskKernels, usage::UsageReport,
};

/// Everything that is printed, with all that it refers to.
#[derive(OpenApi)]
#[openapi(components(schemas(
    ClusterEvents,
    ClusterInfo,
    ClusterSeries,
    DecisionView,
    Decisions,
    DoctorReport,
    Explain,
    Finding,
    Gpu,
    Gpus,
    HistoryCheck,
    JobDetail,
    JobEvents,
    JobPage,
    KernelTasks,
    LayoutApplied,
    LayoutChange,
    LayoutChanges,
    LayoutOutlook,
    LayoutPlan,
    LegalityReport,
    Node,
    Nodes,
    OperatorResult,
    Predictions,
    Problem,
    Report,
    Simulation,
    StateReport,
    CutReport,
    Submitted,
    TaskKernels,
    UsageReport,
)))]
struct Bodies;

/// File, type, and the verbs that print it.
const OUTPUTS: &[(&str, &str, &str)] = &[
    ("submitted", "Submitted", "submit"),
    ("job-page", "JobPage", "queue, cancel, hold, release, update, wait"),
    ("job-detail", "JobDetail", "show"),
    ("job-events", "JobEvents", "show --events"),
    ("explain", "Explain", "explain"),
    ("nodes", "Nodes", "nodes"),
    ("node", "Node", "nodes NODE"),
    ("gpus", "Gpus", "gpus"),
    ("gpu", "Gpu", "gpus layout show"),
    ("kernel-tasks", "KernelTasks", "kernels"),
    ("task-kernels", "TaskKernels", "kernels TASK"),
    ("predictions", "Predictions", "predictions"),
    ("usage", "UsageReport", "usage"),
    ("layout-plan", "LayoutPlan", "gpus layout plan"),
    ("layout-applied", "LayoutApplied", "gpus layout apply --no-wait"),
    ("layout-change", "LayoutChange", "gpus layout apply"),
    ("layout-outlook", "LayoutOutlook", "gpus layout outlook"),
    (
        "operator-result",
        "OperatorResult",
        "drain, undrain, quarantine, clear, gpus layout pin, gpus layout unpin",
    ),
    ("doctor-report", "DoctorReport", "doctor (a list of these)"),
    ("cluster-events", "ClusterEvents", "events"),
    ("layout-changes", "LayoutChanges", "layouts"),
    ("decisions", "Decisions", "decisions"),
    ("decision", "DecisionView", "decisions DECISION"),
    ("cluster-info", "ClusterInfo", "info"),
    ("cluster-series", "ClusterSeries", "top"),
    ("mig-states", "StateReport", "mig states"),
    ("mig-cuts", "CutReport", "mig cuts"),
    ("mig-check", "LegalityReport", "mig check"),
    ("replay-report", "Report", "replay"),
    ("simulation", "Simulation", "simulate"),
    ("history-check", "HistoryCheck", "simulate --since --check"),
    ("experiment-finding", "ExperimentFinding", "experiment (a list of these)"),
    ("problem", "Problem", "(an error of the API)"),
];

#[derive(Args)]
pub struct Schema {
    /// Folder to write into
    #[arg(long, default_value = "docs/schema")]
    out: PathBuf,
}

impl Schema {
    pub fn run(&self) -> Result<u8, Failure> {
        std::fs::create_dir_all(&self.out)?;
        for (file, text) in documents() {
            std::fs::write(self.out.join(file), text)?;
        }
        Ok(0)
    }
}

/// Returns each schema's file name and text.
fn documents() -> Vec<(String, String)> {
    let all = serde_json::to_value(Bodies::openapi()).expect("an OpenAPI document is JSON");
    let all = &all["components"]["schemas"];
    let document = |(file, name, verbs): &(&str, &str, &str)| {
        let text = serde_json::to_string_pretty(&one(all, name, verbs)).expect("values are JSON");
        (format!("{file}.json"), format!("{text}\n"))
    };
    OUTPUTS.iter().map(document).collect()
}

/// Takes one type out of the OpenAPI document, with all that it refers to. OpenAPI 3.1 writes
/// types in JSON Schema's own words (2020-12), only the places of the references differ.
fn one(all: &Value, name: &str, verbs: &str) -> Value {
    let mut wanted = BTreeSet::new();
    collect(all, name, &mut wanted);
    let definitions: Map<String, Value> =
        wanted.into_iter().map(|name| (name.clone(), relocated(&all[&name]))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("tessera --json: {verbs}"),
        "$ref": format!("#/$defs/{name}"),
        "$defs": definitions,
    })
}

const OPENAPI_PLACE: &str = "#/components/schemas/";

fn collect(all: &Value, name: &str, wanted: &mut BTreeSet<String>) {
    if wanted.insert(name.to_owned()) {
        references(&all[name], &mut |name| collect(all, name, wanted));
    }
}

fn references(schema: &Value, found: &mut dyn FnMut(&str)) {
    match schema {
        Value::Object(fields) => {
            if let Some(name) = fields
                .get("$ref")
                .and_then(Value::as_str)
                .and_then(|r| r.strip_prefix(OPENAPI_PLACE))
            {
                found(name);
            }
            fields.values().for_each(|value| references(value, found));
        }
        Value::Array(items) => items.iter().for_each(|item| references(item, found)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

fn relocated(schema: &Value) -> Value {
    match schema {
        Value::Object(fields) => {
            let moved = fields.iter().map(|(key, value)| (key.clone(), relocated(value)));
            Value::Object(moved.collect())
        }
        Value::Array(items) => Value::Array(items.iter().map(relocated).collect()),
        Value::String(text) => match text.strip_prefix(OPENAPI_PLACE) {
            Some(name) => Value::String(format!("#/$defs/{name}")),
            None => schema.clone(),
        },
        Value::Null | Value::Bool(_) | Value::Number(_) => schema.clone(),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn the_schemas_in_the_documentation_are_those_of_the_types() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/schema");

        for (file, text) in documents() {
            let kept = std::fs::read_to_string(folder.join(&file)).unwrap_or_default();

            assert_eq!(kept, text, "{file} is out of date; run: tessera schema");
        }
    }

    #[test]
    fn every_reference_stays_within_its_document() {
        for (file, text) in documents() {
            let document: Value = serde_json::from_str(&text).unwrap();

            assert!(!text.contains(OPENAPI_PLACE), "{file}");
            references_within(&document, &mut |name| {
                assert!(document["$defs"][name].is_object(), "{file}: {name}");
            });
        }
    }

    fn references_within(value: &Value, found: &mut dyn FnMut(&str)) {
        match value {
            Value::Object(fields) => fields.iter().for_each(|(key, value)| match value.as_str() {
                Some(place) if key == "$ref" => found(place.strip_prefix("#/$defs/").unwrap()),
                Some(_) | None => references_within(value, found),
            }),
            Value::Array(items) => items.iter().for_each(|item| references_within(item, found)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
}
