//! What SQLite's errors mean to a caller.
//!
//! The rule that keeps it right: an error may claim that nothing was written only when that is
//! certain. Full, busy, locked and read-only are refusals, and the transaction is rolled back. An I/O
//! error or damage in the middle of a commit is not: whether the last frame reached the disk is
//! anybody's guess, so the outcome is `Unknown`. (SQLite says "I/O error" also when a file system became
//! read-only under it; the writer looks, see `Writer::give_up`.)

use crate::Error;
use rusqlite::{Error as Sql, ErrorCode};

/// Why a transaction did not go through, while it is still open.
#[derive(Debug)]
pub(super) enum Failure {
    /// The rows of one run cannot be written; the others can.
    Row,
    /// A statement failed.
    Statement(Sql),
    /// `COMMIT` itself failed.
    Commit(Sql),
    /// Not SQLite's doing.
    Other(Error),
}

/// What one step of a transaction answers.
pub(super) type Attempted<T> = std::result::Result<T, Failure>;

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        Failure::Other(error)
    }
}

impl From<Sql> for Failure {
    fn from(error: Sql) -> Failure {
        match error.sqlite_error_code() {
            Some(ErrorCode::ConstraintViolation | ErrorCode::TypeMismatch | ErrorCode::TooBig) => Failure::Row,
            // A stored row of this run that cannot be read: this run's trouble, nobody else's.
            None => Failure::Row,
            Some(_) => Failure::Statement(error),
        }
    }
}

impl Failure {
    /// Did the system refuse to write? Then the log holds no whole commit of this transaction, and the
    /// next one begins where this one did.
    pub(super) fn is_refused_write(&self) -> bool {
        let (Failure::Statement(error) | Failure::Commit(error)) = self else { return false };
        error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE)
    }

    /// The answer to the caller, provided the transaction could be rolled back.
    pub(super) fn into_error(self) -> Error {
        match self {
            Failure::Row => Error::Unavailable("a row was refused".into()),
            Failure::Statement(error) => match error.sqlite_error_code() {
                Some(ErrorCode::SystemIoFailure | ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                    Error::Unknown(error.to_string())
                }
                _ => Error::Unavailable(error.to_string()),
            },
            Failure::Commit(error) => match error.sqlite_error_code() {
                Some(
                    ErrorCode::DiskFull
                    | ErrorCode::DatabaseBusy
                    | ErrorCode::DatabaseLocked
                    | ErrorCode::ReadOnly
                    | ErrorCode::ConstraintViolation,
                ) => Error::Unavailable(error.to_string()),
                _ => Error::Unknown(error.to_string()),
            },
            Failure::Other(error) => error,
        }
    }
}

/// Errors of reads, which change nothing.
pub(super) fn on_read(error: Sql) -> Error {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) | None => Error::Corrupt(error.to_string()),
        Some(_) => Error::Unavailable(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn sql(code: i32) -> Sql {
        Sql::SqliteFailure(ffi::Error::new(code), None)
    }

    #[test]
    fn only_a_certain_refusal_is_called_one() {
        for code in [ffi::SQLITE_FULL, ffi::SQLITE_BUSY, ffi::SQLITE_LOCKED, ffi::SQLITE_READONLY] {
            assert!(matches!(Failure::from(sql(code)).into_error(), Error::Unavailable(_)), "{code}");
            assert!(matches!(Failure::Commit(sql(code)).into_error(), Error::Unavailable(_)), "{code} at commit");
        }
        for code in [ffi::SQLITE_IOERR, ffi::SQLITE_IOERR_FSYNC, ffi::SQLITE_CORRUPT, ffi::SQLITE_NOTADB] {
            assert!(matches!(Failure::from(sql(code)).into_error(), Error::Unknown(_)), "{code}");
            assert!(matches!(Failure::Commit(sql(code)).into_error(), Error::Unknown(_)), "{code} at commit");
        }
        assert!(matches!(Failure::Commit(sql(ffi::SQLITE_INTERNAL)).into_error(), Error::Unknown(_)));
        assert!(matches!(Failure::from(sql(ffi::SQLITE_CONSTRAINT_PRIMARYKEY)), Failure::Row));
        assert!(matches!(on_read(sql(ffi::SQLITE_CORRUPT)), Error::Corrupt(_)));
        assert!(matches!(on_read(sql(ffi::SQLITE_IOERR)), Error::Unavailable(_)));
    }
}
