//! A server with everything behind it played by the test.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use reqwest::header::{AUTHORIZATION, HeaderMap};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde_json::{Value, json};
use sqlx::PgPool;
use tempfile::TempDir;
use tessera_api_types::ProblemDetails;
use tessera_control::accounts::{AccountSettings, Accounts};
use tessera_controller::audit::AuditLog;
use tessera_controller::directory::Directory;
use tessera_controller::figures::FigureCache;
use tessera_controller::host_names::HostNames;
use tessera_controller::http;
use tessera_controller::listeners::{Listeners, bind_socket};
use tessera_controller::live::LiveSettings;
use tessera_controller::node_certificates::{CertificateParts, NodeCertificates};
use tessera_controller::oidc::Issuer;
use tessera_controller::ports::{
    About, ClusterShape, JobChanges, Ports, Readiness, SubmitCall, ToPlacer,
};
use tessera_controller::principal::{Appointments, Role};
use tessera_controller::requests::{AcceptedSubmission, NewSubmission, RequestError};
use tessera_controller::step_reports::StepReports;
use tessera_controller::store::tokens::NewToken;
use tessera_controller::store::{Reads, connect};
use tessera_controller::tokens::{Secret, ValidTokens};
use tessera_model::{ControllerId, JobId};
use tessera_wire::authority::ClusterAuthority;
use tessera_wire::tls::Authority;
use tokio::runtime::Handle;
use tokio::sync::{broadcast, mpsc, watch};

use super::database;

/// How many submits the fake writer's mailbox holds.
pub const SUBMITS_QUEUED: usize = 2;
/// How long clients of the rig may leave an answer unread.
pub const UNREAD_FOR: Duration = Duration::from_secs(2);

/// The server, and the other ends of its ports.
pub struct Rig {
    pub address: SocketAddr,
    pub client: reqwest::Client,
    pub socket: PathBuf,
    pub tokens: ValidTokens,
    pub directory: Arc<Directory>,
    pub pool: PgPool,
    pub submits: Option<mpsc::Receiver<SubmitCall>>,
    pub placer: Option<mpsc::Receiver<ToPlacer>>,
    pub shape: watch::Sender<Arc<ClusterShape>>,
    pub readiness: watch::Sender<Readiness>,
    pub job_changes: broadcast::Sender<JobChanges>,
    pub figures: FigureCache,
    _folder: TempDir,
}

/// The token in the data folder.
pub const BOOTSTRAP: &str = "bootstrap-s3cret";

/// An authority of the test's own, whose agents nobody serves.
#[expect(clippy::disallowed_methods, reason = "certificates are valid from now on")]
fn certificates(folder: &Path, pool: &PgPool, audit: &AuditLog) -> NodeCertificates {
    let folder = folder.join("identity");
    Authority::create(time::OffsetDateTime::now_utc()).unwrap().save(&folder).unwrap();
    NodeCertificates::open(CertificateParts {
        authority: ClusterAuthority::open(&folder).unwrap(),
        lasts: std::time::Duration::from_secs(86_400),
        rest_names: vec!["gpu.lab".to_owned()],
        address: "gpu.lab:7071".to_owned(),
        audit: audit.clone(),
        pool: pool.clone(),
        runtime: Handle::current(),
    })
}

impl Rig {
    /// Starts a server, whose client is the administrator root.
    pub async fn start() -> Self {
        Self::encrypted(None).await
    }

    /// Starts a server whose address is encrypted, if a configuration is given.
    pub async fn encrypted(tls: Option<rustls::ServerConfig>) -> Self {
        Self::with(tls, None).await
    }

