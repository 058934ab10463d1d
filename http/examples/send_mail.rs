// Sends mail from a web app. The page docs/how-to/send-mail.md shows this program.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use duly::worker::ShutdownSignals;
use duly::{Args, BoxError, CancellationToken, Ctx, Duly, PushExt};
use serde::{Deserialize, Serialize};

#[derive(Deserialize)]
struct SignUp {
    email: String,
}

#[derive(Serialize, Deserialize)]
struct Welcome {
    to: String,
}

impl Args for Welcome {
    const KIND: &'static str = "mail.welcome";
}

/// The client of your mail provider. All attempts share it.
struct Mailer;

impl Mailer {
    async fn send(&self, to: &str, message_id: &str) -> Result<(), BoxError> {
        println!("mail {message_id} to {to}");
        Ok(())
    }
}

/// The request handler: pushes the job and responds.
async fn sign_up(State(duly): State<Duly>, Json(form): Json<SignUp>) -> Result<StatusCode, (StatusCode, String)> {
    let mail = Welcome { to: form.email }.queue("mail").max_attempts(10).timeout(Duration::from_secs(30));
    match duly.push(mail).await {
        Ok(_) => Ok(StatusCode::ACCEPTED),
        Err(error) => Err((StatusCode::SERVICE_UNAVAILABLE, error.to_string())),
    }
}

/// The job handler: an error means that the worker tries again later.
async fn send_welcome(job: Welcome, ctx: Ctx, mailer: Arc<Mailer>) -> Result<(), BoxError> {
    mailer.send(&job.to, &ctx.job().id.to_string()).await
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let duly = Duly::open(":memory:").await?; // "mail.db" for a file
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?; // 0: any free port
    println!("listening on {}", listener.local_addr()?);

    // SIGTERM or Ctrl-C stops both parts; a second signal stops the worker at once.
    let (stop, stop_now) = (CancellationToken::new(), CancellationToken::new());
    let _signals = ShutdownSignals::listen(stop.clone(), stop_now.clone())?;

    let app = Router::new().route("/sign-up", post(sign_up)).with_state(duly.clone());
    let server = axum::serve(listener, app).with_graceful_shutdown(stop.clone().cancelled_owned());
    let worker = duly.worker().queue("mail", 10).on_with(Arc::new(Mailer), send_welcome);
    let serve = async { server.await.map_err(BoxError::from) };
    let work = async { worker.run_with_shutdown(stop, stop_now).await.map_err(BoxError::from) };
    let (_, summary) = tokio::try_join!(serve, work)?;
    println!("{} mails sent", summary.acked);
    Ok(())
}
