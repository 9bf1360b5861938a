//! The schemas of `--json` output, generated from the API's types.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Map, Value, json};
use tessera_simulator::cluster::experiment::Finding;
use utoipa::{OpenApi, ToSchema};

use super::estimate::MemoryEstimateView;
use super::failure::CommandFailure;
use super::mig::{CutReport, LegalityReport, StateReport};
use super::replay::report::ReplayReport;
use super::simulate::Simulation;
use super::simulate::check::HistoryCheck;
use tessera_api_types::{
    AccountingReport, AuditPage, AuthorityView, ClusterEvents, ClusterInfo, ClusterSeries,
    DecisionPage, DecisionView, DoctorReport, EfficiencyReport, GpuAvailabilityView, GpuDetails,
    GpuListing, JobDetail, JobEvents, JobExplanation, JobMemory, JobPage, KernelTasks,
    LayoutApplied, LayoutPlan, LayoutPlans, NodeCertificateList, NodeDetails, NodeInvitation,
    NodeListing, NodeRevoked, OperatorResult, PlanPreviewView, PowerReport, PredictionReport,
    ProblemDetails, SubmitResponse, TaskKernels, TokenCreated, TokenList, UsageReport, WhoAmI,
};

/// All types that are printed, and the types that they refer to.
#[derive(OpenApi)]
#[openapi(components(schemas(
    AuditPage,
    AuthorityView,
    ClusterEvents,
    ClusterInfo,
    ClusterSeries,
    DecisionView,
    DecisionPage,
    DoctorReport,
    JobExplanation,
    Finding,
    GpuDetails,
    GpuListing,
    HistoryCheck,
    JobDetail,
    JobEvents,
    JobMemory,
    EfficiencyReport,
    MemoryEstimateView,
    JobPage,
    KernelTasks,
    LayoutApplied,
    LayoutPlan,
    LayoutPlans,
    GpuAvailabilityView,
    PlanPreviewView,
    LegalityReport,
    NodeCertificateList,
    NodeDetails,
    NodeInvitation,
    NodeListing,
    NodeRevoked,
    OperatorResult,
    PowerReport,
    PredictionReport,
    ProblemDetails,
    ReplayReport,
    Simulation,
    StateReport,
    CutReport,
    SubmitResponse,
    TaskKernels,
    TokenCreated,
    TokenList,
    UsageReport,
    WhoAmI,
    AccountingReport,
)))]
struct PrintedBodies;

/// Returns the name of a type in the OpenAPI document.
type SchemaName = fn() -> Cow<'static, str>;

