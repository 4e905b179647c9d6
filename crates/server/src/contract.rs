//! The contract of each route: its parameters, its body, and every response it can give.
//!
//! ```text
//!   routes/*.rs ── Route ─┬─▶ Router         the handler
//!                         ├─▶ enforce        refuses unknown parameters, checks responses
//!                         └─▶ openapi.json   the document
//! ```
//!
//! The rule: a [`Route`] is the only way to a handler. So every handler is in the OpenAPI document, and a parameter
//! that is not in the document is refused. Errors that follow from the form of a route (a run in its path, a body, the
//! guard) are added here once; a route declares only its own. In debug builds an undeclared response is a panic, so
//! every test finds one.

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
    /// The parameter may be given several times.
    pub is_repeated: bool,
    /// The parameter must be given. Those in paths always must.
    pub is_required: bool,
}

impl Param {
    pub const fn new(name: &'static str, about: &'static str, schema: fn() -> Value) -> Param {
        Param { name, about, schema, is_repeated: false, is_required: false }
    }

    pub const fn required(mut self) -> Param {
        self.is_required = true;
        self
    }

    pub const fn repeated(mut self) -> Param {
        self.is_repeated = true;
        self
    }
}

/// The body of a request.
#[derive(Clone, Copy)]
pub enum Carries {
    /// A definition, in JSON or YAML.
    Definition,
    /// A definition, or only new names for the workflow.
    Change,
    /// Any JSON.
    Payload,
    /// Any bytes of any type.
    Bytes,
    /// A JSON object of a type in `api`.
    Json { schema: SchemaOf, is_required: bool },
}

