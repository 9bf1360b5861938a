//! The description of the API, made from the types that it uses.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::response::{Response, ResponseBuilder};
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::openapi::{OpenApi, PathItem, Ref, RefOr};
use utoipa::{IntoResponses, Modify};

use super::error::PROBLEM_JSON;

/// The job in a route's path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes the parameter, which is read from the path")]
pub(super) struct JobPath {
    /// `42`, or `42_7` for task 7 of array 42.
    #[param(pattern = "^[1-9][0-9]{0,17}(_[0-9]{1,9})?$")]
    job: String,
}

/// The node in a route's path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes the parameter, which is read from the path")]
pub(super) struct NodePath {
    /// The node's name.
    #[param(pattern = "^[A-Za-z0-9][A-Za-z0-9.-]{0,62}$")]
    name: String,
}

/// The GPU in a route's path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes the parameter, which is read from the path")]
pub(super) struct GpuPath {
    /// `node:index`, the GPU's UUID as NVML reports it, or a prefix of it.
    #[param(pattern = "^[^ ]{1,128}$")]
    gpu: String,
}

/// The layout plan in a route's path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes the parameter, which is read from the path")]
pub(super) struct PlanPath {
    /// The plan's id.
    #[param(pattern = "^plan_[0-9a-f]{32}$")]
    plan: String,
}

/// The token in a route's path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes the parameter, which is read from the path")]
pub(super) struct TokenPath {
    /// The token's id, its public part.
    #[param(pattern = "^[0-9a-z]{8}$")]
    token: String,
}

/// The decision in a route's path.
#[derive(utoipa::IntoParams)]
#[into_params(parameter_in = Path)]
#[expect(dead_code, reason = "only describes the parameter, which is read from the path")]
pub(super) struct DecisionPath {
    /// The decision's id.
    #[param(pattern = "^dec_[0-9a-f]{32}$")]
    decision: String,
}

/// What every route may answer other than success.
pub(super) struct Problems;
/// What routes may answer that name something.
pub(super) struct LookupProblems;
/// What routes may answer that change something.
pub(super) struct ChangeProblems;
/// What routes may answer that take a body.
pub(super) struct BodyProblems;

impl IntoResponses for Problems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[
            ("400", "Something in the request breaks a rule; the problem names it."),
            ("401", "The caller is not authenticated: there is no valid token."),
            ("403", "The caller's role does not allow this, or a page of another site sends it."),
            ("429", "The caller sends too many requests; `Retry-After` states how long to wait."),
            (
                "503",
                "The service is temporarily unavailable; `Retry-After` states how long to \
                     wait.",
            ),
        ])
    }
}

impl IntoResponses for LookupProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[("404", "The resource does not exist.")])
    }
}

impl IntoResponses for ChangeProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[("409", "Its state does not allow this, or something else prevents it.")])
    }
}

impl IntoResponses for BodyProblems {
    fn responses() -> BTreeMap<String, RefOr<Response>> {
        problems(&[
            ("408", "The body did not arrive in time."),
            ("413", "The body is too large."),
            ("415", "The body is not declared as JSON."),
            ("422", "The request is valid, but can't be met: see the problem's `type`."),
        ])
    }
}

fn problems(list: &[(&str, &str)]) -> BTreeMap<String, RefOr<Response>> {
    let problem = |description: &str| {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name(PROBLEM))).build();
        let response =
            ResponseBuilder::new().description(description).content(PROBLEM_JSON, content).build();
        RefOr::T(response)
    };
    list.iter().map(|(status, text)| ((*status).to_owned(), problem(text))).collect()
}

/// The name of the schema of problems.
const PROBLEM: &str = "ProblemDetails";

