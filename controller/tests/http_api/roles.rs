//! What each role may do: every route of the description with every kind of caller, and what exists
//! of the jobs of others.

use reqwest::{Client, Method};
use serde_json::json;
use tessera_api_types::{AuditPage, DecisionPage, JobDetail, JobPage, PastJobs};
use tessera_controller::http::access::{Needs, ROUTES};
use tessera_controller::ports::ToPlacer;
use tessera_controller::principal::Role;
use uuid::Uuid;

use super::cluster::node;
use super::rig::{BOOTSTRAP, Rig, client, problem};
use super::seed::Seed;

/// Job 1 is ada's and waits; a decision about it is recorded.
async fn rig() -> Rig {
    let mut rig = Rig::start().await;
    let seed = Seed(&rig.pool);
    seed.node().await;
    seed.submission(1, 1, None, "ada").await;
    seed.decision(Uuid::from_u128(7), 1, "wait", Some("resources"), None).await;
    rig.answer_placer(|question| {
        // Other questions stay without an answer, which is no matter of rights.
        if let ToPlacer::DescribeNodes { reply } = question {
            let gpu = "GPU-aaaa1111-0000-0000-0000-000000000000";
            reply.send(vec![node("node-1", gpu)]).unwrap();
        }
    });
    rig
}

/// Writes a path that names existing things, as far as there are any.
fn filled(pattern: &str) -> String {
    let path = pattern
        .replace("{job}", "1")
        .replace("{session}", "main")
        .replace("{name}", "node-1")
        .replace("{gpu}", "node-1:0")
        .replace("{plan}", "plan_00000000000000000000000000000001")
        .replace("{decision}", "dec_00000000000000000000000000000007")
        .replace("{token}", "00000000");
    match pattern {
        "/v1/jobs/{job}/wait" => path + "?timeout_secs=0",
        "/v1/kernels/task" => path + "?task_key=ada:%20train",
        "/v1/history" => path + "?since=2026-01-01T00:00:00Z",
        "/v1/gpus/{gpu}/layout/plan" => path + "?layout=empty",
        _ => path,
    }
}

