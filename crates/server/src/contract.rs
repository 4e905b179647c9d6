//! What each route promises: its parameters, its body, and every answer it can give.
//!
//! ```text
//!   routes/*.rs ── Route ─┬─▶ Router         the handler
//!                         ├─▶ hold           unknown parameters refused, answers checked
//!                         └─▶ openapi.json   the document
//! ```
//!
//! The rule: a [`Route`] is the only way to a handler, so one that is not in the document cannot exist,
//! and a parameter that is not in the document is refused. What follows from a route's shape (a run in
//! its path, a body, the guard before it) is said here once; a route only names what is its own. In
//! debug builds an answer that was not promised is a panic, so every test looks for one.

use crate::{App, Refusal};
use api::Code;
use axum::extract::{MatchedPath, Request, State};
use axum::handler::Handler;
use axum::http::Method;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodFilter, MethodRouter};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub type SchemaOf = fn(&mut SchemaGenerator) -> Schema;

/// A parameter in the query, in a header or in the path.
#[derive(Clone, Copy)]
pub struct Param {
    pub name: &'static str,
    pub about: &'static str,
    pub schema: fn() -> Value,
    /// May be given several times.
    pub is_repeated: bool,
}

impl Param {
    pub const fn new(name: &'static str, about: &'static str, schema: fn() -> Value) -> Param {
        Param { name, about, schema, is_repeated: false }
    }

    pub const fn repeated(mut self) -> Param {
        self.is_repeated = true;
        self
    }
}

/// What a request may carry.
#[derive(Clone, Copy)]
pub enum Carries {
    /// A definition, in JSON or YAML.
    Definition,
    /// A definition, or only what the workflow shall be called.
    Change,
    /// JSON of the caller's own.
    Payload,
    /// Any bytes of any type.
    Bytes,
    /// An object of ours.
    Json { schema: SchemaOf, is_required: bool },
}

