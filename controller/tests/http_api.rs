//! The REST API from outside: over real connections, on a real PostgreSQL, with the placer and
//! the writer played by the tests.

#[path = "http_api/cluster.rs"]
mod cluster;
#[path = "http_api/commands.rs"]
mod commands;
#[path = "http_api/database.rs"]
mod database;
#[path = "http_api/description.rs"]
mod description;
#[path = "http_api/endings.rs"]
mod endings;
#[path = "http_api/identity.rs"]
mod identity;
#[path = "http_api/live.rs"]
mod live;
#[path = "http_api/logs.rs"]
mod logs;
#[path = "http_api/oidc.rs"]
mod oidc;
#[path = "http_api/operator.rs"]
mod operator;
#[path = "http_api/predictions.rs"]
mod predictions;
#[path = "http_api/problems.rs"]
mod problems;
#[path = "http_api/reads.rs"]
mod reads;
#[path = "http_api/rig.rs"]
mod rig;
#[path = "http_api/roles.rs"]
mod roles;
#[path = "http_api/seed.rs"]
mod seed;
#[path = "http_api/series.rs"]
mod series;
#[path = "http_api/submit.rs"]
mod submit;
#[path = "http_api/tenancies.rs"]
mod tenancies;
