//! How an attempt ended, as a handler says it: what it returns or the [`Error`] it gives up with decides.

use super::input_errors;
use crate::span;
use api::{DoneItem, WorkerError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::fmt;
use std::time::Duration;

/// The server cuts what is longer, and refuses longer codes and longer pauses.
const MESSAGE_MAX: usize = 4 * 1024;
const CODE_MAX: usize = 100;
const PAUSE_MAX: Duration = Duration::from_secs(30 * 24 * 3_600);

/// Why there is no result. Any error of the standard kind becomes one by `?`, and is tried again as the task's
/// retry policy says.
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
    /// It may work next time.
    pub fn retry(message: impl fmt::Display) -> Error {
        Error { kind: Kind::Retry(None), code: None, message: message.to_string() }
    }

    /// It may work after so long; not sooner, and not as late as the policy says.
    pub fn retry_after(after: Duration, message: impl fmt::Display) -> Error {
        Error { kind: Kind::Retry(Some(after)), code: None, message: message.to_string() }
    }

    /// It will not work next time either.
    pub fn fail(message: impl fmt::Display) -> Error {
        Error { kind: Kind::Final, code: None, message: message.to_string() }
    }

    /// Not now, but after so long. That is no failure and counts as no attempt.
    pub fn snooze(pause: Duration) -> Error {
        Error { kind: Kind::Snooze(pause), code: None, message: String::new() }
    }

    /// A short name for programs, as in `card_declined`; `worker_error` if nothing is said.
    pub fn code(mut self, code: impl Into<String>) -> Error {
        self.code = Some(code.into());
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Snooze(pause) => write!(f, "snoozed for {pause:?}"),
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
            // Many errors already say what caused them.
            if !message.contains(&text) {
                message.push_str(": ");
                message.push_str(&text);
            }
            cause = inner.source();
        }
        Error::retry(message)
    }
}

/// What a handler came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    Done(Box<RawValue>),
    Not(Error),
}

impl Outcome {
    pub fn of<T: Serialize>(returned: Result<T>) -> Outcome {
        match returned.map(|value| serde_json::value::to_raw_value(&value)) {
            Ok(Ok(raw)) => Outcome::Done(raw),
            Ok(Err(error)) => {
                let message = format!("what the handler returned is no JSON: {error}");
                Outcome::Not(Error::fail(message).code("invalid_result"))
            }
            Err(error) => Outcome::Not(error),
        }
    }

    /// A handler that panicked may do better next time.
    pub fn panicked(payload: &(dyn std::any::Any + Send)) -> Outcome {
        let said = payload.downcast_ref::<&str>().copied();
        let said = said.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        Outcome::Not(Error::retry(format!("the handler panicked: {}", said.unwrap_or("no reason given"))).code("panic"))
    }

    /// As it is told to the server.
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
            Outcome::Done(raw) => item.result = Some(raw),
            Outcome::Not(Error { kind, code, message }) => {
                let code = code.map(|code| cut(&code, CODE_MAX).replace(char::is_control, "_"));
                let error = WorkerError { message: cut(&message, MESSAGE_MAX), code: code.filter(|c| !c.is_empty()) };
                match kind {
                    Kind::Snooze(pause) => item.snooze = Some(span(pause.min(PAUSE_MAX))),
                    Kind::Final => (item.error, item.is_final) = (Some(error), true),
                    Kind::Retry(after) => {
                        item.error = Some(error);
                        item.retry_after = after.map(|after| span(after.min(PAUSE_MAX)));
                    }
                }
            }
        }
        item
    }
}

/// At most `max` bytes, whole characters.
pub(crate) fn cut(text: &str, max: usize) -> String {
    text[..text.floor_char_boundary(max)].to_owned()
}

/// What a task brings, in the handler's own type.
pub(crate) fn input<I: DeserializeOwned>(raw: &RawValue) -> Result<I> {
    serde_json::from_str(raw.get()).map_err(|error| {
        let at = input_errors::of(raw.get(), error.line(), error.column());
        let said = error.to_string();
        let said = said.split(" at line ").next().unwrap_or_default();
        let place = if at.is_empty() { String::new() } else { format!(" at `{at}`") };
        Error::fail(format!("the input does not fit{place}: {said}")).code("invalid_input")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;
    use serde_json::{Value, json};

    fn told(outcome: Outcome) -> Value {
        serde_json::to_value(outcome.item("t".into(), "c".into())).unwrap()
    }

    #[test]
    fn what_a_handler_says_is_what_is_reported() {
        let same = |value: Value| {
            let mut whole = json!({ "task_id": "t", "claim_token": "c", "final": false });
            whole.as_object_mut().unwrap().extend(value.as_object().unwrap().clone());
            whole
        };
        let io = std::io::Error::other("the disk is full");
        for (outcome, expected) in [
            (Outcome::of(Ok(json!([1, "a"]))), json!({ "result": [1, "a"] })),
            (Outcome::of::<()>(Err(io.into())), json!({ "error": { "message": "the disk is full" } })),
            (
                Outcome::of::<()>(Err(Error::fail("no").code("card_declined"))),
                json!({ "error": { "message": "no", "code": "card_declined" }, "final": true }),
            ),
            (
                Outcome::of::<()>(Err(Error::retry_after(Duration::from_secs(5), "busy").code("a\nb"))),
                json!({ "error": { "message": "busy", "code": "a_b" }, "retry_after": "5000ms" }),
            ),
            (
                Outcome::of::<()>(Err(Error::snooze(Duration::from_secs(u64::MAX / 2)))),
                json!({ "snooze": "2592000000ms" }),
            ),
            (
                Outcome::panicked(&"boom"),
                json!({ "error": { "message": "the handler panicked: boom", "code": "panic" } }),
            ),
        ] {
            assert_eq!(told(outcome), same(expected));
        }
        let long = told(Outcome::of::<()>(Err(Error::retry("é".repeat(4_000)))));
        assert_eq!(long["error"]["message"].as_str().unwrap().len(), MESSAGE_MAX);
        let nameless = std::collections::BTreeMap::from([(vec![1], 2)]);
        assert_eq!(told(Outcome::of(Ok(nameless)))["error"]["code"], "invalid_result");
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
