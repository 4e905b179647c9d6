//! A refused request and its error response.

use api::{At, Code, ErrorBody, Problem};
use axum::Json;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use engine::CannotMove;
use engine::triggers::webhook::Rejection;
use lang::Diagnostic;

/// Boxed, so that the `Result` of a successful request stays small.
#[derive(Debug)]
pub struct Refusal(Box<Inner>);

#[derive(Debug)]
struct Inner {
    status: u16,
    /// `None` for problems of definitions, which have their own codes.
    code: Option<Code>,
    problem: Problem,
    retry_after: Option<u32>,
}

impl Refusal {
    pub fn new(code: Code, message: impl Into<String>) -> Refusal {
        let problem = Problem { code: code.as_str().to_owned(), message: message.into(), ..Default::default() };
        Refusal(Box::new(Inner { status: code.status(), code: Some(code), problem, retry_after: None }))
    }

    pub fn hint(mut self, hint: impl Into<String>) -> Refusal {
        self.0.problem.hint = Some(hint.into());
        self
    }

    /// The field, parameter or header that is wrong.
    pub fn at(mut self, path: impl Into<String>) -> Refusal {
        self.0.problem.at = Some(At { path: path.into(), line: None, column: None });
        self
    }

    /// `None` for problems of definitions.
    pub fn code(&self) -> Option<Code> {
        self.0.code
    }

    /// Whether the request needs a key, or another one.
    pub fn lacks_key(&self) -> bool {
        self.0.status == 401
    }

    pub fn into_problem(self) -> Problem {
        self.0.problem
    }

    fn retry_after(mut self, seconds: u32) -> Refusal {
        self.0.retry_after = Some(seconds);
        self
    }

    pub fn not_found(what: &str, name: &str) -> Refusal {
        Refusal::new(Code::NotFound, format!("there is no {what} `{name}`"))
    }

    /// A document that cannot be parsed (400) or is invalid (422). The error repeats the first problem.
    pub fn of_definition(status: u16, diagnostics: &[Diagnostic]) -> Refusal {
        let mut problems: Vec<Problem> = diagnostics.iter().map(problem_of).collect();
        // A warning is never the reason for a refusal.
        let mut errors = problems.iter().filter(|problem| problem.severity.as_deref() != Some("warning"));
        let mut problem = errors.next().cloned().unwrap_or_default();
        let more = errors.count();
        if more > 0 {
            problem.message = format!("{} (and {more} more)", problem.message);
        }
        problem.problems = (status == 422).then(|| std::mem::take(&mut problems));
        let status = if problem.code == "too_large" { 413 } else { status };
        Refusal(Box::new(Inner { status, code: None, problem, retry_after: None }))
    }
}

impl Refusal {
    /// Several problems with one request (422). The error repeats the first one.
    pub fn of_problems(code: Code, problems: Vec<Problem>) -> Refusal {
        let mut problem = problems.first().cloned().unwrap_or_default();
        if problems.len() > 1 {
            problem.message = format!("{} (and {} more)", problem.message, problems.len() - 1);
        }
        problem.problems = Some(problems);
        Refusal(Box::new(Inner { status: 422, code: Some(code), problem, retry_after: None }))
    }
}

pub fn problem_of(diagnostic: &Diagnostic) -> Problem {
    let Diagnostic { severity, code, message, hint, path, line, column, .. } = diagnostic.clone();
    let (at, severity) = (At { path, line: Some(line), column: Some(column) }, Some(severity.as_str().into()));
    Problem { code: code.to_owned(), severity, message, hint, at: Some(at), ..Default::default() }
}

