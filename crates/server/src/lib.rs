//! The HTTP server. A handler does three things: read the request, call one engine method, convert the result.
//!
//! ```text
//!   request ─▶ guard (key, or host and origin) ─▶ route ─▶ handler ─▶ engine
//!                 └─────────────────────────┴──────────┴── refusal ──▶ {"error": {…}}
//! ```
//!
//! The rule: every error response has the same shape, also for routes that do not exist, methods that are not allowed
//! and handlers that panic. A new route goes into the list of its area under `routes/`, with its parameters and
//! responses (see [`contract`]).

mod access;
mod body;
mod contract;
mod diff;
mod error;
mod guard;
mod headers;
mod openapi;
mod query;
mod routes;
mod serve;
mod spelling;
mod ui;
mod views;

pub use access::{Access, KeyHash};
pub use error::Refusal;
pub use headers::keeps_header;
pub use openapi::document;
pub use serve::serve;

use axum::Router;
use axum::extract::{FromRequestParts, Request};
use axum::http::request::Parts;
use axum::middleware;
use axum::response::{IntoResponse, Response};
use engine::Engine;
use kernel::OrgId;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{Semaphore, watch};

pub struct App {
    pub engine: Engine,
    access: Access,
    draining: watch::Sender<bool>,
    /// One permit for each stream that may be open.
    streams: Arc<Semaphore>,
}

/// How many streams may be open at once.
const STREAMS_MAX: usize = 1_000;

impl App {
    pub fn new(engine: Engine, access: Access) -> Arc<App> {
        let (draining, streams) = (watch::Sender::new(false), Arc::new(Semaphore::new(STREAMS_MAX)));
        Arc::new(App { engine, access, draining, streams })
    }

    /// From now on `/readyz` responds with 503, and streams end.
    pub fn drain(&self) {
        self.draining.send_replace(true);
    }

    fn is_draining(&self) -> bool {
        *self.draining.borrow()
    }

    /// The organisation that a request belongs to. There is only one.
    fn org(&self) -> OrgId {
        OrgId::DEFAULT
    }
}

type State = axum::extract::State<Arc<App>>;
type Answer = Result<Response, Refusal>;

/// Every route, and the checks around it.
pub fn router(app: Arc<App>) -> Router {
    let (router, promises) = contract::mount(routes::areas().into_iter().flat_map(|(_, _, routes)| routes).collect());
    router
        .route_layer(middleware::from_fn_with_state(promises, contract::enforce))
        .fallback(routes::system::unknown_route)
        .method_not_allowed_fallback(routes::system::method_not_allowed)
        .layer(middleware::from_fn_with_state(app.clone(), enter))
        .with_state(app)
}

/// The guard and the panic handler as one layer: each layer costs a boxed future and a cloned service per request.
async fn enter(
    axum::extract::State(app): axum::extract::State<Arc<App>>,
    request: Request,
    next: middleware::Next,
) -> Response {
    catch_panic(guard::check(&app, request, next)).await
}

/// A panic in one handler affects only its own request.
async fn catch_panic(handling: impl Future<Output = Response>) -> Response {
    let mut handling = std::pin::pin!(handling);
    let polled = |context: &mut Context<'_>| {
        let poll = AssertUnwindSafe(|| handling.as_mut().poll(context));
        match std::panic::catch_unwind(poll) {
            Ok(poll) => poll.map(Some),
            Err(_) => Poll::Ready(None),
        }
    };
    match std::future::poll_fn(polled).await {
        Some(response) => response,
        None => {
            tracing::error!("a request handler panicked");
            Refusal::new(api::Code::Internal, "this request hit a bug in the server").into_response()
        }
    }
}

/// Path parameters, with an API error if they are not UTF-8.
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
