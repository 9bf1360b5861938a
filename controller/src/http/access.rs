//! What each route needs: one table, which the description of the API and a test over it repeat.

use std::collections::HashMap;
use std::sync::LazyLock;

use actix_web::HttpRequest;

use super::error::ApiError;
use crate::principal::{Principal, Role};

/// What a route needs of its caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Needs {
    /// Nothing: it reveals nothing of the cluster.
    Nothing,
    /// At least this role.
    Role(Role),
    /// At least this role; for a user, jobs of others do not exist.
    OwnJob,
    /// As [`Self::OwnJob`]; and a process of a job that calls by way of its node, for that job.
    Session,
    /// The role of a user, or the token in the data folder.
    Tokens,
}

impl Needs {
    /// Returns whether a caller may use the route.
    pub fn are_met_by(self, caller: &Principal) -> bool {
        match self {
            Self::Nothing => true,
            Self::Session if !caller.is_bootstrap() => caller.role >= Role::User,
            _ if caller.job().is_some() => false,
            Self::Tokens => caller.role >= Role::User,
            _ if caller.is_bootstrap() => false,
            Self::Role(least) => caller.role >= least,
            Self::OwnJob | Self::Session => caller.role >= Role::User,
        }
    }

    /// Returns the least role, for people.
    pub const fn least(self) -> Role {
        match self {
            Self::Nothing => Role::Metrics,
            Self::Role(least) => least,
            Self::OwnJob | Self::Session | Self::Tokens => Role::User,
        }
    }
}

const USER: Needs = Needs::Role(Role::User);
const OPERATOR: Needs = Needs::Role(Role::Operator);
const ADMIN: Needs = Needs::Role(Role::Admin);

/// What every route needs. A route that is not here is closed to everybody.
pub const ROUTES: &[(&str, &str, Needs)] = &[
    // Health, and the description of the API.
    ("GET", "/healthz", Needs::Nothing),
    ("GET", "/livez", Needs::Nothing),
    ("GET", "/readyz", Needs::Nothing),
    ("GET", "/openapi.json", Needs::Nothing),
    ("GET", "/metrics", Needs::Role(Role::Metrics)),
    // Callers, tokens, and what callers did.
    ("GET", "/v1/whoami", Needs::Role(Role::Metrics)),
    ("GET", "/v1/tokens", Needs::Tokens),
    ("POST", "/v1/tokens", Needs::Tokens),
    ("DELETE", "/v1/tokens/{token}", Needs::Tokens),
    ("GET", "/v1/audit", ADMIN),
    // Jobs. The queue shows everybody's, as Slurm's does; details belong to their users.
    ("POST", "/v1/jobs", USER),
    ("GET", "/v1/jobs", USER),
    ("GET", "/v1/jobs/summary", USER),
    ("GET", "/v1/events", USER),
    ("GET", "/v1/jobs/{job}", Needs::OwnJob),
    ("PATCH", "/v1/jobs/{job}", Needs::OwnJob),
    ("DELETE", "/v1/jobs/{job}", Needs::OwnJob),
    ("POST", "/v1/jobs/{job}/cancel", Needs::OwnJob),
    ("POST", "/v1/jobs/{job}/hold", Needs::OwnJob),
    ("POST", "/v1/jobs/{job}/requeue", Needs::OwnJob),
    ("POST", "/v1/jobs/{job}/release", Needs::OwnJob),
    ("GET", "/v1/jobs/{job}/events", Needs::OwnJob),
    ("GET", "/v1/jobs/{job}/script", Needs::OwnJob),
    ("GET", "/v1/jobs/{job}/explain", Needs::OwnJob),
    ("GET", "/v1/jobs/{job}/logs", Needs::OwnJob),
    ("GET", "/v1/jobs/{job}/series", Needs::OwnJob),
    ("GET", "/v1/jobs/{job}/sessions/{session}", Needs::Session),
    ("POST", "/v1/jobs/{job}/steps", Needs::Session),
    ("GET", "/v1/jobs/{job}/memory", Needs::OwnJob),
    ("GET", "/v1/jobs/{job}/wait", Needs::OwnJob),
    ("GET", "/v1/kernels", USER),
    ("GET", "/v1/kernels/task", Needs::OwnJob),
    ("GET", "/v1/decisions", USER),
    ("GET", "/v1/decisions/{decision}", Needs::OwnJob),
    ("GET", "/v1/history", USER),
    ("GET", "/v1/placement-rounds", OPERATOR),
    ("GET", "/v1/predictions", USER),
    ("GET", "/v1/usage", USER),
    ("GET", "/v1/power", USER),
    ("GET", "/v1/records", USER),
    ("GET", "/v1/report", USER),
    ("GET", "/v1/efficiency", USER),
    // The cluster.
    ("GET", "/v1/info", USER),
    ("GET", "/v1/nodes", USER),
    ("GET", "/v1/nodes/{name}", USER),
    ("GET", "/v1/gpus", USER),
    ("GET", "/v1/gpus/{gpu}", USER),
    ("GET", "/v1/gpus/{gpu}/series", USER),
    ("GET", "/v1/series", USER),
    ("GET", "/v1/gpus/{gpu}/layout", USER),
    ("GET", "/v1/gpus/{gpu}/layout/plan", USER),
    ("GET", "/v1/gpus/{gpu}/layout/availability", USER),
    ("GET", "/v1/layouts", USER),
    ("GET", "/v1/layouts/{plan}", USER),
    ("GET", "/v1/cluster-events", USER),
    ("GET", "/v1/authority", USER),
    // Changes of the cluster.
    ("GET", "/v1/node-certificates", OPERATOR),
    ("POST", "/v1/nodes/{name}/invite", OPERATOR),
    ("POST", "/v1/nodes/{name}/revoke", OPERATOR),
    ("POST", "/v1/authority/rotate", ADMIN),
    ("GET", "/v1/nodes/{name}/doctor", OPERATOR),
    ("POST", "/v1/nodes/{name}/drain", OPERATOR),
    ("POST", "/v1/nodes/{name}/undrain", OPERATOR),
    ("POST", "/v1/nodes/{name}/clear", OPERATOR),
    ("POST", "/v1/gpus/{gpu}/drain", OPERATOR),
    ("POST", "/v1/gpus/{gpu}/undrain", OPERATOR),
    ("POST", "/v1/gpus/{gpu}/quarantine", OPERATOR),
    ("POST", "/v1/gpus/{gpu}/clear", OPERATOR),
    ("POST", "/v1/gpus/{gpu}/pin", OPERATOR),
    ("POST", "/v1/gpus/{gpu}/unpin", OPERATOR),
    ("POST", "/v1/gpus/{gpu}/layout", OPERATOR),
    ("POST", "/v1/gpus/{gpu}/mig-mode", OPERATOR),
];

