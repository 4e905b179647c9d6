//! The nodes that share a database: their leases, and fencing.
//!
//! Each node has a row with the time at which its lease expires, and renews it. A node that renews also fences the
//! nodes whose lease has expired: the database refuses their batches from then on, so other nodes can take over their
//! runs. All times are by the server's clock.
//!
//! After an outage of the server all leases have expired. So a node whose own lease has expired fences no other node:
//! it gives them time to renew.

use super::columns::{Attempted, count, get, int, sql};
use super::errors::Failure;
use super::session::Session;
use kernel::{Span, Timestamp};

/// The new epoch is larger than `after`.
pub(super) async fn join(session: &Session, name: &str, after: i64) -> Attempted<u64> {
    session.execute(sql!("postgres/node_fence_named"), &[&name]).await?;
    let claimed = session.first(sql!("postgres/node_claim"), &[&name, &after]).await?;
    let row = claimed.ok_or_else(|| Failure::Lost("no epoch was claimed".into()))?;
    count(&row, 0)
}

pub(super) async fn renew(session: &Session, epoch: u64, lease: Span) -> Attempted<Vec<(u64, Span)>> {
    let renewed = session.first(sql!("postgres/node_renew"), &[&int(epoch), &int(lease.0)]).await?;
    let was_live: bool = get(&renewed.ok_or(Failure::Fenced)?, 0)?;
    if was_live {
        session.execute(sql!("postgres/nodes_fence_absent"), &[&int(epoch)]).await?;
        session.execute(sql!("postgres/nodes_forget"), &[]).await?;
    }
    let rows = session.query(sql!("postgres/nodes_live"), &[]).await?;
    rows.iter().map(|row| Ok((count(row, 0)?, Span(count(row, 1)?)))).collect()
}

/// The server's clock.
pub(super) async fn clock(session: &Session) -> Attempted<Option<Timestamp>> {
    let row = session.first(sql!("postgres/clock"), &[]).await?;
    row.map(|row| get(&row, 0).map(Timestamp)).transpose()
}

pub(super) async fn leave(session: &Session, epoch: u64) -> Attempted<()> {
    session.execute(sql!("postgres/node_fence"), &[&int(epoch)]).await.map(drop)
}