/// What a good answer looks like. (`allow`: not every shape has a route yet.)
#[allow(dead_code)]
#[derive(Clone, Copy)]
pub enum Shape {
    /// `{"data": …}`
    Data(SchemaOf),
    /// `{"data": […], "next": …}`
    Page(SchemaOf),
    /// The type says all of it.
    Whole(SchemaOf),
    /// Server-sent events, each with one of these as its data.
    Events(SchemaOf),
    /// Anything in this media type.
    Plain(&'static str),
    Nothing,
}

pub struct Route {
    pub methods: Vec<Method>,
    pub path: &'static str,
    pub id: &'static str,
    pub summary: &'static str,
    pub query: Vec<Param>,
    pub headers: Vec<Param>,
    pub carries: Option<Carries>,
    pub answers: Vec<(u16, &'static str, Shape)>,
    handler: MethodRouter<Arc<App>>,
    codes: Vec<Code>,
    is_open: bool,
    is_plain: bool,
    is_one_write: bool,
}

/// A route at `path`. `id` names the operation for generated clients and never changes.
macro_rules! methods {
    ($($name:ident $method:ident)*) => {$(
        pub fn $name<H, T>(path: &'static str, handler: H, id: &'static str, summary: &'static str) -> Route
        where
            H: Handler<T, Arc<App>>,
            T: 'static,
        {
            Route::new(vec![Method::$method], path, routing::$name(handler), id, summary)
        }
    )*};
}
// `allow`: not every method has a route yet.
#[allow(dead_code)]
mod constructors {
    use super::*;
    methods! { get GET post POST put PUT patch PATCH delete DELETE }

    /// Answers to every method that carries or asks for something.
    pub fn any<H, T>(path: &'static str, handler: H, id: &'static str, summary: &'static str) -> Route
    where
        H: Handler<T, Arc<App>>,
        T: 'static,
    {
        let filter = MethodFilter::GET
            .or(MethodFilter::POST)
            .or(MethodFilter::PUT)
            .or(MethodFilter::PATCH)
            .or(MethodFilter::DELETE);
        let methods = vec![Method::GET, Method::POST, Method::PUT, Method::PATCH, Method::DELETE];
        Route::new(methods, path, routing::on(filter, handler), id, summary)
    }
}
pub use constructors::*;

#[allow(dead_code)]
impl Route {
    fn new(
        methods: Vec<Method>,
        path: &'static str,
        handler: MethodRouter<Arc<App>>,
        id: &'static str,
        summary: &'static str,
    ) -> Route {
        Route {
            methods,
            path,
            id,
            summary,
            query: Vec::new(),
            headers: Vec::new(),
            carries: None,
            answers: Vec::new(),
            handler,
            codes: Vec::new(),
            is_open: false,
            is_plain: false,
            is_one_write: false,
        }
    }

    pub fn query(mut self, params: &[Param]) -> Route {
        self.query.extend_from_slice(params);
        self
    }

    /// A list: `limit` and `cursor`, and pages of `T`.
    pub fn pages<T: JsonSchema>(self) -> Route {
        let mut route = self.query(&[params::LIMIT, params::CURSOR]);
        route.answers.push((200, "one page", Shape::Page(|g| g.subschema_for::<T>())));
        route
    }

    pub fn answers<T: JsonSchema>(self, status: u16, about: &'static str) -> Route {
        self.shaped(status, about, Shape::Data(|g| g.subschema_for::<T>()))
    }

    /// An answer in another shape than `{"data": …}`.
    pub fn shaped(mut self, status: u16, about: &'static str, shape: Shape) -> Route {
        self.answers.push((status, about, shape));
        self
    }

    /// Refusals that do not follow from the shape of the route.
    pub fn refuses(mut self, codes: &[Code]) -> Route {
        self.codes.extend_from_slice(codes);
        self
    }

    /// A header it reads, and refuses when it makes no sense.
    pub fn header(mut self, param: Param) -> Route {
        self.headers.push(param);
        self.refuses(&[Code::InvalidHeader])
    }

    pub fn carries(mut self, what: Carries) -> Route {
        self.carries = Some(what);
        self
    }

    /// A body that must be there, and one that may be left out.
    pub fn takes<T: JsonSchema>(self) -> Route {
        self.carries(Carries::Json { schema: |g| g.subschema_for::<T>(), is_required: true })
    }

    pub fn may_take<T: JsonSchema>(self) -> Route {
        self.carries(Carries::Json { schema: |g| g.subschema_for::<T>(), is_required: false })
    }

    /// Honours `Idempotency-Key`.
    pub fn idempotent(self) -> Route {
        self.header(params::IDEMPOTENCY_KEY).refuses(&[Code::IdempotencyKeyReused])
    }

    /// Called by strangers: the guard lets everyone through.
    pub fn open(mut self) -> Route {
        self.is_open = true;
        self
    }

    /// Asks neither the engine nor the store for anything.
    pub fn plain(mut self) -> Route {
        self.is_plain = true;
        self
    }

    /// Changes things by one call whose effect is whole or not there: a caller that hangs up may cut the
    /// handler short anywhere. Other writes are finished whether or not somebody still listens.
    pub fn one_write(mut self) -> Route {
        self.is_one_write = true;
        self
    }

    /// Does a server that has a key ask for it here?
    pub fn needs_key(&self) -> bool {
        !crate::access::is_open(self.path)
    }

    /// Only what is documented may stand in the query. At the root, others choose the URL.
    fn is_strict(&self) -> bool {
        self.path.starts_with("/api/")
    }

    /// Names in braces, without the star of one that takes the rest of the path.
    pub fn path_params(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.trim_start_matches('*')))
    }

    /// Every refusal this route can answer with, by status.
    pub fn refusals(&self) -> BTreeMap<u16, Vec<Code>> {
        use Code::*;
        let mut codes = self.codes.clone();
        codes.push(Internal);
        if !self.is_open {
            codes.extend([MissingHost, HostNotAllowed, ForeignOrigin]);
        }
        if self.needs_key() {
            codes.extend([KeyRequired, KeyInvalid]);
        }
        if !self.is_plain {
            codes.extend([StorageUnavailable, OutcomeUnknown, Overloaded, ShuttingDown]);
        }
        if self.is_strict() {
            codes.push(UnknownParameter);
        }
        if !self.query.is_empty() {
            codes.push(InvalidParameter);
        }
        for name in self.path_params() {
            codes.extend([MalformedPath, NotFound]);
            if name == "run" || name == "task" {
                codes.extend([MalformedId, RunDamaged, RunNeedsUpgrade]);
            }
        }
        match self.carries {
            None => {}
            Some(Carries::Bytes) => codes.extend([TooLarge, MalformedJson]),
            Some(Carries::Definition | Carries::Change | Carries::Payload) => {
                codes.extend([TooLarge, MalformedJson, UnsupportedMediaType]);
            }
            Some(Carries::Json { .. }) => codes.extend([TooLarge, MalformedJson, UnsupportedMediaType, InvalidBody]),
        }
        let mut by_status: BTreeMap<u16, Vec<Code>> = BTreeMap::new();
        for code in Code::ALL.iter().filter(|code| codes.contains(code)) {
            by_status.entry(code.status()).or_default().push(*code);
        }
        by_status
    }

    /// May a document that was not understood, or is wrong, be refused with a code of `lang`?
    pub fn reads_documents(&self) -> bool {
        self.carries.is_some_and(|carries| !matches!(carries, Carries::Bytes))
    }
}

/// The parameters several routes share.
#[allow(dead_code)]
pub mod params {
    use super::Param;
    use crate::query::{LIMIT_DEFAULT, LIMIT_MAX};
    use serde_json::json;

