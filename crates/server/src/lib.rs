//! Speaks HTTP. Handlers do three things: read the request, call one engine method, convert the answer.
//!
//! ```text
//!   request ─▶ guard (host, origin) ─▶ route ─▶ handler ─▶ engine
//!                 └───────────┴───────────┴── refusal ──▶ {"error": {…}}
//! ```
//!
//! The rule: every path out of here has the one error shape, also for routes that do not exist,
//! methods that are not allowed and handlers that panic. A new route goes into [`router`] and a file
//! under `routes/`.

mod body;
mod error;
mod guard;
mod headers;
mod query;
mod routes;
mod views;

pub use error::Refusal;

use axum::Router;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, get, post};
use engine::Engine;
use kernel::OrgId;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::net::TcpListener;

pub struct App {
    pub engine: Engine,
    /// Hosts besides loopback that requests may be addressed to.
    pub hosts: Vec<String>,
    is_draining: AtomicBool,
}

impl App {
    pub fn new(engine: Engine, hosts: Vec<String>) -> Arc<App> {
        Arc::new(App { engine, hosts, is_draining: AtomicBool::new(false) })
    }

    /// From now on `/readyz` says no.
    pub fn drain(&self) {
        self.is_draining.store(true, Ordering::Relaxed);
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    /// The organisation a request speaks for. `dev` has one and asks for no key.
    fn org(&self) -> OrgId {
        OrgId::DEFAULT
    }
}

type State = axum::extract::State<Arc<App>>;
type Answer = Result<Response, Refusal>;

/// Every route there is.
pub fn router(app: Arc<App>) -> Router {
    use routes::{callbacks, runs, system, triggers, webhooks, workflows};
    let api = Router::new()
        .route("/workflows", get(workflows::list).post(workflows::create))
        .route("/workflows/validate", post(workflows::validate))
        .route("/workflows/{workflow}", get(workflows::show))
        .route("/workflows/{workflow}/trigger", post(workflows::trigger))
        .route("/workflows/{workflow}/runs", get(runs::list_of_workflow))
        .route("/workflows/{workflow}/runs/{run}", get(runs::show_of_workflow))
        .route("/workflows/{workflow}/runs/{run}/cancel", post(runs::cancel_of_workflow))
        .route("/runs", get(runs::list))
        .route("/runs/{run}", get(runs::show))
        .route("/runs/{run}/steps", get(runs::steps))
        .route("/runs/{run}/events", get(runs::events))
        .route("/runs/{run}/cancel", post(runs::cancel))
        .route("/triggers", get(triggers::list).post(triggers::create))
        .route("/triggers/preview", get(triggers::preview_of))
        .route("/triggers/manual/run", post(triggers::run_by_hand))
        .route("/triggers/{trigger}", get(triggers::show).patch(triggers::change).delete(triggers::delete))
        .route("/triggers/{trigger}/enable", post(triggers::enable))
        .route("/triggers/{trigger}/disable", post(triggers::disable))
        .route("/triggers/{trigger}/run", post(triggers::run))
        .route("/triggers/{trigger}/preview", get(triggers::preview))
        .route("/triggers/{trigger}/deliveries", get(triggers::deliveries))
        .route("/triggers/{trigger}/deliveries/{delivery}/redeliver", post(triggers::redeliver))
        .route("/version", get(system::version))
        .route("/dev/clock", get(system::clock).post(system::advance_clock));
    Router::new()
        .nest("/api/v1", api)
        .route("/", get(system::hello))
        .route("/wh/{token}", post(callbacks::receive))
        .route("/webhooks/{*path}", any(webhooks::receive))
        .route("/healthz", get(system::healthz))
        .route("/readyz", get(system::readyz))
        .route("/metrics", get(system::metrics))
        .fallback(system::unknown_route)
        .method_not_allowed_fallback(system::method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), guard::check))
        .layer(middleware::from_fn(catch_panic))
        .with_state(app)
}

/// Serves until `until` resolves, then lets open requests finish.
pub async fn serve(
    listener: TcpListener,
    app: Arc<App>,
    until: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    use axum::serve::ListenerExt;
    // Answers are small and complete: waiting for more to send with them only adds latency.
    let listener = listener.tap_io(|socket| drop(socket.set_nodelay(true)));
    axum::serve(listener, router(app)).with_graceful_shutdown(until).await
}

/// A bug in one handler is that request's trouble and nobody else's.
async fn catch_panic(request: Request, next: middleware::Next) -> Response {
    match tokio::spawn(next.run(request)).await {
        Ok(response) => response,
        Err(error) => {
            tracing::error!(%error, "a request handler failed");
            Refusal::new(api::Code::Internal, "this request hit a bug in the server").into_response()
        }
    }
}

/// Path parameters, with our error shape when they are not UTF-8.
pub(crate) struct Path<T>(pub T);

impl<T, S> FromRequestParts<S> for Path<T>
where
    T: serde::de::DeserializeOwned + Send,
    S: Send + Sync,
{
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        match axum::extract::Path::<T>::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Path(value)),
            Err(_) => Err(Refusal::new(api::Code::MalformedPath, "the path is not valid percent-encoded UTF-8")),
        }
    }
}