/// The body of a successful response. (`allow`: not every shape has a route yet.)
#[allow(dead_code)]
#[derive(Clone, Copy)]
pub enum ResponseShape {
    /// `{"data": …}`
    Data(SchemaOf),
    /// `{"data": […], "next": …}`
    Page(SchemaOf),
    /// The same for runs and tasks, with those that cannot be read.
    RunPage(SchemaOf),
    /// The type is the whole body.
    Whole(SchemaOf),
    /// Server-sent events; the data of each has this type.
    Events(SchemaOf),
    /// Any content of this media type.
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
    pub answers: Vec<(u16, &'static str, ResponseShape)>,
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

    /// Accepts GET, POST, PUT, PATCH and DELETE.
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

    /// A list: accepts `limit` and this cursor, responds with pages of `T`.
    pub fn pages<T: JsonSchema>(self, cursor: Param) -> Route {
        let mut route = self.query(&[params::LIMIT, cursor]);
        route.answers.push((200, "one page", ResponseShape::Page(|g| g.subschema_for::<T>())));
        route
    }

    /// A list of runs or tasks, see [`ResponseShape::RunPage`].
    pub fn pages_of_runs<T: JsonSchema>(self) -> Route {
        let mut route = self.query(&[params::LIMIT, params::RUN_CURSOR]);
        route.answers.push((200, "one page", ResponseShape::RunPage(|g| g.subschema_for::<T>())));
        route
    }

    pub fn answers<T: JsonSchema>(self, status: u16, about: &'static str) -> Route {
        self.shaped(status, about, ResponseShape::Data(|g| g.subschema_for::<T>()))
    }

    /// A response in another shape than `{"data": …}`.
    pub fn shaped(mut self, status: u16, about: &'static str, shape: ResponseShape) -> Route {
        self.answers.push((status, about, shape));
        self
    }

    /// Error codes that do not follow from the form of the route.
    pub fn refuses(mut self, codes: &[Code]) -> Route {
        self.codes.extend_from_slice(codes);
        self
    }

    /// A header that the route reads, and refuses if it is invalid.
    pub fn header(mut self, param: Param) -> Route {
        self.headers.push(param);
        self.refuses(&[Code::InvalidHeader])
    }

    pub fn carries(mut self, what: Carries) -> Route {
        self.carries = Some(what);
        self
    }

    /// A required JSON body.
    pub fn takes<T: JsonSchema>(self) -> Route {
        self.carries(Carries::Json { schema: |g| g.subschema_for::<T>(), is_required: true })
    }

    /// An optional JSON body.
    pub fn may_take<T: JsonSchema>(self) -> Route {
        self.carries(Carries::Json { schema: |g| g.subschema_for::<T>(), is_required: false })
    }

    /// Honours `Idempotency-Key`.
    pub fn idempotent(self) -> Route {
        self.header(params::IDEMPOTENCY_KEY).refuses(&[Code::IdempotencyKeyReused])
    }

    /// Other systems call the route: the guard does not check host, origin or key.
    pub fn open(mut self) -> Route {
        self.is_open = true;
        self
    }

    /// The route uses neither the engine nor the store.
    pub fn plain(mut self) -> Route {
        self.is_plain = true;
        self
    }

    /// The handler makes a single atomic write, so it may be dropped anywhere when the client disconnects. The handlers
    /// of other writes run to completion in any case.
    pub fn one_write(mut self) -> Route {
        self.is_one_write = true;
        self
    }

    /// Whether a server with a key requires it on this route.
    pub fn needs_key(&self) -> bool {
        !crate::access::is_open(self.path)
    }

    /// Whether undeclared query parameters are refused. Outside of `/api/`, other systems choose the URL.
    fn is_strict(&self) -> bool {
        self.path.starts_with("/api/")
    }

    /// The names in braces, without the star of a parameter that matches the rest of the path.
    pub fn path_params(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('{').skip(1).filter_map(|rest| Some(rest.split_once('}')?.0.trim_start_matches('*')))
    }

    /// Every error code that the route can respond with, by status.
    pub fn refusals(&self) -> BTreeMap<u16, Vec<Code>> {
        use Code::*;
        let mut codes = self.codes.clone();
        codes.extend([Internal, MissingHost]);
        if !self.is_open {
            codes.extend([HostNotAllowed, ForeignOrigin]);
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

    /// Whether the route can also respond with a code of `lang`, because it reads documents.
    pub fn reads_documents(&self) -> bool {
        self.carries.is_some_and(|carries| !matches!(carries, Carries::Bytes))
    }
}

/// Parameters that several routes share.
#[allow(dead_code)]
pub mod params {
    use super::Param;
    use crate::query::{LIMIT_DEFAULT, LIMIT_MAX, NUMBER_MAX};
    use kernel::plan::SIGNAL_NAME_MAX;
    use schemars::SchemaGenerator;
    use serde_json::{Value, json};

    pub const LIMIT: Param = Param::new(
        "limit",
        "the maximum number of items",
        || json!({ "type": "integer", "minimum": 1, "maximum": LIMIT_MAX, "default": LIMIT_DEFAULT }),
    );
    const fn cursor(schema: fn() -> Value) -> Param {
        Param::new("cursor", "`next` of the previous page", schema)
    }

    pub const RUN_CURSOR: Param = cursor(|| id("run"));
    pub const WORKFLOW_CURSOR: Param = cursor(|| id("wf"));
    pub const TRIGGER_CURSOR: Param = cursor(|| id("trg"));
    pub const NUMBER_CURSOR: Param = cursor(number);
    pub const NAME_CURSOR: Param = cursor(|| json!({ "type": "string" }));

    pub fn number() -> Value {
        json!({ "type": "integer", "minimum": 0, "maximum": NUMBER_MAX })
    }

    pub fn id(prefix: &str) -> Value {
        json!({ "type": "string", "pattern": format!("^{prefix}_[0-7][0-9a-hjkmnp-tv-z]{{25}}$") })
    }

    pub const LABEL: Param =
        Param::new("label", "`key:value`; may be repeated", || api::schema::label().to_value()).repeated();
    pub const ACTOR: Param = Param::new(
        "actor",
        "the person or program that starts the run",
        || json!({ "type": "string", "maxLength": 1024 }),
    );
    /// A time, or how long ago.
    fn time_or_age() -> Value {
        let age = json!({ "type": "string", "pattern": "^[0-9]{1,9}(ms|s|m|h|d)$" });
        json!({ "anyOf": [{ "type": "string", "format": "date-time" }, age] })
    }

    pub const SINCE: Param =
        Param::new("since", "created at or after this time, or not longer ago, as `1h`", time_or_age);
    pub const UNTIL: Param = Param::new("until", "created before this time, or longer ago, as `1d`", time_or_age);
    pub const WORKFLOW: Param =
        Param::new("workflow", "the id, name or slug of a workflow", || json!({ "type": "string" }));
    pub const IDEMPOTENCY_KEY: Param = Param::new(
        "Idempotency-Key",
        "makes a request safe to repeat: with the same key it gets the first result; if it differs, it is refused",
        || json!({ "type": "string", "pattern": "^[\\x21-\\x7e]{1,255}$" }),
    );
    pub const LAST_EVENT_ID: Param =
        Param::new("Last-Event-ID", "resume after this event", || json!({ "type": "string" }));

    const fn named(name: &'static str, about: &'static str) -> Param {
        Param::new(name, about, || json!({ "type": "string", "minLength": 1 }))
    }

    /// Parameters in paths.
    pub const PATH: &[Param] = &[
        named("workflow", "the id, name or slug of a workflow, tried in this order"),
        Param::new("run", "the id of a run", || id("run")),
        Param::new("task", "the id of a task", || api::schema::task_id(&mut SchemaGenerator::default()).to_value()),
        named("type", "the name of a task type"),
        named("token", "the token in the URL that `{{wait.<step>.url}}` inserted"),
        Param::new("trigger", "the id of a trigger", || id("trg")),
        Param::new(
            "name",
            "the name of a signal",
            || json!({ "type": "string", "pattern": format!("^[A-Za-z][A-Za-z0-9_.-]{{0,{}}}$", SIGNAL_NAME_MAX - 1) }),
        ),
        named("step", "the key of a step, percent-encoded"),
        named("delivery", "the id of a delivery"),
        named("path", "the path of a webhook trigger"),
        named("edition", "the edition of the dashboard, from its links"),
        named("file", "the path of a file"),
    ];
}

/// What [`enforce`] checks for one route.
struct RouteContract {
    known: Option<Vec<&'static str>>,
    statuses: Vec<u16>,
    codes: Vec<Code>,
}

impl RouteContract {
    /// Problems of documents have no `Code`; only their status is checked.
    fn allows(&self, status: u16, code: Option<Code>) -> bool {
        self.statuses.contains(&status) && code.is_none_or(|code| self.codes.contains(&code))
    }
}

/// The contract of every route, by path pattern and method.
#[derive(Clone, Default)]
pub struct RouteContracts(Arc<HashMap<&'static str, Vec<(Method, RouteContract)>>>);

/// The axum router, and the contract of each route.
pub fn mount(routes: Vec<Route>) -> (axum::Router<Arc<App>>, RouteContracts) {
    let mut router = axum::Router::new();
    let mut promises: HashMap<&'static str, Vec<(Method, RouteContract)>> = HashMap::new();
    for route in routes {
        let refusals = route.refusals();
        for method in &route.methods {
            let mut statuses: Vec<u16> = route.answers.iter().map(|(status, ..)| *status).collect();
            statuses.extend(refusals.keys());
            if route.reads_documents() {
                statuses.extend([400, 413, 422]);
            }
            let known = route.is_strict().then(|| route.query.iter().map(|p| p.name).collect());
            let promise = RouteContract { known, statuses, codes: refusals.values().flatten().copied().collect() };
            promises.entry(route.path).or_default().push((method.clone(), promise));
        }
        let is_droppable = route.is_one_write || route.methods == [Method::GET];
        router = router.route(
            route.path,
            match is_droppable {
                true => route.handler,
                false => route.handler.layer(axum::middleware::from_fn(run_to_completion)),
            },
        );
    }
    (router, RouteContracts(Arc::new(promises)))
}

/// Runs a handler to its end even if the client disconnects, so that a change of the store and the change of the cache
/// that belongs to it both happen.
async fn run_to_completion(request: Request, next: Next) -> Response {
    match tokio::spawn(next.run(request)).await {
        Ok(response) => response,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => Refusal::new(Code::ShuttingDown, "the server is shutting down").into_response(),
        },
    }
}

/// Refuses query parameters that the route does not declare. In debug builds, also checks the response.
pub async fn enforce(
    State(promises): State<RouteContracts>,
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
            "{method} {} responded with {status} {code:?}, which its route does not declare",
            path.as_str()
        );
    }
    Ok(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_allows_what_it_declares_and_what_follows_from_its_form() {
        let handler = || async {};
        let plain = get("/healthz", handler, "a", "").plain().shaped(200, "", ResponseShape::Nothing);
        let show = get("/api/v1/runs/{run}", handler, "b", "").shaped(200, "", ResponseShape::Nothing);
        let make = post("/api/v1/runs/{run}/x", handler, "c", "")
            .carries(Carries::Payload)
            .idempotent()
            .shaped(201, "", ResponseShape::Nothing)
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
        assert_eq!(promise("/healthz").known, None, "other systems choose the query");
        assert_eq!(promise("/api/v1/runs/{run}").known, Some(vec![]));
    }
}