static BY_ROUTE: LazyLock<HashMap<(&str, &str), Needs>> = LazyLock::new(|| {
    ROUTES.iter().map(|(method, pattern, needs)| ((*method, *pattern), *needs)).collect()
});

/// The hottest route, known without a search for its pattern.
const SUBMIT_ROUTE: &str = "/v1/jobs";

/// Checks that a caller may use the route that its request was routed to. It is called from inside the
/// route, so that no other spelling of a path leads around it.
pub(super) fn check(request: &HttpRequest, caller: &Principal) -> Result<(), ApiError> {
    let needs = if request.path() == SUBMIT_ROUTE {
        BY_ROUTE.get(&(request.method().as_str(), SUBMIT_ROUTE)).copied()
    } else {
        let pattern = request.match_pattern();
        pattern.and_then(|pattern| {
            BY_ROUTE.get(&(request.method().as_str(), pattern.as_str())).copied()
        })
    };
    let Some(needs) = needs else {
        tracing::error!(path = request.path(), "this route declares no requirements");
        return Err(ApiError::Internal);
    };
    if needs.are_met_by(caller) {
        return Ok(());
    }
    if caller.job().is_some() {
        return Err(ApiError::Forbidden {
            problem: "a job's process without a token may only start steps of that job".to_owned(),
            expected: "a personal token, or a Unix socket of the controller".to_owned(),
        });
    }
    Err(ApiError::Forbidden {
        problem: match caller.is_bootstrap() {
            true => "the token in the controller's data folder only creates and revokes other \
                     tokens"
                .to_owned(),
            false => format!("{} has the role {}", caller.name, caller.role),
        },
        expected: match caller.is_bootstrap() {
            true => "another token: POST /v1/tokens creates one".to_owned(),
            false => format!("the role {}", needs.least()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::openapi;
    use crate::principal::{Proof, Source};
    use std::collections::BTreeSet;
    use std::sync::Arc;
    use tessera_control::callers::CallerJob;
    use tessera_model::JobId;

    #[test]
    fn a_process_of_a_job_gets_sessions_and_what_everybody_gets() {
        let job = JobId::from_number(42);
        let job = CallerJob { user: "ada".into(), first: job, last: JobId::from_number(45) };
        assert!(job.has(JobId::from_number(45)) && !job.has(JobId::from_number(46)));
        let from = Source::Process { uid: 0, pid: None };
        let caller = Principal {
            name: "ada".into(),
            role: Role::User,
            proof: Proof::Job { job, from },
            coordinates: Arc::from([]),
        };

        for (method, pattern, needs) in ROUTES {
            let is_open = matches!(needs, Needs::Nothing | Needs::Session);
            assert_eq!(needs.are_met_by(&caller), is_open, "{method} {pattern}");
        }
        // Sessions, and reports about the steps that it starts by them.
        assert_eq!(ROUTES.iter().filter(|(.., needs)| *needs == Needs::Session).count(), 2);
    }

    #[test]
    fn the_table_has_exactly_the_routes_that_are_described() {
        let description = serde_json::to_value(openapi()).unwrap();
        let mut described = BTreeSet::new();
        for (path, item) in description["paths"].as_object().unwrap() {
            for method in item.as_object().unwrap().keys().filter(|key| *key != "parameters") {
                described.insert((method.to_uppercase(), path.clone()));
            }
        }
        let listed: BTreeSet<_> = ROUTES
            .iter()
            .map(|(method, path, _)| ((*method).to_owned(), (*path).to_owned()))
            .collect();

        assert_eq!(listed.len(), ROUTES.len(), "a route is listed twice");
        assert_eq!(listed, described);
    }
}
