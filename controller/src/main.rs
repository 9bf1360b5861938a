//! `tessera-controller`: reads its settings, opens what it needs, and serves until it is stopped.

use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use actix::Recipient;
use actix_web::dev::ServerHandle;
use anyhow::Context as _;
use clap::{CommandFactory as _, Parser as _};
use tessera_control::ClusterState;
use tessera_controller::actors::leadership::{LeaderCandidate, StoreRolledBack, Trust};
use tessera_controller::actors::links::{LinkParts, NodeReceipts};
use tessera_controller::actors::placer::{self, DEPOSED_STATUS, PlacerParts};
use tessera_controller::actors::{intake, links, prediction_metrics, retention, trainer};
use tessera_controller::audit::AuditLog;
use tessera_controller::calls::{Calls, JobCallSocket};
use tessera_controller::directory::Directory;
use tessera_controller::figures::FigureCache;
use tessera_controller::identity::{self, DataFolder};
use tessera_controller::kernel_reports::KernelReports;
use tessera_controller::listeners::{self, Listeners};
use tessera_controller::live::{LiveSettings, RetentionTimes};
use tessera_controller::memory::StoreMemory;
use tessera_controller::node_certificates::{CertificateParts, NodeCertificates};
use tessera_controller::notifications::{self, Outbox, Senders};
use tessera_controller::oidc::{Issuer, KeyPace};
use tessera_controller::ports::{
    About, ClusterShape, JobChanges, Ports, Readiness, SubmitCall, ToPlacer,
};
use tessera_controller::reload::{self, LiveParts, Reloader};
use tessera_controller::settings::{Command, ServeArgs, Settings, Verb};
use tessera_controller::step_reports::StepReports;
use tessera_controller::store::connect::{self, Durability};
use tessera_controller::store::database::Database;
use tessera_controller::store::{self, ConnectOptions, Reads, recent_usage, snapshot};
use tessera_controller::tokens::ValidTokens;
use tessera_controller::{clock, http, process_metrics};
use tessera_model::Millis;
use tessera_model::lease::LeaseTerms;
use tessera_model::number::clamped;
use tessera_placement::{Policy, policy};
use tessera_wire::tls::{self, RenewableCertificate};
use tokio::runtime::Handle;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{broadcast, mpsc, watch};

/// Returns freed memory to the system, which the C library's allocator keeps: after 2,000 slow connections and
/// 10,000 unfinished handshakes that was as much as before them. Its settings are in `.cargo/config.toml`.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Submits that may wait for a commit; beyond it clients have to try again.
const SUBMITS_WAITING_MAX: usize = 8_192;
/// Batches of accepted jobs on their way to the placer.
const FRESH_BATCHES_MAX: usize = 1_024;
/// Questions for the placer that may wait.
const QUESTIONS_WAITING_MAX: usize = 1_024;
/// Announcements of moves that a slow listener may lag behind.
const MOVES_KEPT: usize = 1_024;
/// How long the agents' answers to a good-bye are waited for.
const GOODBYES_WITHIN: std::time::Duration = std::time::Duration::from_millis(500);