/// The description of the API as a whole.
#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Tessera",
        description = "Jobs on shared GPUs: submit, watch, and explain.\n\nErrors are \
                       `application/problem+json` with a stable `type`. Times are UTC (RFC 3339), \
                       sizes are bytes, spans are seconds, states are lower-case words.",
        license(name = "Apache-2.0", identifier = "Apache-2.0"),
    ),
    modifiers(&Bearer),
    components(schemas(
        tessera_api_types::ProblemDetails,
        tessera_api_types::SessionOpening,
        tessera_api_types::SessionCommand,
        tessera_api_types::SessionEvent,
    )),
    tags(
        (name = "jobs", description = "Submit jobs, follow them, end them."),
        (name = "cluster", description = "Nodes, GPUs and their layouts."),
        (name = "operators", description = "Drain and quarantine nodes and GPUs, and change layouts."),
        (name = "identity", description = "The caller, personal tokens, and the audit log."),
        (name = "history", description = "What was decided and changed, and why."),
        (name = "operations", description = "Health and metrics."),
    ),
)]
pub(super) struct Doc;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, openapi: &mut OpenApi) {
        openapi
            .components
            .get_or_insert_default()
            .add_security_scheme("bearer", SecurityScheme::Http(Http::new(HttpAuthScheme::Bearer)));
    }
}

/// The description, made once.
pub(super) static OPENAPI: LazyLock<OpenApi> = LazyLock::new(super::routes::describe);

/// The description as it is served, made once.
pub(super) static OPENAPI_JSON: LazyLock<String> = LazyLock::new(|| {
    OPENAPI.to_json().expect("a description made of strings and numbers is valid JSON")
});

/// Returns the methods that a path takes; empty if there is no such route.
pub(super) fn methods_of(path: &str) -> Vec<&'static str> {
    OPENAPI
        .paths
        .paths
        .iter()
        .find(|(template, _)| matches_template(template, path))
        .map(|(_, item)| methods_in(item))
        .unwrap_or_default()
}

fn matches_template(template: &str, path: &str) -> bool {
    let (mut pattern, mut given) = (template.split('/'), path.split('/'));
    loop {
        match (pattern.next(), given.next()) {
            (None, None) => return true,
            (Some(pattern), Some(given)) if pattern.starts_with('{') => {
                if given.is_empty() {
                    return false;
                }
            }
            (Some(pattern), Some(given)) if pattern == given => {}
            _ => return false,
        }
    }
}

fn methods_in(item: &PathItem) -> Vec<&'static str> {
    [
        ("GET", item.get.is_some()),
        ("POST", item.post.is_some()),
        ("PATCH", item.patch.is_some()),
        ("DELETE", item.delete.is_some()),
    ]
    .into_iter()
    .filter_map(|(method, taken)| taken.then_some(method))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_knows_its_methods() {
        assert_eq!(methods_of("/v1/jobs"), ["GET", "POST"]);
        assert_eq!(methods_of("/v1/jobs/42"), ["GET", "PATCH", "DELETE"]);
        assert_eq!(methods_of("/v1/jobs/42_7/cancel"), ["POST"]);
        assert!(methods_of("/v1/jobs/").is_empty());
        assert!(methods_of("/v2/jobs").is_empty());
    }

    #[test]
    fn it_is_openapi_3_1_with_problems_everywhere() {
        let text = &*OPENAPI_JSON;

        assert!(text.contains(r#""openapi":"3.1.0""#));
        assert!(text.contains("application/problem+json"));
        assert!(text.contains(r#""ProblemDetails":{"#));
    }

    #[test]
    fn each_schema_that_is_referred_to_is_described() {
        let description: serde_json::Value = serde_json::from_str(&OPENAPI_JSON).unwrap();
        let named = OPENAPI_JSON.split("#/components/schemas/").skip(1);
        let named: std::collections::BTreeSet<_> =
            named.filter_map(|text| text.split('"').next()).collect();

        assert!(named.contains(PROBLEM));
        for name in named {
            assert!(description["components"]["schemas"][name].is_object(), "{name}");
        }
    }

    #[test]
    fn no_route_describes_a_parameter_twice() {
        let description: serde_json::Value = serde_json::from_str(&OPENAPI_JSON).unwrap();
        for (path, item) in description["paths"].as_object().unwrap() {
            for (method, operation) in item.as_object().unwrap() {
                let described = operation["parameters"].as_array().cloned().unwrap_or_default();
                let names: std::collections::BTreeSet<_> =
                    described.iter().map(|known| known["name"].to_string()).collect();

                assert_eq!(names.len(), described.len(), "{method} {path}");
            }
        }
    }
}