    pub const LIMIT: Param = Param::new(
        "limit",
        "how many at most",
        || json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT }),
    );
    pub const CURSOR: Param = Param::new("cursor", "the `next` of the page before", || json!({ "type": "string" }));
    pub const LABEL: Param = Param::new(
        "label",
        "`key:value`",
        || json!({ "type": "string", "pattern": "^[A-Za-z0-9._-]{1,64}:[^\\x00-\\x1f\\x7f-\\x9f]{0,256}$" }),
    )
    .repeated();
    pub const SINCE: Param =
        Param::new("since", "created at or after", || json!({ "type": "string", "format": "date-time" }));
    pub const UNTIL: Param =
        Param::new("until", "created before", || json!({ "type": "string", "format": "date-time" }));
    pub const WORKFLOW: Param = Param::new("workflow", "an id, a name or a slug", || json!({ "type": "string" }));
    pub const IDEMPOTENCY_KEY: Param = Param::new(
        "Idempotency-Key",
        "a request with a key that was seen before is answered as the first one was, or refused if it differs",
        || json!({ "type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$" }),
    );
    pub const LAST_EVENT_ID: Param =
        Param::new("Last-Event-ID", "go on after this event", || json!({ "type": "string" }));

    const fn named(name: &'static str, about: &'static str) -> Param {
        Param::new(name, about, || json!({ "type": "string", "minLength": 1 }))
    }

    /// What may stand in a path.
    pub const PATH: &[Param] = &[
        named("workflow", "an id, a name or a slug, tried in that order"),
        Param::new(
            "run",
            "the id of a run",
            || json!({ "type": "string", "pattern": "^run_[0-7][0-9a-hjkmnp-tv-z]{25}$" }),
        ),
        Param::new(
            "task",
            "the id of a task",
            || json!({ "type": "string", "pattern": "^task_[0-7][0-9a-hjkmnp-tv-z]{25}(-(0|[1-9][0-9]{0,9}))?$" }),
        ),
        named("type", "the name of a type of tasks"),
        named("token", "from the URL that `{{wait.<step>.url}}` gave out"),
        named("trigger", "the id of a trigger"),
        named("delivery", "the id of a delivery"),
        named("path", "the path of a webhook trigger"),
        named("edition", "which edition of the page, as the page names it"),
        named("file", "the name of a file"),
    ];
}

/// What [`hold`] needs to know of a route.
struct Promise {
    known: Option<Vec<&'static str>>,
    statuses: Vec<u16>,
    codes: Vec<Code>,
}

impl Promise {
    /// Problems of documents have no code here.
    fn allows(&self, status: u16, code: Option<Code>) -> bool {
        self.statuses.contains(&status) && code.is_none_or(|code| self.codes.contains(&code))
    }
}

