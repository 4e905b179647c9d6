//! Mapping of SQLite's errors to the store's.
//!
//! Invariant: an error says that nothing was written only when that is certain. Full, busy, locked and read-only are
//! certain, because the transaction is rolled back. An I/O error or damage during a commit is not: the last frame may
//! or may not have reached the disk, so the outcome is `Unknown`. (SQLite also reports an I/O error when the file
//! system became read-only; the writer checks for that, see `StoreWriter::give_up`.)

use crate::Error;
use rusqlite::{Error as Sql, ErrorCode};

/// Why a transaction failed, while it is still open.
#[derive(Debug)]
pub(super) enum Failure {
    /// The rows of one run cannot be written; those of other runs can.
    Row,
    /// A statement failed.
    Statement(Sql),
    /// `COMMIT` itself failed.
    Commit(Sql),
    /// An error that did not come from SQLite.
    Other(Error),
}

/// The result of one step of a transaction.
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
            // A stored row of this run cannot be read, which concerns no other run.
            None => Failure::Row,
            Some(_) => Failure::Statement(error),
        }
    }
}

impl Failure {
    /// Did the operating system refuse to write? If so, the log has no complete commit of this transaction, and the
    /// next transaction overwrites the incomplete one.
    pub(super) fn is_refused_write(&self) -> bool {
        let (Failure::Statement(error) | Failure::Commit(error)) = self else { return false };
        error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_IOERR_WRITE)
    }

    /// The error for the caller, provided that the transaction could be rolled back.
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

/// Maps the error of a read, which cannot have changed anything.
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
    fn an_error_is_unavailable_only_if_nothing_can_have_been_written() {
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
