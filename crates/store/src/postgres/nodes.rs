//! The processes that share a database: who is there, and who is taken for dead.
//!
//! Each node has a row with a time until which it is there, and renews it. Whoever renews bars those whose time is
//! over: none of their batches is taken any more, so what they had begun can be done by others. The server's clock
//! judges, no other.
//!
//! When the server was away, everybody is late. So a node that is late itself bars nobody: it lets the others renew.

use super::columns::{Attempted, count, get, int, sql};
use super::errors::Failure;
use super::session::Session;
use kernel::Span;

/// The new epoch is larger than `after`.
pub(super) async fn join(session: &Session, name: &str, after: i64) -> Attempted<u64> {
    session.execute(sql!("postgres/node_bar_named"), &[&name]).await?;
    let claimed = session.first(sql!("postgres/node_claim"), &[&name, &after]).await?;
    let row = claimed.ok_or_else(|| Failure::Lost("no epoch was claimed".into()))?;
    count(&row, 0)
}

pub(super) async fn renew(session: &Session, epoch: u64, lease: Span) -> Attempted<Vec<(u64, Span)>> {
    let renewed = session.first(sql!("postgres/node_renew"), &[&int(epoch), &int(lease.0)]).await?;
    let was_there: bool = get(&renewed.ok_or(Failure::Fenced)?, 0)?;
    if was_there {
        session.execute(sql!("postgres/nodes_bar_absent"), &[&int(epoch)]).await?;
        session.execute(sql!("postgres/nodes_forget"), &[]).await?;
    }
    let rows = session.query(sql!("postgres/nodes_there"), &[]).await?;
    rows.iter().map(|row| Ok((count(row, 0)?, Span(count(row, 1)?)))).collect()
}

pub(super) async fn leave(session: &Session, epoch: u64) -> Attempted<()> {
    session.execute(sql!("postgres/node_bar"), &[&int(epoch)]).await.map(drop)
}
