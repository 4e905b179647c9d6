//! What Postgres's errors mean to a caller.
//!
//! The rule that keeps it right: an error may claim that nothing was written only when that is certain. A
//! statement that the server refused ends its transaction, so nothing of it is written, whatever happens to
//! the connection afterwards. A connection that ends without a word, or a refusal of `COMMIT` by a server that
//! is going away, leaves the outcome open; see [`commit`](super::commit) for how it is found out.

use crate::Error;
use tokio_postgres::error::{DbError, SqlState};

type Sql = tokio_postgres::Error;

/// Why a transaction or a read did not go through.
#[derive(Debug)]
pub(super) enum Failure {
    /// The rows of some run cannot be written; those of others can.
    Row(String),
    /// Somebody else was in the way: the same again may well succeed.
    Again(String),
    /// Somebody else holds what it needs, and does not let go of it.
    Busy(String),
    /// Refused, and it would be refused again now.
    Refused(String),
    /// The connection is gone, or does not answer.
    Lost(String),
    /// This node was barred.
    Fenced,
    /// Not Postgres's doing.
    Other(Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Other(error)
    }
}

impl From<Sql> for Failure {
    fn from(error: Sql) -> Failure {
        match error.as_db_error() {
            Some(db) => of_server(db),
            None if error.is_closed() => Failure::Lost("the connection is closed".into()),
            None => Failure::Lost(whole(&error)),
        }
    }
}

/// The server said no.
fn of_server(db: &DbError) -> Failure {
    let code = db.code();
    if *code == SqlState::NOT_NULL_VIOLATION && db.table() == Some("arrivals") {
        return Failure::Fenced;
    }
    let why = format!("{} ({})", db.message(), code.code());
    match code.code() {
        "40001" | "40P01" => Failure::Again(why),
        "55P03" => Failure::Busy(why),
        // Shutting down, crashed, starting up: the session ends with it.
        code if code.starts_with("08") || code.starts_with("57P") => Failure::Lost(why),
        code if ["21", "22", "23", "54"].contains(&&code[..2]) => Failure::Row(why),
        "XX001" | "XX002" => Failure::Other(Error::Corrupt(why)),
        _ => Failure::Refused(why),
    }
}

/// With its causes, which tokio-postgres leaves out.
fn whole(error: &Sql) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

impl Failure {
    /// The answer to a caller, provided that nothing was written.
    pub(super) fn unwritten(self) -> Error {
        match self {
            Failure::Row(why)
            | Failure::Again(why)
            | Failure::Busy(why)
            | Failure::Refused(why)
            | Failure::Lost(why) => Error::Unavailable(why),
            Failure::Fenced => Error::Fenced,
            Failure::Other(error) => error,
        }
    }
}

/// May the server's refusal of `COMMIT` hide a transaction that is written? Only when it went away over it.
pub(super) fn leaves_open(error: &Sql) -> bool {
    match error.as_db_error() {
        None => true,
        Some(db) => matches!(db.severity(), "FATAL" | "PANIC") || db.code().code().starts_with("57P"),
    }
}

/// Why a session could not be opened.
pub(super) fn on_connect(error: &Sql) -> Error {
    let why = whole(error);
    match error.code().map(SqlState::code) {
        // Wrong password, no such role or database, no permission: nothing that waiting would mend.
        Some(code) if code.starts_with("28") || code == "3D000" || code.starts_with("42") => {
            Error::Refused(format!("the database refuses us: {why}"))
        }
        _ => Error::Unavailable(format!("the database cannot be reached: {why}")),
    }
}
