//! The types of the HTTP API: requests, responses and error codes. They have no behaviour and do not know the
//! engine. The schemas of the OpenAPI document are derived from the same types that are sent, and so are its
//! descriptions: a doc comment on one of these types is written for users of the HTTP API.
//!
//! A response is `{"data": …}`, a list `{"data": […], "next": cursor}`, an error
//! `{"error": {code, message, hint?, at?, problems?}}`. Field names are snake_case, times RFC 3339 UTC.

pub mod error;
pub mod features;
mod object;
mod requests;
mod run_history;
pub mod schema;
mod tasks;
pub mod versions;
pub mod views;
mod waits;

pub use error::{At, Code, ErrorBody, Problem};
pub use object::Object;
pub use requests::*;
pub use run_history::*;
pub use tasks::*;
pub use versions::*;
pub use views::*;
pub use waits::*;

use kernel::Timestamp;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A value from a fixed list: borrowed when the server writes it, owned when a client reads it.
pub type Word = Cow<'static, str>;

/// A response with one object.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Data<T> {
    pub data: T,
}

/// One page of a list. `next` is the cursor of the next page, `null` on the last one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Page<T> {
    pub data: Vec<T>,
    pub next: Option<String>,
    /// In lists of runs and tasks: those of this page that cannot be read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreadable: Vec<UnreadableView>,
}

/// An instant as the API writes it: RFC 3339 in UTC, to the microsecond, without trailing zeros.
pub fn rfc3339(at: Timestamp) -> String {
    at.to_string()
}

/// Reads an RFC 3339 instant in any zone.
pub fn parse_rfc3339(text: &str) -> Option<Timestamp> {
    text.parse::<jiff::Timestamp>().ok().map(|t| Timestamp(t.as_microsecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_round_trip() {
        let at = Timestamp(1_771_754_700_123_000);
        assert_eq!(rfc3339(at), "2026-02-22T10:05:00.123Z");
        assert_eq!(parse_rfc3339("2026-02-22T11:05:00.123+01:00"), Some(at));
        assert_eq!(parse_rfc3339("yesterday"), None);
        // Every few hours of two thousand years, as a calendar library prints them.
        for n in 0..100_000_i64 {
            let at = Timestamp(-30_000_000_000_000_000 + n * 633_333_333_331);
            let expected = jiff::Timestamp::from_microsecond(at.0).map(|t| t.to_string());
            assert_eq!(expected.ok(), Some(rfc3339(at)));
        }
        assert!(rfc3339(Timestamp::NEVER).starts_with("9999"));
    }
}
