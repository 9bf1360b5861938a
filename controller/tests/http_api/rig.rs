//! A server with everything behind it played by the test.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;

use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;
use tessera_api_types::ProblemDetails;
use tessera_control::commands::JobStateChange;
use tessera_controller::figures::FigureCache;
use tessera_controller::http;
use tessera_controller::ports::{About, ClusterShape, Ports, Readiness, SubmitCall, ToPlacer};
use tessera_controller::requests::{AcceptedSubmission, NewSubmission, RequestError};
use tessera_controller::store::{Reads, connect};
use tessera_model::{ControllerId, JobId};
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc, watch};

use super::database;

/// How many submits the fake writer's mailbox holds.
pub const SUBMITS_QUEUED: usize = 2;

/// The server, and the other ends of its ports.
pub struct Rig {
    pub address: SocketAddr,
    pub client: reqwest::Client,
    pub pool: PgPool,
    pub submits: Option<mpsc::Receiver<SubmitCall>>,
    pub placer: Option<mpsc::Receiver<ToPlacer>>,
    pub shape: watch::Sender<Arc<ClusterShape>>,
    pub readiness: watch::Sender<Readiness>,
    pub job_changes: broadcast::Sender<JobStateChange>,
    pub figures: FigureCache,
}

impl Rig {
    pub async fn start() -> Self {
        Self::with_token(None).await
    }

    pub async fn with_token(token: Option<&str>) -> Self {
        let pool = connect::pool(database::fresh().await, 4);
        let (submits, submitted) = mpsc::channel(SUBMITS_QUEUED);
        let (placer, asked) = mpsc::channel(16);
        let (shape, shape_seen) = watch::channel(Arc::default());
        let (readiness, readiness_seen) = watch::channel(Readiness::Ready { epoch: 7 });
        let (job_changes, _) = broadcast::channel(64);
        let figures = FigureCache::default();
        let ports = Ports {
            reads: Reads::new(pool.clone(), Handle::current()),
            submits,
            placer,
            shape: shape_seen,
            job_changes: job_changes.clone(),
            readiness: readiness_seen,
            figures: figures.clone(),
            about: Arc::new(About {
                version: "1.2.3",
                controller: ControllerId::from_uuid(uuid::Uuid::from_u128(1)),
                policy: "scheme-b",
                accounts: tessera_control::accounts::Accounts::default(),
                token: token.map(str::to_owned),
            }),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(http::serve(ports, vec![listener]).unwrap());
        Self {
            address,
            client: reqwest::Client::new(),
            pool,
            submits: Some(submitted),
            placer: Some(asked),
            shape,
            readiness,
            job_changes,
            figures,
        }
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.client.request(method, format!("http://{}{path}", self.address))
    }

    pub async fn get(&self, path: &str) -> Response {
        self.request(Method::GET, path).send().await.unwrap()
    }

    pub async fn post(&self, path: &str) -> Response {
        self.request(Method::POST, path).send().await.unwrap()
    }

    pub async fn submit(&self, body: &Value) -> Response {
        self.request(Method::POST, "/v1/jobs").json(body).send().await.unwrap()
    }

    /// Plays a writer that accepts each submit as job 1, 2, 3 …; what it took comes out of the
    /// channel.
    pub fn accept_submits(&mut self) -> mpsc::UnboundedReceiver<NewSubmission> {
        self.answer_submits(|number, submission| {
            Ok(AcceptedSubmission {
                job: JobId::from_number(number),
                tasks: submission.tasks,
                replayed: false,
            })
        })
    }

    /// Plays a writer with answers of the test's own.
    pub fn answer_submits(
        &mut self,
        answer: impl Fn(u64, &NewSubmission) -> Result<AcceptedSubmission, RequestError>
        + Send
        + 'static,
    ) -> mpsc::UnboundedReceiver<NewSubmission> {
        let mut submits = self.submits.take().unwrap();
        let (tell, told) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut number = 0;
            while let Some(call) = submits.recv().await {
                number += 1;
                let _ = call.reply.send(answer(number, &call.submission));
                let _ = tell.send(call.submission);
            }
        });
        told
    }

    /// Plays the placer.
    pub fn answer_placer(&mut self, answer: impl Fn(ToPlacer) + Send + 'static) {
        let mut placer = self.placer.take().unwrap();
        tokio::spawn(async move {
            while let Some(question) = placer.recv().await {
                answer(question);
            }
        });
    }
}

/// Reads a problem, and checks what all problems have in common.
pub async fn problem(answer: Response, status: u16, kind: &str) -> ProblemDetails {
    let media_type = answer.headers()["content-type"].to_str().unwrap().to_owned();
    let http_status = answer.status();
    let problem: ProblemDetails = answer.json().await.unwrap();
    assert_eq!(media_type, "application/problem+json");
    assert_eq!(http_status, StatusCode::from_u16(status).unwrap(), "{problem:?}");
    assert_eq!(problem.status, status, "{problem:?}");
    assert_eq!(problem.kind, format!("urn:tessera:problem:{kind}"), "{problem:?}");
    assert!(!problem.detail.is_empty(), "{problem:?}");
    problem
}

/// A job that passes every check.
pub fn true_job() -> Value {
    json!({ "command": ["/bin/true"] })
}