async fn status(rig: &Rig, caller: &Client, method: &str, pattern: &str) -> u16 {
    let method: Method = method.parse().unwrap();
    let mut request = caller.request(method.clone(), rig.url(&filled(pattern)));
    if method != Method::GET {
        // What an update changes is checked before it is looked for.
        let body = if method == Method::PATCH { json!({ "priority": 1 }) } else { json!({}) };
        request = request.json(&body);
    }
    request.send().await.unwrap().status().as_u16()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_answers_every_role_as_the_table_declares() {
    let rig = rig().await;
    let callers = [
        ("metrics", Some(Role::Metrics), rig.client_of("prometheus", Role::Metrics).await),
        ("a user", Some(Role::User), rig.client_of("bob", Role::User).await),
        ("the job's user", Some(Role::User), rig.client_of("ada", Role::User).await),
        ("a coordinator", Some(Role::User), rig.client_of("pi", Role::User).await),
        ("an operator", Some(Role::Operator), rig.client_of("op", Role::Operator).await),
        ("an administrator", Some(Role::Admin), rig.client_of("root", Role::Admin).await),
        ("nobody", None, client(None)),
        ("a wrong token", None, client(Some("tsr_user_00000000_wrong"))),
    ];
    let mut cells = 0;
    for (method, pattern, needs) in ROUTES {
        for (name, role, caller) in &callers {
            let status = status(&rig, caller, method, pattern).await;
            let cell = format!("{name}: {method} {pattern} gives {status}");
            cells += 1;
            match (role, needs) {
                (_, Needs::Nothing) => assert!(!matches!(status, 401 | 403), "{cell}"),
                // After so many failures from one address it only gets to know that.
                (None, _) => assert!(matches!(status, 401 | 429), "{cell}"),
                (Some(role), needs) if *role < needs.least() => assert_eq!(status, 403, "{cell}"),
                (Some(_), Needs::OwnJob | Needs::Session) if *name == "a user" => {
                    assert_eq!(status, 404, "{cell}");
                }
                // Who coordinates an account reads its jobs, and does not act in them.
                (Some(_), Needs::Session) if *name == "a coordinator" => {
                    assert_eq!(status, 403, "{cell}");
                }
                // Nothing was measured of the kernels of any task.
                (Some(_), Needs::OwnJob | Needs::Session) if *pattern == "/v1/kernels/task" => {
                    assert_eq!(status, 404, "{cell}");
                }
                (Some(_), Needs::OwnJob | Needs::Session) => {
                    assert!(!matches!(status, 401 | 403 | 404), "{cell}");
                }
                (Some(_), _) => assert!(!matches!(status, 401 | 403), "{cell}"),
            }
        }
        // The token in the data folder makes tokens, and nothing else.
        let status = status(&rig, &client(Some(BOOTSTRAP)), method, pattern).await;
        match needs {
            Needs::Nothing | Needs::Tokens => assert!(!matches!(status, 401 | 403), "{pattern}"),
            Needs::Role(_) | Needs::OwnJob | Needs::Session => {
                assert_eq!(status, 403, "{method} {pattern}");
            }
        }
    }
    assert_eq!(cells, ROUTES.len() * callers.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn no_other_spelling_of_a_path_leads_around_the_roles() {
    let rig = rig().await;
    let bob = rig.client_of("bob", Role::User).await;
    let post = |path: &str| bob.post(rig.url(path)).json(&json!({}));
    for path in [
        "/v1/nodes/node-1/%64rain",
        "/%761/nodes/node-1/drain",
        "/v1//nodes/node-1/drain",
        "/v1/./nodes/node-1/drain",
        "/v1/jobs/../nodes/node-1/drain",
        "/docs/../v1/nodes/node-1/drain",
        "/docs/%2e%2e/v1/nodes/node-1/drain",
        "/v1/nodes/node-1/drain/",
        "/V1/nodes/node-1/drain",
    ] {
        let status = post(path).send().await.unwrap().status().as_u16();
        assert!(matches!(status, 403..=405), "{path}: {status}");
    }
    let nobody = client(None);
    for path in ["/%761/jobs", "/v1/nothing", "/docs%2f../v1/jobs", "/metrics", "/v1/jobs?a=/docs/"]
    {
        let status = nobody.get(rig.url(path)).send().await.unwrap().status();
        assert_eq!(status, 401, "{path}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_source_of_many_wrong_tokens_is_slowed_down_and_others_are_not() {
    let rig = Rig::start().await;
    let nobody = client(Some("wrong"));
    let mut statuses = Vec::new();
    for _ in 0..200 {
        statuses.push(nobody.get(rig.url("/v1/whoami")).send().await.unwrap().status().as_u16());
    }

    assert!(statuses.starts_with(&[401; 50]), "{statuses:?}");
    assert!(statuses.contains(&429), "{statuses:?}");
    assert_eq!(rig.get("/v1/whoami").await.status(), 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_of_others_are_in_the_queue_and_nowhere_else() {
    let rig = rig().await;
    let seed = Seed(&rig.pool);
    seed.submission(2, 1, None, "bob").await;
    let attempt = seed.running(2, 1).await;
    seed.ended(2, attempt, "failed", "failed").await;
    let (ada, bob) =
        (rig.client_of("ada", Role::User).await, rig.client_of("bob", Role::User).await);
    let jobs = async |caller: &Client| -> JobPage {
        caller.get(rig.url("/v1/jobs")).send().await.unwrap().json().await.unwrap()
    };

    let seen = jobs(&ada).await.items;
    assert_eq!(
        seen.iter().map(|job| (job.id, job.user.as_str())).collect::<Vec<_>>(),
        [(2, "bob"), (1, "ada")]
    );
    assert_eq!((seen[0].exit_code.as_deref(), seen[0].reason_text.as_deref()), (None, None));
    assert_eq!(jobs(&bob).await.items[0].exit_code.as_deref(), Some("1:0"));

    let decisions: DecisionPage =
        ada.get(rig.url("/v1/decisions")).send().await.unwrap().json().await.unwrap();
    assert!(decisions.items.iter().all(|decision| decision.job_id == 1), "{decisions:?}");
    assert!(!decisions.items.is_empty());
    for (query, users) in [("", vec!["ada"]), ("&user=bob", vec![]), ("&user=ada", vec!["ada"])] {
        let path = format!("/v1/history?since=2026-01-01T00:00:00Z{query}");
        let past: PastJobs = ada.get(rig.url(&path)).send().await.unwrap().json().await.unwrap();
        assert_eq!(past.items.iter().map(|job| job.user.as_str()).collect::<Vec<_>>(), users);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_belongs_to_its_caller_unless_an_operator_acts_for_another() {
    let mut rig = Rig::start().await;
    let mut taken = rig.accept_submits();
    let (ada, op) =
        (rig.client_of("ada", Role::User).await, rig.client_of("op", Role::Operator).await);
    let submit = async |caller: &Client, user: Option<&str>| {
        let mut body = json!({ "command": ["a"] });
        if let Some(user) = user {
            body["user"] = json!(user);
        }
        caller.post(rig.url("/v1/jobs")).json(&body).send().await.unwrap()
    };

    for user in [None, Some("ada")] {
        assert_eq!(submit(&ada, user).await.status(), 201);
        let submission = taken.recv().await.unwrap();
        assert_eq!((submission.spec.user.as_str(), &*submission.principal), ("ada", "ada"));
        assert!(submission.origin.contains("from 127.0.0.1"), "{}", submission.origin);
    }
    let refused = problem(submit(&ada, Some("bob")).await, 403, "forbidden").await;
    assert!(refused.detail.contains("ada can't submit a job of bob"), "{refused:?}");
    assert_eq!(submit(&op, Some("bob")).await.status(), 201);
    let submission = taken.recv().await.unwrap();
    assert_eq!((submission.spec.user.as_str(), &*submission.principal), ("bob", "op"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_names_who_submitted_it_from_where() {
    let rig = rig().await;
    sqlx::query(
        "UPDATE submissions SET principal = 'op', origin = 'socket, uid 5' WHERE first_job = 1",
    )
    .execute(&rig.pool)
    .await
    .unwrap();

    let detail: JobDetail = rig.get("/v1/jobs/1").await.json().await.unwrap();

    assert_eq!(detail.submitted_by, "op");
    assert_eq!(detail.submitted_from.as_deref(), Some("socket, uid 5"));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_callers_change_and_what_is_refused_to_them_is_recorded() {
    let rig = rig().await;
    let bob = rig.client_of("bob", Role::User).await;
    bob.post(rig.url("/v1/nodes/node-1/drain")).json(&json!({})).send().await.unwrap();
    bob.delete(rig.url("/v1/jobs/1")).send().await.unwrap();
    bob.get(rig.url("/v1/jobs/1")).send().await.unwrap();
    // A caller without a name must not fill the log.
    for path in ["/healthz", "/livez", "/readyz", "/openapi.json"] {
        let deliberate = client(None).post(rig.url(path)).header("X-Tessera", "1");
        assert_eq!(deliberate.send().await.unwrap().status(), 405, "{path}");
    }
    client(None).get(rig.url("/v1/jobs")).send().await.unwrap();

    let entries = loop {
        let page: AuditPage = rig.get("/v1/audit?limit=10").await.json().await.unwrap();
        if page.items.len() >= 3 {
            break page.items;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    };

    let shown: Vec<_> = entries
        .iter()
        .map(|entry| (entry.principal.as_deref(), entry.action.as_str(), entry.status))
        .collect();
    assert_eq!(
        shown,
        [
            (None, "GET /v1/jobs", 401),
            (Some("bob"), "DELETE /v1/jobs/{job}", 404),
            (Some("bob"), "POST /v1/nodes/{name}/drain", 403),
        ]
    );
    assert_eq!(entries[1].object, "/v1/jobs/1");
    assert!(entries[1].origin.starts_with("token "), "{}", entries[1].origin);
    let page: AuditPage = rig.get("/v1/audit?principal=bob&limit=1").await.json().await.unwrap();
    let path = format!("/v1/audit?principal=bob&cursor={}", page.next_cursor.unwrap());
    let rest: AuditPage = rig.get(&path).await.json().await.unwrap();
    assert_eq!(rest.items.len(), 1);
    assert_eq!(rest.items[0].status, 403);
}
