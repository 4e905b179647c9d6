//! How an attempt ended: the value that its handler returned, or an [`Error`].

use super::input_errors;
use crate::span;
use api::{DoneItem, WorkerError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::fmt;
use std::time::Duration;

/// Limits of the server: it cuts longer messages, and refuses longer codes and delays.
const MESSAGE_MAX: usize = 4 * 1024;
const CODE_MAX: usize = 100;
const DELAY_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Why a handler has no result. `?` converts any standard error into one that is retried according to the task's retry
/// policy.
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    code: Option<String>,
    message: String,
}

#[derive(Debug)]
enum Kind {
    Retry(Option<Duration>),
    Final,
    Snooze(Duration),
}

pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// The attempt failed; the task is retried according to its retry policy.
    pub fn retry(message: impl fmt::Display) -> Error {
        Error { kind: Kind::Retry(None), code: None, message: message.to_string() }
    }

    /// The attempt failed; the next one starts after this delay instead of the delay of the retry policy.
    pub fn retry_after(after: Duration, message: impl fmt::Display) -> Error {
        Error { kind: Kind::Retry(Some(after)), code: None, message: message.to_string() }
    }

    /// The task failed; another attempt would fail, too.
    pub fn fail(message: impl fmt::Display) -> Error {
        Error { kind: Kind::Final, code: None, message: message.to_string() }
    }

    /// The task can be claimed again after this delay. This is not a failure and is not charged as an attempt.
    pub fn snooze(delay: Duration) -> Error {
        Error { kind: Kind::Snooze(delay), code: None, message: String::new() }
    }

    /// A short name for programs, such as `card_declined`; by default `worker_error`.
    pub fn code(mut self, code: impl Into<String>) -> Error {
        self.code = Some(code.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Snooze(delay) => write!(f, "snoozed for {delay:?}"),
            _ => f.write_str(&self.message),
        }
    }
}

impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Error {
        let mut message = error.to_string();
        let mut cause = error.source();
        while let Some(inner) = cause {
            let text = inner.to_string();
            // Many errors already include the message of their cause.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = inner.source();
        }
        Error::retry(message)
    }
}

/// What a handler returned.
#[derive(Debug)]
pub(crate) enum HandlerOutcome {
    Done(Box<RawValue>),
    Error(Error),
}

impl HandlerOutcome {
    pub fn of<T: Serialize>(returned: Result<T>) -> HandlerOutcome {
        match returned.map(|value| serde_json::value::to_raw_value(&value)) {
            Ok(Ok(raw)) => HandlerOutcome::Done(raw),
            Ok(Err(error)) => {
                let message = format!("the result of the handler cannot be serialized as JSON: {error}");
                HandlerOutcome::Error(Error::fail(message).code("invalid_result"))
            }
            Err(error) => HandlerOutcome::Error(error),
        }
    }

    /// A panic is retried like any other error.
    pub fn panicked(payload: &(dyn std::any::Any + Send)) -> HandlerOutcome {
        let message = payload.downcast_ref::<&str>().copied();
        let message = message.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        HandlerOutcome::Error(
            Error::retry(format!("the handler panicked: {}", message.unwrap_or("no reason given"))).code("panic"),
        )
    }

    /// The report that is sent to the server.
    pub fn item(self, task_id: String, claim_token: String) -> DoneItem {
        let mut item = DoneItem {
            task_id,
            claim_token,
            result: None,
            error: None,
            is_final: false,
            retry_after: None,
            snooze: None,
        };
        match self {
            HandlerOutcome::Done(raw) => item.result = Some(raw),
            HandlerOutcome::Error(Error { kind, code, message }) => {
                let code = code.map(|code| cut(&code, CODE_MAX).replace(char::is_control, "_"));
                let error = WorkerError { message: cut(&message, MESSAGE_MAX), code: code.filter(|c| !c.is_empty()) };
                match kind {
                    Kind::Snooze(delay) => item.snooze = Some(span(delay.min(DELAY_MAX))),
                    Kind::Final => (item.error, item.is_final) = (Some(error), true),
                    Kind::Retry(after) => {
                        item.error = Some(error);
                        item.retry_after = after.map(|after| span(after.min(DELAY_MAX)));
                    }
                }
            }
        }
        item
    }
}

