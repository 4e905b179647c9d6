//! The writer's view of the database, kept from one batch to the next.
//!
//! A transaction begins by taking a view and ends by giving it back, which is four locks asked of the system: as long as
//! deciding on a step. But the one who writes sees everything anyway. A read that is begun and not ended keeps the view, and each
//! transaction beside it takes and gives back the write lock only.
//!
//! The price: as long as the view is kept, a checkpoint copies what came before it and no more. So it is given back before one
//! is asked for, and before anything that is not a batch of runs.

use rusqlite::Connection;

const READ: &str = "SELECT 1 FROM sqlite_schema";

#[derive(Debug, Default)]
pub(super) struct View {
    is_kept: bool,
}

impl View {
    /// Whatever is in the way of a read is in the way of the transaction that follows, and it will say so.
    pub(super) fn keep(&mut self, connection: &Connection) {
        if !self.is_kept {
            self.is_kept = begin_to_read(connection).is_ok();
        }
    }

    pub(super) fn give_back(&mut self, connection: &Connection) {
        if std::mem::take(&mut self.is_kept) {
            // To ask anew and to drop the answer ends what was begun.
            let _ = connection.prepare_cached(READ).and_then(|mut read| read.query([]).map(drop));
        }
    }
}

fn begin_to_read(connection: &Connection) -> rusqlite::Result<()> {
    let mut read = connection.prepare_cached(READ)?;
    let mut rows = read.query([])?;
    rows.next()?;
    // Dropped rows would end the read.
    std::mem::forget(rows);
    Ok(())
}