impl From<engine::Error> for Refusal {
    fn from(error: engine::Error) -> Self {
        use engine::Error;
        let message = error.to_string();
        match error {
            Error::NotFound(what) => Refusal::new(Code::NotFound, format!("there is no such {what}")),
            Error::Unavailable(_) => {
                Refusal::new(Code::StorageUnavailable, message).hint("nothing was changed; try again").retry_after(1)
            }
            Error::OutcomeUnknown(_) => {
                let mut refusal = Refusal::new(Code::OutcomeUnknown, message).retry_after(1);
                refusal.0.problem.outcome = Some("unknown".into());
                refusal.0.problem.retry = Some("same_idempotency_key".into());
                refusal
            }
            Error::RolledBack => Refusal::new(Code::StoreRollbackDetected, message)
                .hint("find out which commits were lost (see the guide on several nodes), then restart this node"),
            Error::Overloaded => Refusal::new(Code::Overloaded, message)
                .hint("nothing was changed; slow down and try again")
                .retry_after(1),
            Error::Stopping => {
                Refusal::new(Code::ShuttingDown, message).hint("nothing was changed; try again").retry_after(1)
            }
            Error::Newer => Refusal::new(Code::RunNeedsUpgrade, message),
            Error::Damaged(_) => Refusal::new(Code::RunDamaged, message),
            Error::Taken(store::NameTaken::Name) => {
                Refusal::new(Code::NameTaken, "a workflow of this name exists").hint("choose another name").at("name")
            }
            Error::Taken(store::NameTaken::NameIsSlug) => {
                Refusal::new(Code::NameTaken, "this name is the slug of another workflow")
                    .hint("choose another name: requests name a workflow by either")
                    .at("name")
            }
            Error::Taken(store::NameTaken::SlugIsName) => {
                Refusal::new(Code::SlugTaken, "this slug is the name of another workflow")
                    .hint("choose another slug: requests name a workflow by either")
                    .at("slug")
            }
            Error::Taken(store::NameTaken::Slug) => {
                Refusal::new(Code::SlugTaken, "a workflow with this slug exists").hint("choose another slug").at("slug")
            }
            Error::PathTaken | Error::Taken(store::NameTaken::Path) => {
                Refusal::new(Code::PathTaken, "another trigger has this webhook path").hint("choose another").at("path")
            }
            Error::NoWorkflow { nearest, .. } => {
                let refusal = Refusal::new(Code::UnknownWorkflow, message).at("workflow");
                match nearest {
                    Some(name) => refusal.hint(format!("did you mean `{name}`?")),
                    None => refusal,
                }
            }
            Error::NoSecret => {
                Refusal::new(Code::SecretMissing, message).hint("give a `secret`, or `unsigned: true`").at("has_secret")
            }
            Error::TriggerDisabled => Refusal::new(Code::TriggerDisabled, message).hint("enable it first"),
            Error::Owned => Refusal::new(Code::TriggerOwned, message)
                .hint("change the workflow's definition; enabling, disabling and a note are possible here"),
            Error::NotKept => Refusal::new(Code::RequestNotKept, message)
                .hint("only requests that started a run are kept, and only the newest 100 of a trigger"),
            Error::Rejected(rejection) => rejected(rejection),
            Error::RunsFull(_) => Refusal::new(Code::RunFull, message)
                .hint("send it again with the same delivery id; the runs that have it already get it only once"),
            Error::InvalidConcurrencyKey(_) => Refusal::new(Code::ConcurrencyKeyUnresolved, message)
                .hint("the workflow's `concurrency.key` reads this from the trigger; send it, or change the key")
                .at("concurrency.key"),
            Error::InvalidInput(problems) => {
                let problems = problems.into_iter().map(|problem| Problem {
                    code: Code::InvalidInput.as_str().to_owned(),
                    message: problem.message,
                    hint: problem.hint,
                    at: Some(At { path: problem.pointer, line: None, column: None }),
                    ..Default::default()
                });
                Refusal::of_problems(Code::InvalidInput, problems.collect())
            }
            Error::Disabled => Refusal::new(Code::WorkflowDisabled, message).hint("enable it first"),
            Error::KeyReused | Error::Taken(store::NameTaken::Key { .. }) => {
                Refusal::new(Code::IdempotencyKeyReused, message)
                    .hint("use a new key, or send exactly the first request again")
                    .at("Idempotency-Key")
            }
            Error::RunDeleted(run) => Refusal::new(Code::RunDeleted, message)
                .hint(format!("the run was {run}; use a new key to start another"))
                .at("Idempotency-Key"),
            Error::Ended(_) => Refusal::new(Code::RunEnded, message),
            Error::NoStep(_) => Refusal::new(Code::InvalidBody, message).at("step"),
            Error::UnsafeReplay(_) => Refusal::new(Code::UnsafeReplay, message)
                .hint("repeat the request with `allow_irreversible: true` if that is what you want"),
            Error::NothingWaits(_) => {
                Refusal::new(Code::NotWaiting, message).hint("`GET /runs/{run}/explain` says what the run waits for")
            }
            Error::SeveralWait(_) => {
                Refusal::new(Code::StepRequired, message).hint("name one of them: {\"step\": \"…\"}").at("step")
            }
            Error::ApprovalChanged => Refusal::new(Code::ApprovalChanged, message)
                .hint("`GET /approvals` shows what it is; decide about that")
                .at("shown_hash"),
            Error::UnsafeRetry(steps) => {
                let problems = steps.iter().map(|step| Problem {
                    code: Code::UnsafeRetry.as_str().to_owned(),
                    message: format!("`{step}` is irreversible and succeeded; it would run again"),
                    hint: Some("repeat it with `allow_irreversible: true`, or go on from a later step".into()),
                    at: Some(At { path: step.clone(), line: None, column: None }),
                    ..Default::default()
                });
                let mut refusal = Refusal::of_problems(Code::UnsafeRetry, problems.collect());
                refusal.0.status = 409;
                refusal
            }
            Error::CannotMove(ref why) if why.steps().is_empty() => {
                Refusal::new(Code::CannotMove, message).hint("start a new run, or fork this one when it has ended")
            }
            Error::CannotMove(why) => {
                let hint = match why {
                    CannotMove::Busy(_) => "pause the run, and move it when its attempts have ended",
                    _ => {
                        "a step that the run has must stay in the definition; add steps instead, or fork the run later"
                    }
                };
                let problems = why.steps().iter().map(|step| Problem {
                    code: Code::CannotMove.as_str().to_owned(),
                    message: why.of_step(step),
                    hint: Some(hint.into()),
                    at: Some(At { path: step.clone(), line: None, column: None }),
                    ..Default::default()
                });
                let mut refusal = Refusal::of_problems(Code::CannotMove, problems.collect());
                refusal.0.status = 409;
                refusal
            }
            Error::HasParent { .. } => Refusal::new(Code::HasParent, message).hint("retry that run"),
            Error::NoRoom => Refusal::new(Code::ConcurrencyLimit, message)
                .hint("try again when another run of its concurrency group has ended"),
            Error::NothingToRetry => Refusal::new(Code::NothingToRetry, message)
                .hint("`GET /runs/{run}/explain` says what the run waits for"),
            Error::InvalidField { field, .. } => Refusal::new(Code::InvalidBody, message).at(field),
            Error::RunOpen(_) => Refusal::new(Code::RunNotEnded, message)
                .hint("only a run that has ended can be deleted or forked; cancel it first, or wait"),
            Error::OtherVersion(hash) => Refusal::new(Code::VersionMismatch, message)
                .hint(format!("it is at {} now; read it again before changing it", crate::views::hash(&hash))),
            Error::TooManyTypes(_) => Refusal::new(Code::InvalidParameter, message)
                .hint("use a longer prefix, or leave `type` out")
                .at("type"),
            Error::TypeDisabled(_) => Refusal::new(Code::TypeDisabled, message)
                .hint("enable it with `PUT /api/v1/types/{type}` and `{\"enabled\": true}`")
                .at("type"),
            Error::TaskState(_) => Refusal::new(Code::TaskState, message),
            Error::BuiltIn => Refusal::new(Code::BuiltInWorkflow, message),
            Error::Undone => Refusal::new(Code::StorageUnavailable, message).hint("nothing was changed; try again"),
            Error::Items(items) => of_items(items),
            Error::Refused(_) | Error::InUse(_) => Refusal::new(Code::Internal, message),
        }
    }
}

