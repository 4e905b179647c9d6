//! Mapping of Postgres's errors to the store's.
//!
//! Invariant: an error says that nothing was written only when that is certain. A statement that the server refused
//! aborts its transaction, so nothing of the transaction is written, whatever happens to the connection afterwards. A
//! connection that ends without an answer, or an error of `COMMIT` from a server that is shutting down, leaves the
//! outcome unknown; [`commit_outcome`](super::commit_outcome) finds it out.

use crate::Error;
use tokio_postgres::error::{DbError, SqlState};

type Sql = tokio_postgres::Error;

/// Why a transaction or a read failed.
#[derive(Debug)]
pub(super) enum Failure {
    /// The rows of some run cannot be written; those of other runs can.
    Row(String),
    /// A serialization failure or a deadlock with another transaction: a retry may succeed.
    Again(String),
    /// Another transaction held a lock for longer than the lock timeout.
    Busy(String),
    /// The server refused, and would refuse a retry too.
    Refused(String),
    /// The connection ended, or the server does not answer.
    Lost(String),
    /// This node was fenced.
    Fenced,
    /// An error that did not come from Postgres.
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
            None => Failure::Lost(with_causes(&error)),
        }
    }
}

/// Maps an error that the server reported.
fn of_server(db: &DbError) -> Failure {
    let code = db.code();
    if *code == SqlState::NOT_NULL_VIOLATION && db.table() == Some("arrivals") {
        return Failure::Fenced;
    }
    let why = format!("{} ({})", db.message(), code.code());
    match code.code() {
        "40001" | "40P01" => Failure::Again(why),
        "55P03" => Failure::Busy(why),
        // The server is shutting down, crashed or is starting up: the session ends.
        code if code.starts_with("08") || code.starts_with("57P") => Failure::Lost(why),
        code if ["21", "22", "23", "54"].contains(&&code[..2]) => Failure::Row(why),
        "XX001" | "XX002" => Failure::Other(Error::Corrupt(why)),
        _ => Failure::Refused(why),
    }
}

/// The error with its causes, which tokio-postgres leaves out.
fn with_causes(error: &Sql) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

impl Failure {
    /// The error for the caller, provided that nothing was written.
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

/// Does this error of `COMMIT` leave the outcome open? Only if there is no answer, or the server was shutting down.
pub(super) fn leaves_open(error: &Sql) -> bool {
    match error.as_db_error() {
        None => true,
        Some(db) => matches!(db.severity(), "FATAL" | "PANIC") || db.code().code().starts_with("57P"),
    }
}

/// Why a session could not be opened.
pub(super) fn on_connect(error: &Sql) -> Error {
    let why = with_causes(error);
    match error.code().map(SqlState::code) {
        // Wrong password, unknown role or database, no permission: waiting does not help.
        Some(code) if code.starts_with("28") || code == "3D000" || code.starts_with("42") => {
            Error::Refused(format!("the database refused the connection: {why}"))
        }
        _ => Error::Unavailable(format!("the database cannot be reached: {why}")),
    }
}