fn main() -> ExitCode {
    let command = Command::parse();
    let done = match &command.verb {
        Some(Verb::Init { data }) => identity::init(data).map(|()| {
            println!(
                "{} is ready: next, tessera-controller node-cert NAME --data {0} --out FOLDER",
                data.display()
            );
            0
        }),
        Some(Verb::NodeCert { name, data, out }) => {
            identity::node_cert(data, name, out).map(|node| {
                println!(
                    "{} is the identity of {name} ({node}): copy it to the agent's DATA/identity",
                    out.display()
                );
                0
            })
        }
        Some(Verb::Reload { pid }) => reload::request(&command.serve, *pid).and_then(|result| {
            match (result.error, result.changed.as_slice()) {
                (Some(error), _) => anyhow::bail!("not reloaded: {error}"),
                (None, []) => println!("no setting has changed"),
                (None, changed) => println!("changed: {}", changed.join(", ")),
            }
            Ok(0)
        }),
        Some(Verb::Openapi) => http::openapi()
            .to_pretty_json()
            .context("can't print the API's description")
            .map(|text| {
                println!("{text}");
                0
            }),
        Some(Verb::Manual { out }) => write_manual(out).map(|()| 0),
        None => Settings::resolve(&command.serve).and_then(|settings| {
            if command.serve.check {
                print!("{}", toml::to_string(&settings.shown())?);
                return Ok(0);
            }
            serve(command.serve.clone(), settings)
        }),
    };
    match done {
        Ok(0) => ExitCode::SUCCESS,
        Ok(status) => ExitCode::from(clamped::<u8>(status)),
        Err(error) => {
            eprintln!("tessera-controller: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn write_manual(out: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(out)?;
    clap_mangen::generate_to(Command::command(), out)
        .with_context(|| format!("can't write manual pages to {}", out.display()))
}

fn serve(arguments: ServeArgs, settings: Settings) -> anyhow::Result<i32> {
    let telemetry = tessera_telemetry::init("tessera-controller")?;
    let open_files = listeners::raise_open_files();
    tracing::debug!(open_files, "limit of open files");
    let folder = identity::open(&settings.data)?;
    let http = TcpListener::bind(settings.http)
        .with_context(|| format!("can't listen on {}", settings.http))?;
    let socket = listeners::bind_socket(&settings.socket_path())?;
    // Before the runtime: its server is tied to its own thread.
    let database = Database::open(&settings.database, &settings.data, !settings.not_durable)?;
    // Submits and reads have their own threads. The placer, its rounds and the agents' links
    // share this one: each step of a job passes all three, and a hop between threads costs more
    // than the step.
    let others = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let system = actix::System::new();
    let options = database.options.clone();
    system.block_on(async {
        let settings = (arguments, settings);
        let status =
            Box::pin(run(settings, &folder, (http, socket), options, others.handle())).await;
        if let Err(error) = status {
            tracing::error!(error = format!("{error:#}"), "can't serve");
            actix::System::current().stop_with_code(1);
        }
    });
    let status = system.run_with_code()?;
    database.close();
    // Its lock is held until exit: a successor must not find this process's server.
    drop(folder);
    drop(telemetry);
    if status == DEPOSED_STATUS {
        tracing::error!("another controller leads: this one ends");
    }
    Ok(status)
}

async fn run(
    (arguments, settings): (ServeArgs, Settings),
    folder: &DataFolder,
    (http, socket): (TcpListener, UnixListener),
    options: ConnectOptions,
    others: &Handle,
) -> anyhow::Result<()> {
    // From now on: a reload that comes early waits until this controller serves.
    let hangups = reload::hangups()?;
    let durability = if settings.not_durable { Durability::Waived } else { Durability::Required };
    connect::prepare(&options, durability).await?;
    let policy =
        policy::on_terms(&settings.policy, settings.policy_terms()).context("unknown policy")?;
    let now_live = reload::live_settings(&settings, own_names(&settings))?;
    let accounts = now_live.accounts.clone();
    let (live, lives) = watch::channel(Arc::new(now_live));
    let (kept, keeps) = watch::channel(reload::retention_times(&settings));
    let senders = Senders::open(settings.mail.as_ref(), settings.webhook.as_ref())?;
    let audit = audit_log(&options, others);
    let certificates = node_certificates(&settings, &options, others, &audit)?;
    let parts = PortParts {
        reads: reads(&options, others),
        steps: step_reports(&options, others),
        tokens: tokens(&options, others, &folder.token),
        issuer: issuer(&settings, others)?,
        directory: Arc::new(Directory::new(
            settings.appointments(rustix::process::geteuid().as_raw()),
            accounts,
        )),
        audit,
        certificates: certificates.clone(),
        live: lives,
        about: Arc::new(About {
            version: env!("CARGO_PKG_VERSION"),
            controller: folder.controller,
            policy: policy.name(),
            sends_mail: settings.mail.is_some(),
        }),
    };
    let directory = Arc::clone(&parts.directory);
    let address = http.local_addr()?;
    let (ports, ends) = connect_ports(parts);
    let (tls, certificate) = tls_config(&settings, folder, &certificates)?;
    let (job_calls, carried) = JobCallSocket::open(&settings.data)?;
    let on = Listeners {
        unix: vec![socket, carried],
        tcp: vec![http],
        tls,
        unread_for: None,
        job_calls: Some(job_calls.clone()),
    };
    let server = http::serve(ports, on)?;
    let (listening, agents) = watch::channel(None::<quinn::Endpoint>);
    actix::spawn(stop_at_signal(server.handle(), agents));
    actix::spawn(server);

    let terms = settings.lease_terms()?;
    let memory = Arc::new(StoreMemory::open(&settings.data)?);
    let candidate = LeaderCandidate {
        controller: folder.controller,
        pool: connect::pool(options.clone(), 3),
        memory: Arc::clone(&memory),
        trust: if settings.ha { Trust::leased() } else { Trust::unlimited() },
        lease: terms.controller_expiry(Millis::ZERO),
    };
    let epoch = candidate.lead(&ends.readiness).await?;
    let cluster = read_cluster(&settings, &candidate, epoch, terms, policy).await?;
    let (epochs, held) = watch::channel(epoch);
    let kernels = KernelReports::new(candidate.pool.clone());
    let (fresh, accepted) = mpsc::channel(FRESH_BATCHES_MAX);
    let outbox = Outbox::new(settings.mail.as_ref(), settings.webhook.as_ref());
    let parts = PlacerParts {
        options: options.clone(),
        candidate: candidate.clone(),
        shape: ends.shape,
        job_changes: ends.job_changes,
        readiness: ends.readiness.clone(),
        epoch: epochs,
        outbox: outbox.clone(),
        figures: ends.figures.clone(),
    };
    let placer = placer::start(cluster, parts, ends.queries, accepted);
    intake::start(others, &options, &memory, ends.calls, fresh, &outbox);
    notifications::start(others, &options, senders, &outbox);
    process_metrics::start(&settings.data, &folder.identity)?;
    start_upkeep(&settings, others, &options, &ends.reports, (held.clone(), keeps));
    actix::spawn(keep_leading(candidate, held, placer.clone().recipient()));
    // Before agents connect: none that was revoked gets in.
    certificates.read().await?;
    let endpoint = listen(&settings, folder, &certificates)?;
    let quic = endpoint.local_addr()?;
    listening.send_replace(Some(endpoint.clone()));
    let receipts = NodeReceipts { controller: folder.controller, key: folder.receipts.clone() };
    let receipts = Arc::new(receipts);
    let queries = ends.reports.clone();
    let calls = Calls { placer: ends.reports, job_calls };
    let links = LinkParts { receipts, certificates, figures: ends.figures, kernels, calls };
    tokio::spawn(links::serve(endpoint, placer, links));
    ends.readiness.send_replace(Readiness::Ready { epoch });
    let parts = LiveParts { live, kept, directory, placer: queries, certificate };
    let own_names = own_names(&settings);
    let policy = settings.policy.clone();
    actix::spawn(Reloader::new(arguments, settings, own_names, parts).run(hangups));
    tessera_telemetry::service::notify_ready(&format!(
        "serving on {address} (API) and {quic} (agents)"
    ));
    tracing::info!(%address, %quic, epoch, policy, "serving");
    Ok(())
}

/// What the ports of the HTTP server lead to.
struct PortEnds {
    readiness: watch::Sender<Readiness>,
    shape: watch::Sender<Arc<ClusterShape>>,
    calls: mpsc::Receiver<SubmitCall>,
    queries: mpsc::Receiver<ToPlacer>,
    /// Another sender of queries, for the trainers.
    reports: mpsc::Sender<ToPlacer>,
    job_changes: broadcast::Sender<JobChanges>,
    figures: FigureCache,
}

/// What the HTTP server works with in addition to channels.
struct PortParts {
    reads: Reads,
    steps: StepReports,
    tokens: ValidTokens,
    issuer: Option<Issuer>,
    directory: Arc<Directory>,
    audit: AuditLog,
    certificates: NodeCertificates,
    live: watch::Receiver<Arc<LiveSettings>>,
    about: Arc<About>,
}

/// Returns the ports of the HTTP server, and what they lead to.
fn connect_ports(parts: PortParts) -> (Ports, PortEnds) {
    let PortParts { reads, steps, tokens, issuer, directory, audit, certificates, live, about } =
        parts;
    let starting = Readiness::NotReady { reason: "the controller is starting".to_owned() };
    let (readiness, ready) = watch::channel(starting);
    let (shape, shapes) = watch::channel(Arc::new(ClusterShape::default()));
    let (submits, calls) = mpsc::channel(SUBMITS_WAITING_MAX);
    let (placer, queries) = mpsc::channel(QUESTIONS_WAITING_MAX);
    let (job_changes, _) = broadcast::channel(MOVES_KEPT);
    let figures = FigureCache::default();
    let ends = PortEnds {
        readiness,
        shape,
        calls,
        queries,
        reports: placer.clone(),
        job_changes: job_changes.clone(),
        figures: figures.clone(),
    };
    let ports = Ports {
        reads,
        submits,
        placer,
        shape: shapes,
        job_changes,
        readiness: ready,
        steps,
        tokens,
        issuer,
        directory,
        audit,
        certificates,
        live,
        figures,
        about,
    };
    (ports, ends)
}

/// Renews the leader's lease, and ends the controller once another one leads.
async fn keep_leading(
    candidate: LeaderCandidate,
    epoch: watch::Receiver<u64>,
    placer: Recipient<StoreRolledBack>,
) {
    candidate.keep(epoch, placer).await;
    actix::System::current().stop_with_code(DEPOSED_STATUS);
}

/// Reads the cluster from the store, as the leader of an epoch.
async fn read_cluster(
    settings: &Settings,
    candidate: &LeaderCandidate,
    epoch: u64,
    terms: LeaseTerms,
    policy: Box<dyn Policy>,
) -> anyhow::Result<ClusterState> {
    let mut connection = store::acquire(&candidate.pool).await?;
    let snapshot = snapshot::read_snapshot(&mut connection).await?;
    let usage = recent_usage::read_recent_usage(&mut connection, settings.half_life()).await?;
    drop(connection);
    let mut cluster =
        ClusterState::new(epoch, candidate.controller, terms, policy, snapshot, clock::boot());
    settings.placement().apply_to(&mut cluster);
    cluster.set_accounts(settings.accounts()?, usage, clock::boot());
    Ok(cluster)
}

/// Starts what needs no round: the trainers of predictions, and the sweeps of old rows.
fn start_upkeep(
    settings: &Settings,
    runtime: &Handle,
    options: &ConnectOptions,
    placer: &mpsc::Sender<ToPlacer>,
    (epoch, kept): (watch::Receiver<u64>, watch::Receiver<RetentionTimes>),
) {
    prediction_metrics::register_series();
    let every = Millis::from_secs(settings.learn_every).duration();
    trainer::watch_kernels(runtime, options.clone(), placer.clone());
    trainer::start_colocation_trainer(runtime, options.clone(), placer.clone(), every);
    trainer::start_slice_trainer(runtime, options.clone(), placer.clone(), every);
    retention::start_sweeps(runtime, options.clone(), epoch, kept);
}

/// Stops serving at a signal, and closes the connections of the agents.
async fn stop_at_signal(
    server: ServerHandle,
    mut agents: watch::Receiver<Option<quinn::Endpoint>>,
) {
    wait_for_signal().await;
    tracing::info!("stopping");
    tessera_telemetry::service::notify_stopping();
    server.stop(true).await;
    let endpoint = agents.borrow_and_update().clone();
    if let Some(endpoint) = endpoint {
        // Agents learn of the end now, and look for a successor at once.
        endpoint.close(0_u32.into(), b"the controller stops");
        let _ = tokio::time::timeout(GOODBYES_WITHIN, endpoint.wait_idle()).await;
    }
    actix::System::current().stop();
}

/// Opens reads on their own runtime, where their pool's upkeep runs too: a connection belongs to
/// the runtime that it was opened on.
fn reads(options: &ConnectOptions, runtime: &Handle) -> Reads {
    let _inside = runtime.enter();
    Reads::new(connect::pool(options.clone(), 8), runtime.clone())
}

fn step_reports(options: &ConnectOptions, runtime: &Handle) -> StepReports {
    let _inside = runtime.enter();
    StepReports::new(connect::pool(options.clone(), 2), runtime.clone())
}

/// Opens the tokens on the runtime of reads: one connection listens, others change and read.
fn tokens(options: &ConnectOptions, runtime: &Handle, bootstrap: &str) -> ValidTokens {
    let _inside = runtime.enter();
    ValidTokens::open(connect::pool(options.clone(), 3), runtime.clone(), Some(bootstrap))
}

/// Opens the issuer of other tokens, if one is configured.
fn issuer(settings: &Settings, runtime: &Handle) -> anyhow::Result<Option<Issuer>> {
    let open = |oidc| Issuer::open(oidc, KeyPace::default(), runtime.clone());
    settings.oidc.clone().map(open).transpose()
}

fn audit_log(options: &ConnectOptions, runtime: &Handle) -> AuditLog {
    let _inside = runtime.enter();
    AuditLog::open(connect::pool(options.clone(), 1), runtime)
}

/// The names of this machine, where the API is reached from outside.
fn own_names(settings: &Settings) -> Vec<String> {
    let ip = settings.http.ip();
    if ip.is_loopback() {
        return Vec::new();
    }
    let mut names = vec![tessera_wire::tls::CONTROLLER_NAME.to_owned()];
    names.extend(nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok()));
    if !ip.is_unspecified() {
        names.push(if ip.is_ipv6() { format!("[{ip}]") } else { ip.to_string() });
    }
    names
}

/// The names of the REST API in its certificate.
fn rest_names(settings: &Settings) -> Vec<String> {
    let mut names = vec!["localhost".to_owned(), "127.0.0.1".to_owned(), "::1".to_owned()];
    names.extend(own_names(settings).into_iter().chain(settings.hosts.iter().cloned()));
    for name in &mut names {
        *name = name.trim_matches(['[', ']']).to_owned();
    }
    names
}

/// The address for agents, as the command for joining names it.
fn agents_address(settings: &Settings) -> String {
    let quic = settings.quic;
    if !quic.ip().is_unspecified() {
        return quic.to_string();
    }
    let own = || nix::unistd::gethostname().ok().and_then(|name| name.into_string().ok());
    let host = settings.hosts.first().cloned().or_else(own);
    format!("{}:{}", host.unwrap_or_else(|| "CONTROLLER".to_owned()), quic.port())
}

fn node_certificates(
    settings: &Settings,
    options: &ConnectOptions,
    runtime: &Handle,
    audit: &AuditLog,
) -> anyhow::Result<NodeCertificates> {
    let _inside = runtime.enter();
    Ok(NodeCertificates::open(CertificateParts {
        authority: identity::authority(&settings.data)?,
        lasts: settings.node_certificate_life()?,
        rest_names: rest_names(settings),
        address: agents_address(settings),
        audit: audit.clone(),
        pool: connect::pool(options.clone(), 3),
        runtime: runtime.clone(),
    }))
}

/// Listens for agents, with certificates that are renewed while it does.
fn listen(
    settings: &Settings,
    folder: &DataFolder,
    certificates: &NodeCertificates,
) -> anyhow::Result<quinn::Endpoint> {
    let Some(server) = certificates.server()? else {
        tracing::warn!("without identity/ca.key no certificate is issued or renewed here");
        return Ok(tessera_wire::endpoint::listen(&folder.identity, settings.quic)?);
    };
    let endpoint = tessera_wire::endpoint::listen_with(&folder.identity, server, settings.quic)?;
    let renewed = endpoint.clone();
    tokio::spawn(certificates.clone().keep_own(move |certificates| {
        // Connections that exist keep what they have.
        renewed.set_server_config(certificates.server()?);
        Ok(())
    }));
    Ok(endpoint)
}

/// Returns how the REST API is encrypted, if it is, and how a certificate from files is replaced.
fn tls_config(
    settings: &Settings,
    folder: &DataFolder,
    certificates: &NodeCertificates,
) -> anyhow::Result<(Option<rustls::ServerConfig>, Option<RenewableCertificate>)> {
    if let (Some(certificate), Some(key)) = (&settings.tls_cert, &settings.tls_key) {
        let identity = tls::rest_identity_from_files(certificate, key)?;
        let (config, renewable) = identity.renewable_rest_server()?;
        return Ok((Some(config), Some(renewable)));
    }
    if !settings.tls {
        return Ok((None, None));
    }
    let names = rest_names(settings).join(", ");
    let (config, renewable) = certificates
        .rest()
        .map_err(anyhow::Error::from)
        .and_then(|identity| Ok(identity.renewable_rest_server()?))
        .with_context(|| format!("no certificate for {names}"))?;
    tracing::info!(names, controller = %folder.controller, "REST API with TLS");
    tokio::spawn(certificates.clone().keep_own(move |certificates| {
        renewable.replace(&certificates.rest()?)?;
        Ok(())
    }));
    Ok((Some(config), None))
}

async fn wait_for_signal() {
    let terminate = signal(SignalKind::terminate());
    let interrupt = signal(SignalKind::interrupt());
    let (Ok(mut terminate), Ok(mut interrupt)) = (terminate, interrupt) else {
        tracing::error!("can't listen for signals");
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}