/// The items of one request that were refused. The error repeats the first problem, and has its code.
fn of_items(items: Vec<(usize, engine::Error)>) -> Refusal {
    let mut code = None;
    let mut problems = Vec::new();
    for (index, error) in items {
        let Inner { code: of_item, mut problem, .. } = *Refusal::from(error).0;
        code = code.or(of_item);
        let of_item = problem.problems.take().unwrap_or_else(|| vec![problem]);
        problems.extend(of_item.into_iter().map(|mut problem| {
            let field = match problem.at.take().map(|at| at.path) {
                // A JSON pointer into the body.
                Some(pointer) if problem.code == Code::InvalidInput.as_str() => format!(".body{pointer}"),
                Some(header) if header == "Idempotency-Key" => ".idempotency_key".into(),
                Some(field) => format!(".{field}"),
                None => String::new(),
            };
            problem.at = Some(At { path: format!("items[{index}]{field}"), line: None, column: None });
            problem
        }));
    }
    Refusal::of_problems(code.unwrap_or(Code::InvalidBody), problems)
}

/// A rejected webhook request. The error says which part is wrong, never what would be right.
fn rejected(rejection: Rejection) -> Refusal {
    let (code, message) = match rejection {
        Rejection::SignatureMissing => {
            (Code::SignatureMissing, "the request has no signature header that this webhook knows")
        }
        Rejection::SignatureWrong => (Code::SignatureInvalid, "the signature does not match the request"),
        Rejection::TimestampMissing => (Code::TimestampMissing, "the signature has no timestamp"),
        Rejection::TimestampOutside => {
            (Code::TimestampOutOfWindow, "the signed timestamp is more than 5 minutes from now")
        }
        Rejection::HeaderMissing => (Code::HeaderRequired, "a header that this webhook requires is missing or wrong"),
    };
    Refusal::new(code, message)
}

impl From<kernel::run::LoadError> for Refusal {
    fn from(error: kernel::run::LoadError) -> Self {
        engine::Error::from(engine::mailbox::LoadFailure::from(error)).into()
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let Inner { status, code, mut problem, retry_after } = *self.0;
        if status == 422 && problem.problems.is_none() {
            problem.problems = Some(vec![problem.clone()]);
        }
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let mut response = (status, Json(ErrorBody { error: problem })).into_response();
        if let Some(code) = code {
            response.extensions_mut().insert(code);
        }
        if let Some(seconds) = retry_after {
            response.headers_mut().insert("retry-after", HeaderValue::from(seconds));
        }
        response
    }
}
