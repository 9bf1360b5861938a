//! The ceiling that submits are measured against, with the same libraries and the same database.
//!
//! The server does the least that it can: it stores one row for each request before it answers.
//!
//! It checks nothing, knows no jobs, and shares commits between requests that wait together.

use std::net::SocketAddr;
use std::time::Duration;

use actix_web::{App, HttpResponse, HttpServer, web};
use sqlx::PgPool;
use sqlx::postgres::PgPoolOptions;
use tokio::sync::{mpsc, oneshot};

/// Most requests that share one commit.
const BATCH_MAX: usize = 256;

type Waiting = (String, oneshot::Sender<i64>);

/// Serves until it is killed.
///
/// # Errors
///
/// If the database or the address can't be had.
pub fn serve(address: SocketAddr, database: &str) -> anyhow::Result<()> {
    actix_web::rt::System::with_tokio_rt(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.enable_all().build().expect("a runtime")
    })
    .block_on(async {
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(10))
            .connect(database)
            .await?;
        sqlx::query("CREATE TABLE IF NOT EXISTS bare (id bigserial PRIMARY KEY, spec jsonb)")
            .execute(&pool)
            .await?;
        let (sender, waiting) = mpsc::channel::<Waiting>(4096);
        tokio::spawn(write(pool, waiting));
        HttpServer::new(move || {
            App::new()
                .app_data(web::Data::new(sender.clone()))
                .route("/healthz", web::get().to(HttpResponse::Ok))
                .route("/bare", web::post().to(insert))
        })
        .bind(address)?
        .run()
        .await?;
        Ok(())
    })
}

async fn insert(body: String, writer: web::Data<mpsc::Sender<Waiting>>) -> HttpResponse {
    let (answer, written) = oneshot::channel();
    if writer.send((body, answer)).await.is_err() {
        return HttpResponse::ServiceUnavailable().finish();
    }
    match written.await {
        Ok(id) => HttpResponse::Created().body(format!("{{\"job_id\":{id}}}")),
        Err(_) => HttpResponse::ServiceUnavailable().finish(),
    }
}

async fn write(pool: PgPool, mut waiting: mpsc::Receiver<Waiting>) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    while waiting.recv_many(&mut batch, BATCH_MAX).await > 0 {
        let (specs, answers): (Vec<String>, Vec<_>) = batch.drain(..).unzip();
        let ids: Result<Vec<i64>, _> = sqlx::query_scalar(
            "INSERT INTO bare (spec) SELECT spec::jsonb FROM UNNEST($1::text[]) AS spec \
             RETURNING id",
        )
        .bind(specs)
        .fetch_all(&pool)
        .await;
        // A dropped answer means that the row of its request was not stored.
        let Ok(ids) = ids else { continue };
        for (answer, id) in answers.into_iter().zip(ids) {
            let _ = answer.send(id);
        }
    }
}