/// By the pattern of a path, then by method.
#[derive(Clone, Default)]
pub struct Promises(Arc<HashMap<&'static str, Vec<(Method, Promise)>>>);

/// The routes of axum, and what each promised.
pub fn mount(routes: Vec<Route>) -> (axum::Router<Arc<App>>, Promises) {
    let mut router = axum::Router::new();
    let mut promises: HashMap<&'static str, Vec<(Method, Promise)>> = HashMap::new();
    for route in routes {
        let refusals = route.refusals();
        for method in &route.methods {
            let mut statuses: Vec<u16> = route.answers.iter().map(|(status, ..)| *status).collect();
            statuses.extend(refusals.keys());
            if route.reads_documents() {
                statuses.extend([400, 413, 422]);
            }
            let known = route.is_strict().then(|| route.query.iter().map(|p| p.name).collect());
            let promise = Promise { known, statuses, codes: refusals.values().flatten().copied().collect() };
            promises.entry(route.path).or_default().push((method.clone(), promise));
        }
        let may_be_cut = route.is_one_write || route.methods == [Method::GET];
        router = router.route(
            route.path,
            match may_be_cut {
                true => route.handler,
                false => route.handler.layer(axum::middleware::from_fn(finish)),
            },
        );
    }
    (router, Promises(Arc::new(promises)))
}

/// Runs a handler to its end although the caller hung up: a store and a cache that belong together are
/// then changed together.
async fn finish(request: Request, next: Next) -> Response {
    match tokio::spawn(next.run(request)).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Refusal::new(Code::ShuttingDown, "the server is shutting down").into_response(),
        },
    }
}

/// Refuses parameters the route does not know; in debug builds, answers it does not name.
pub async fn hold(
    State(promises): State<Promises>,
    path: MatchedPath,
    request: Request,
    next: Next,
) -> Result<Response, Refusal> {
    let method = if request.method() == Method::HEAD { Method::GET } else { request.method().clone() };
    let of_path = promises.0.get(path.as_str());
    let Some((_, promise)) = of_path.and_then(|all| all.iter().find(|(m, _)| *m == method)) else {
        return Ok(next.run(request).await);
    };
    if let Some(known) = &promise.known {
        crate::query::refuse_unknown(request.uri().query(), known)?;
    }
    let response = next.run(request).await;
    if cfg!(debug_assertions) {
        let status = response.status().as_u16();
        let code = response.extensions().get::<Code>().copied();
        assert!(
            promise.allows(status, code),
            "{method} {} answered {status} {code:?}, which its route does not say",
            path.as_str()
        );
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_promises_what_it_names_and_what_follows_from_its_shape() {
        let handler = || async {};
        let plain = get("/healthz", handler, "a", "").plain().shaped(200, "", Shape::Nothing);
        let show = get("/api/v1/runs/{run}", handler, "b", "").shaped(200, "", Shape::Nothing);
        let make = post("/api/v1/runs/{run}/x", handler, "c", "")
            .carries(Carries::Payload)
            .idempotent()
            .shaped(201, "", Shape::Nothing)
            .refuses(&[Code::RunEnded]);
        let (_, promises) = mount(vec![plain, show, make]);
        let promise = |path: &str| &promises.0[path][0].1;
        for (path, status, code, expected) in [
            ("/healthz", 200, None, true),
            ("/healthz", 201, None, false),
            ("/healthz", 503, Some(Code::StorageUnavailable), false),
            ("/healthz", 403, Some(Code::ForeignOrigin), true),
            ("/api/v1/runs/{run}", 400, Some(Code::MalformedId), true),
            ("/api/v1/runs/{run}", 404, Some(Code::NotFound), true),
            ("/api/v1/runs/{run}", 409, Some(Code::RunEnded), false),
            ("/api/v1/runs/{run}", 415, Some(Code::UnsupportedMediaType), false),
            ("/api/v1/runs/{run}/x", 409, Some(Code::RunEnded), true),
            ("/api/v1/runs/{run}/x", 409, Some(Code::NameTaken), false),
            ("/api/v1/runs/{run}/x", 422, Some(Code::IdempotencyKeyReused), true),
            ("/api/v1/runs/{run}/x", 413, None, true),
        ] {
            assert_eq!(promise(path).allows(status, code), expected, "{path} {status} {code:?}");
        }
        assert_eq!(promise("/healthz").known, None, "others choose what they add to it");
        assert_eq!(promise("/api/v1/runs/{run}").known, Some(vec![]));
    }
}