/// File, type, and the verbs that print it.
const OUTPUTS: &[(&str, SchemaName, &str)] = &[
    ("submitted", <SubmitResponse as ToSchema>::name, "submit"),
    ("job-page", <JobPage as ToSchema>::name, "queue, cancel, hold, release, update, wait"),
    ("job-detail", <JobDetail as ToSchema>::name, "show"),
    ("job-memory", <JobMemory as ToSchema>::name, "show --memory"),
    ("memory-estimate", <MemoryEstimateView as ToSchema>::name, "estimate"),
    ("efficiency", <EfficiencyReport as ToSchema>::name, "efficiency"),
    ("job-events", <JobEvents as ToSchema>::name, "show --events"),
    ("explain", <JobExplanation as ToSchema>::name, "explain"),
    ("nodes", <NodeListing as ToSchema>::name, "nodes"),
    ("node", <NodeDetails as ToSchema>::name, "nodes NODE"),
    ("node-invitation", <NodeInvitation as ToSchema>::name, "node invite"),
    ("node-revoked", <NodeRevoked as ToSchema>::name, "node revoke"),
    ("node-certificates", <NodeCertificateList as ToSchema>::name, "node certificates"),
    ("authority", <AuthorityView as ToSchema>::name, "authority show, authority rotate"),
    ("gpus", <GpuListing as ToSchema>::name, "gpus"),
    ("gpu", <GpuDetails as ToSchema>::name, "gpus layout show"),
    ("kernel-tasks", <KernelTasks as ToSchema>::name, "kernels"),
    ("task-kernels", <TaskKernels as ToSchema>::name, "kernels TASK"),
    ("predictions", <PredictionReport as ToSchema>::name, "predictions"),
    ("power", <PowerReport as ToSchema>::name, "power-cap"),
    ("usage", <UsageReport as ToSchema>::name, "usage"),
    ("report", <AccountingReport as ToSchema>::name, "report"),
    ("plan-preview", <PlanPreviewView as ToSchema>::name, "gpus layout plan"),
    ("layout-applied", <LayoutApplied as ToSchema>::name, "gpus layout apply --no-wait"),
    ("layout-plan", <LayoutPlan as ToSchema>::name, "gpus layout apply"),
    ("gpu-availability", <GpuAvailabilityView as ToSchema>::name, "gpus layout availability"),
    (
        "operator-result",
        <OperatorResult as ToSchema>::name,
        "drain, undrain, quarantine, clear, gpus layout pin, gpus layout unpin",
    ),
    ("doctor-report", <DoctorReport as ToSchema>::name, "doctor (a list of these)"),
    ("cluster-events", <ClusterEvents as ToSchema>::name, "events"),
    ("layout-plans", <LayoutPlans as ToSchema>::name, "layouts"),
    ("decisions", <DecisionPage as ToSchema>::name, "decisions"),
    ("decision", <DecisionView as ToSchema>::name, "decisions DECISION"),
    ("who-am-i", <WhoAmI as ToSchema>::name, "whoami, login"),
    ("token-created", <TokenCreated as ToSchema>::name, "token create"),
    ("token-list", <TokenList as ToSchema>::name, "token list, token revoke"),
    ("audit-page", <AuditPage as ToSchema>::name, "audit"),
    ("cluster-info", <ClusterInfo as ToSchema>::name, "info"),
    ("cluster-series", <ClusterSeries as ToSchema>::name, "top"),
    ("mig-states", <StateReport as ToSchema>::name, "mig states"),
    ("mig-cuts", <CutReport as ToSchema>::name, "mig cuts"),
    ("mig-check", <LegalityReport as ToSchema>::name, "mig check"),
    ("replay-report", <ReplayReport as ToSchema>::name, "replay"),
    ("simulation", <Simulation as ToSchema>::name, "simulate"),
    ("history-check", <HistoryCheck as ToSchema>::name, "simulate --since --check"),
    ("experiment-finding", <Finding as ToSchema>::name, "experiment (a list of these)"),
    ("problem", <ProblemDetails as ToSchema>::name, "(an error of the API)"),
];

#[derive(Args)]
pub struct Schema {
    /// Folder to write to
    #[arg(long, default_value = "docs/schema")]
    out: PathBuf,
}

impl Schema {
    pub fn run(&self) -> Result<u8, CommandFailure> {
        std::fs::create_dir_all(&self.out)?;
        for (file, text) in documents() {
            std::fs::write(self.out.join(file), text)?;
        }
        Ok(0)
    }
}

/// Returns each schema's file name and text.
fn documents() -> Vec<(String, String)> {
    let all = serde_json::to_value(PrintedBodies::openapi()).expect("an OpenAPI document is JSON");
    let all = &all["components"]["schemas"];
    let document = |(file, name, verbs): &(&str, SchemaName, &str)| {
        let text =
            serde_json::to_string_pretty(&one(all, &name(), verbs)).expect("values are JSON");
        (format!("{file}.json"), format!("{text}\n"))
    };
    OUTPUTS.iter().map(document).collect()
}

/// Takes one type out of the OpenAPI document, with all that it refers to. OpenAPI 3.1 writes
/// types in JSON Schema's own words (2020-12), only the places of the references differ.
fn one(all: &Value, name: &str, verbs: &str) -> Value {
    let mut needed = BTreeSet::new();
    collect(all, name, &mut needed);
    let definitions: Map<String, Value> =
        needed.into_iter().map(|name| (name.clone(), relocated(&all[&name]))).collect();
    json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": format!("tessera --json: {verbs}"),
        "$ref": format!("#/$defs/{name}"),
        "$defs": definitions,
    })
}

const OPENAPI_PLACE: &str = "#/components/schemas/";

fn collect(all: &Value, name: &str, needed: &mut BTreeSet<String>) {
    if needed.insert(name.to_owned()) {
        references(&all[name], &mut |name| collect(all, name, needed));
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
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");

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
