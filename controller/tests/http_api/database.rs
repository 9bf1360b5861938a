//! One private PostgreSQL for all tests of this program, and its own database for each.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;

use sqlx::postgres::PgConnectOptions;
use sqlx::{Connection, PgConnection};
use tessera_controller::store::connect::MIGRATOR;
use tessera_controller::store::private::PrivatePostgres;
use tokio::sync::OnceCell;

/// Begins the names of servers' folders; the number of the process follows.
const FOLDER: &str = "tessera-http-";

/// Starts the server. It ends with the thread that started it, so that thread sleeps for as
/// long as the tests run; the system ends it, and the server with it.
fn server() -> &'static PgConnectOptions {
    static SERVER: OnceLock<PgConnectOptions> = OnceLock::new();
    SERVER.get_or_init(|| {
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            clear_up();
            let folder = std::env::temp_dir().join(format!("{FOLDER}{}", std::process::id()));
            // Numbers of processes come around.
            let _ = std::fs::remove_dir_all(&folder);
            let server = PrivatePostgres::start(&folder, false).unwrap();
            tell.send(server.options()).unwrap();
            loop {
                std::thread::park();
            }
        });
        told.recv().unwrap()
    })
}

/// Removes what test programs left behind that are gone: none can do so at its own end.
fn clear_up() {
    for entry in std::fs::read_dir(std::env::temp_dir()).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let process = name.strip_prefix(FOLDER).and_then(|number| number.parse::<u32>().ok());
        if process.is_some_and(|process| !Path::new(&format!("/proc/{process}")).exists()) {
            // Another test program may be at it too.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes a fresh database with the schema.
pub async fn fresh() -> PgConnectOptions {
    static MADE: AtomicU32 = AtomicU32::new(0);
    static TEMPLATE: OnceCell<()> = OnceCell::const_new();
    let server = tokio::task::spawn_blocking(server).await.unwrap();
    TEMPLATE.get_or_init(|| make_template(server)).await;
    let name = format!("http_{}", MADE.fetch_add(1, Ordering::Relaxed));
    run(server, format!("CREATE DATABASE {name} TEMPLATE http_template")).await;
    server.clone().database(&name)
}

async fn make_template(server: &PgConnectOptions) {
    run(server, "CREATE DATABASE http_template".to_owned()).await;
    let options = server.clone().database("http_template");
    let mut connection = PgConnection::connect_with(&options).await.unwrap();
    MIGRATOR.run(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}

async fn run(server: &PgConnectOptions, statement: String) {
    let mut connection = PgConnection::connect_with(server).await.unwrap();
    sqlx::raw_sql(sqlx::AssertSqlSafe(statement)).execute(&mut connection).await.unwrap();
    connection.close().await.unwrap();
}