/// Cuts a text to at most `max` bytes, at a character boundary.
pub(crate) fn cut(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}

/// The input of a task as the type that the handler expects.
pub(crate) fn input<I: DeserializeOwned>(raw: &RawValue) -> Result<I> {
    serde_json::from_str(raw.get()).map_err(|error| {
        let at = input_errors::of(raw.get(), error.line(), error.column());
        let message = error.to_string();
        let message = message.split(" at line ").next().unwrap_or_default();
        let place = if at.is_empty() { String::new() } else { format!(" at `{at}`") };
        Error::fail(format!("the input does not fit{place}: {message}")).code("invalid_input")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::{Value, json};

    fn report(outcome: HandlerOutcome) -> Value {
        serde_json::to_value(outcome.item("t".into(), "c".into())).unwrap()
    }

    #[test]
    fn every_outcome_of_a_handler_has_its_report() {
        let with_ids = |value: Value| {
            let mut whole = json!({ "task_id": "t", "claim_token": "c", "final": false });
            whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            whole
        };
        let io = std::io::Error::other("the disk is full");
        for (outcome, expected) in [
            (HandlerOutcome::of(Ok(json!([1, "a"]))), json!({ "result": [1, "a"] })),
            (HandlerOutcome::of::<()>(Err(io.into())), json!({ "error": { "message": "the disk is full" } })),
            (
                HandlerOutcome::of::<()>(Err(Error::fail("no").code("card_declined"))),
                json!({ "error": { "message": "no", "code": "card_declined" }, "final": true }),
            ),
            (
                HandlerOutcome::of::<()>(Err(Error::retry_after(Duration::from_secs(5), "busy").code("a\nb"))),
                json!({ "error": { "message": "busy", "code": "a_b" }, "retry_after": "5000ms" }),
            ),
            (
                HandlerOutcome::of::<()>(Err(Error::snooze(Duration::from_secs(u64::MAX / 2)))),
                json!({ "snooze": "2592000000ms" }),
            ),
            (
                HandlerOutcome::panicked(&"boom"),
                json!({ "error": { "message": "the handler panicked: boom", "code": "panic" } }),
            ),
        ] {
            assert_eq!(report(outcome), with_ids(expected));
        }
        let long = report(HandlerOutcome::of::<()>(Err(Error::retry("é".repeat(4_000)))));
        assert_eq!(long["error"]["message"].as_str().unwrap().len(), MESSAGE_MAX);
        let non_string_keys = std::collections::BTreeMap::from([(vec![1], 2)]);
        assert_eq!(report(HandlerOutcome::of(Ok(non_string_keys)))["error"]["code"], "invalid_result");
    }

    #[test]
    fn input_that_does_not_fit_names_the_field() {
        #[derive(Debug, Deserialize)]
        struct Line {
            #[allow(dead_code)]
            count: u32,
        }
        #[derive(Debug, Deserialize)]
        struct Order {
            #[allow(dead_code)]
            lines: Vec<Line>,
        }
        for (text, words) in [
            (r#"{"lines": [{"count": 1}, {"count": "three"}]}"#, "`lines[1].count`: invalid type: string \"three\""),
            (r#"{"lines": [{"cuont": 1}]}"#, "`lines[0]`: missing field `count`"),
            ("{\n \"lines\": 7\n}", "`lines`: invalid type: integer `7`"),
            ("[]", "invalid"),
        ] {
            let raw = RawValue::from_string(text.into()).unwrap();
            let error = input::<Order>(&raw).unwrap_err();
            assert!(error.message.contains(words), "{text}: {}", error.message);
            assert!(matches!(error.kind, Kind::Final));
        }
    }
}