    /// Starts a server on which the tokens of an issuer are valid, too.
    pub async fn with(tls: Option<rustls::ServerConfig>, issuer: Option<Issuer>) -> Self {
        let pool = connect::pool(database::fresh().await, 4);
        let tokens = ValidTokens::open(pool.clone(), Handle::current(), Some(BOOTSTRAP));
        let appointments = Appointments {
            admins: vec!["root".parse().unwrap()],
            operators: vec!["@bin".parse().unwrap()],
            own_uid: None,
        };
        let directory = Arc::new(Directory::new(appointments, accounts()));
        let (submits, submitted) = mpsc::channel(SUBMITS_QUEUED);
        let (placer, asked) = mpsc::channel(16);
        let (shape, shape_seen) = watch::channel(Arc::default());
        let (readiness, readiness_seen) = watch::channel(Readiness::Ready { epoch: 7 });
        let (job_changes, _) = broadcast::channel(64);
        let figures = FigureCache::default();
        let folder = tempfile::tempdir().unwrap();
        let audit = AuditLog::open(pool.clone(), &Handle::current());
        let certificates = certificates(folder.path(), &pool, &audit);
        let live = LiveSettings {
            accounts: accounts(),
            site: Default::default(),
            hosts: HostNames::with(["gpu.lab".to_owned()]),
        };
        let ports = Ports {
            reads: Reads::new(pool.clone(), Handle::current()),
            submits,
            placer,
            shape: shape_seen,
            job_changes: job_changes.clone(),
            readiness: readiness_seen,
            steps: StepReports::new(pool.clone(), Handle::current()),
            tokens: tokens.clone(),
            issuer,
            directory: Arc::clone(&directory),
            audit,
            certificates,
            live: watch::channel(Arc::new(live)).1,
            figures: figures.clone(),
            about: Arc::new(About {
                version: "1.2.3",
                controller: ControllerId::from_uuid(uuid::Uuid::from_u128(1)),
                policy: "scheme-b",
                sends_mail: false,
            }),
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        // Other accounts must get to the socket.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(folder.path(), open).unwrap();
        let socket = folder.path().join("api.sock");
        let unix = vec![bind_socket(&socket).unwrap()];
        let unread_for = Some(UNREAD_FOR);
        let listeners = Listeners { unix, tcp: vec![listener], tls, unread_for, job_calls: None };
        tokio::spawn(http::serve(ports, listeners).unwrap());
        let root = make_token(&tokens, "root", Role::Admin).await;
        Self {
            address,
            client: client(Some(&root)),
            socket,
            tokens,
            directory,
            pool,
            submits: Some(submitted),
            placer: Some(asked),
            shape,
            readiness,
            job_changes,
            figures,
            _folder: folder,
        }
    }

    /// Returns a client with a token that an administrator made for a user.
    pub async fn client_of(&self, user: &str, role: Role) -> reqwest::Client {
        client(Some(&make_token(&self.tokens, user, role).await))
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
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

/// The account lab, whose coordinator is pi.
pub fn accounts() -> Accounts {
    let lab = AccountSettings {
        members: vec!["ada".to_owned()],
        coordinators: vec!["pi".to_owned()],
        share: 1,
        quota: None,
    };
    Accounts::new([].into(), [("lab".to_owned(), lab)].into(), None).unwrap()
}

/// Makes a token that is valid at once.
pub async fn make_token(tokens: &ValidTokens, user: &str, role: Role) -> String {
    let secret = Secret::new(role).unwrap();
    let new = NewToken {
        id: secret.id().to_owned(),
        name: "tests".to_owned(),
        user: user.to_owned(),
        role,
        secret_hash: secret.hash(),
        created_by: "admin".to_owned(),
        valid_secs: 600.0,
    };
    tokens.insert(new).await.unwrap().unwrap();
    secret.text().to_owned()
}

/// Returns a client that sends a token with each request.
pub fn client(token: Option<&str>) -> reqwest::Client {
    // Nothing here is encrypted, but a client requires a provider anyway.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut headers = HeaderMap::new();
    if let Some(token) = token {
        headers.insert(AUTHORIZATION, format!("Bearer {token}").parse().unwrap());
    }
    reqwest::Client::builder().default_headers(headers).build().unwrap()
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
