//! One connection to the server: its settings, its prepared statements, and pipelined transactions.
//!
//! Every session is opened with the same settings and checks, so that the first session to a server without durable
//! settings, or to a standby, detects it.
//!
//! Invariant: a session on which an error occurred is closed, not reused. The server then rolls back its open
//! transaction.

use super::columns::Attempted;
use super::errors::{self, Failure};
use super::target::{NotificationListener, Target};
use crate::crash::{self, Point};
use crate::{Error, Result};
use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Poll;
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Row, Statement};

/// The oldest supported version of Postgres.
const VERSION_MIN: i32 = 150_000;

/// How long the server may take to answer a transaction.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Plans always use the indexes, whatever the statistics of a recently empty table say, and no statement waits for
/// ever. A node that is stopped in the middle of a batch holds the locks of its runs until the server ends its idle
/// session. Other nodes that need one of these runs do not wait for that; see [`commit`](super::commit).
const SETTINGS: &str = "
SET search_path = onward;
SET plan_cache_mode = force_generic_plan;
SET enable_seqscan = off;
SET enable_bitmapscan = off;
SET enable_sort = off;
SET enable_hashjoin = off;
SET enable_mergejoin = off;
SET jit = off;
SET default_transaction_isolation = 'read committed';
SET statement_timeout = '30s';
SET lock_timeout = '1s';
SET idle_in_transaction_session_timeout = '5s';
SET client_min_messages = 'warning';
SET bytea_output = 'hex'";

/// Reads the properties of the server that every new session checks, and takes an advisory lock with a random key for
/// the life of the session: when the lock is free, everything the session did has ended.
const SERVER_PROPERTIES: &str = "
SELECT current_setting('server_version_num')::integer, current_setting('server_encoding'), pg_is_in_recovery(),
       current_setting('fsync'), current_setting('full_page_writes'), current_setting('synchronous_commit'),
       key, pg_try_advisory_lock(key),
       CASE WHEN pg_is_in_recovery() THEN '' ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END
FROM (SELECT (random() * 9e18)::bigint AS key) AS own";

pub(super) type Params<'a> = Vec<&'a (dyn ToSql + Sync)>;
type Executed<'a> = Pin<Box<dyn Future<Output = std::result::Result<u64, tokio_postgres::Error>> + Send + 'a>>;

pub(super) struct Session {
    client: Client,
    /// The prepared statements, by the address of their text, which is a constant.
    statements: Mutex<HashMap<usize, Statement>>,
    pub standing: SessionId,
    /// The task that does the I/O of the connection; aborted with the session.
    driver: AbortHandle,
}

/// How other sessions identify this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SessionId {
    /// Key of the advisory lock that is held until the session ends.
    pub key: i64,
    /// The server's WAL timeline; it changes when a standby takes over.
    pub timeline: String,
}

/// The outcome of a pipelined transaction.
#[derive(Debug)]
pub(super) enum Ended {
    Committed,
    /// Nothing was written.
    NotWritten(Failure),
    /// There was no answer: the outcome is unknown.
    Open(String),
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Session {
    /// Connects and checks that the server is durable and accepts writes.
    pub(super) async fn open(target: &Target) -> Result<Session> {
        Session::open_with(target, None).await
    }

    /// Like [`open`](Self::open), with a listener for notifications.
    pub(super) async fn open_with(target: &Target, listener: Option<Arc<dyn NotificationListener>>) -> Result<Session> {
        let (client, driver) = target.connect(listener).await?;
        let refused = |e: tokio_postgres::Error| errors::on_connect(&e);
        client.batch_execute(SETTINGS).await.map_err(refused)?;
        let row = client.query_one(SERVER_PROPERTIES, &[]).await.map_err(refused)?;
        let standing = check_server(&row)?;
        Ok(Session { client, statements: Mutex::default(), standing, driver })
    }

    pub(super) fn is_closed(&self) -> bool {
        self.client.is_closed()
    }

    /// Prepares those statements that are not prepared yet, in one round trip.
    pub(super) async fn prepare(&self, texts: &[&'static str]) -> Attempted<Vec<Statement>> {
        let missing: Vec<&'static str> = texts.iter().copied().filter(|text| self.prepared(text).is_none()).collect();
        let mut waiting: Vec<_> = missing.iter().map(|text| Box::pin(self.client.prepare(text))).collect();
        let mut ready: Vec<Option<_>> = waiting.iter().map(|_| None).collect();
        join_all(&mut waiting, &mut ready).await;
        for (text, statement) in missing.iter().zip(ready.into_iter().flatten()) {
            let statement = statement.map_err(|e| prepare_failure(text, e))?;
            self.statements.lock().unwrap_or_else(PoisonError::into_inner).insert(text.as_ptr() as usize, statement);
        }
        let lost = || Failure::Lost("a statement is not prepared".into());
        texts.iter().map(|text| self.prepared(text).ok_or_else(lost)).collect()
    }

    fn prepared(&self, text: &'static str) -> Option<Statement> {
        self.statements.lock().unwrap_or_else(PoisonError::into_inner).get(&(text.as_ptr() as usize)).cloned()
    }

    pub(super) async fn query(&self, text: &'static str, params: &[&(dyn ToSql + Sync)]) -> Attempted<Vec<Row>> {
        let statement = self.prepare(&[text]).await?;
        Ok(self.client.query(&statement[0], params).await?)
    }

    /// The first row, if there is one.
    pub(super) async fn first(&self, text: &'static str, params: &[&(dyn ToSql + Sync)]) -> Attempted<Option<Row>> {
        Ok(self.query(text, params).await?.into_iter().next())
    }

    /// Returns how many rows changed.
    pub(super) async fn execute(&self, text: &'static str, params: &[&(dyn ToSql + Sync)]) -> Attempted<u64> {
        let statement = self.prepare(&[text]).await?;
        Ok(self.client.execute(&statement[0], params).await?)
    }

    /// Executes one or more statements without parameters.
    pub(super) async fn batch(&self, text: &str) -> Attempted<()> {
        Ok(self.client.batch_execute(text).await?)
    }

    /// The rows of several statements that all see the same snapshot.
    pub(super) async fn query_snapshot(&self, reads: Vec<(&'static str, Params<'_>)>) -> Attempted<Vec<Vec<Row>>> {
        let statements = self.prepare(&reads.iter().map(|(text, _)| *text).collect::<Vec<_>>()).await?;
        let client = &self.client;
        let begin = async move {
            client.batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY").await?;
            Ok(Vec::new())
        };
        let end = async move {
            client.batch_execute("COMMIT").await?;
            Ok(Vec::new())
        };
        type Read<'a> = Pin<Box<dyn Future<Output = std::result::Result<Vec<Row>, tokio_postgres::Error>> + Send + 'a>>;
        let mut waiting: Vec<Read<'_>> = vec![Box::pin(begin)];
        for (statement, (_, params)) in statements.iter().zip(&reads) {
            waiting.push(Box::pin(client.query(statement, params)));
        }
        waiting.push(Box::pin(end));
        let mut ready: Vec<Option<_>> = waiting.iter().map(|_| None).collect();
        join_all(&mut waiting, &mut ready).await;
        let answers: std::result::Result<Vec<Vec<Row>>, _> = ready.into_iter().flatten().collect();
        let mut answers = answers?;
        answers.remove(0);
        answers.pop();
        Ok(answers)
    }

    /// Sends a whole transaction at once and waits for its end.
    ///
    /// `COMMIT` is sent before the answers of the statements arrive. That is safe, because a statement that fails turns
    /// `COMMIT` into a rollback. A statement that could not even be sent would not, so in that case `ROLLBACK` is sent
    /// instead.
    pub(super) async fn transaction(&self, statements: &[(Statement, Params<'_>)]) -> Ended {
        match tokio::time::timeout(ANSWER_MAX, self.pipeline(statements)).await {
            Ok(ended) => ended,
            Err(_) => Ended::Open(format!("no answer within {} s", ANSWER_MAX.as_secs())),
        }
    }

    async fn pipeline(&self, statements: &[(Statement, Params<'_>)]) -> Ended {
        let client = &self.client;
        let simple = |text: &'static str| -> Executed<'_> {
            Box::pin(async move { client.batch_execute(text).await.map(|()| 0) })
        };
        let mut waiting: Vec<Executed<'_>> = vec![simple("BEGIN")];
        waiting.extend(
            statements
                .iter()
                .map(|(statement, params)| -> Executed<'_> { Box::pin(client.execute(statement, params)) }),
        );
        let mut ready: Vec<Option<std::result::Result<u64, tokio_postgres::Error>>> =
            waiting.iter().map(|_| None).collect();
        std::future::poll_fn(|context| {
            for (future, answer) in waiting.iter_mut().zip(&mut ready) {
                if let Poll::Ready(done) = future.as_mut().poll(context) {
                    *answer = Some(done);
                }
            }
            Poll::Ready(())
        })
        .await;
        crash::point(Point::BeforeCommit);
        let is_sent = !ready.iter().any(|answer| matches!(answer, Some(Err(_))));
        waiting.push(simple(if is_sent { "COMMIT" } else { "ROLLBACK" }));
        ready.push(None);
        join_all(&mut waiting, &mut ready).await;
        let end = ready.pop().flatten();
        let refused = ready.into_iter().flatten().find_map(std::result::Result::err);
        match (refused, end) {
            (Some(error), _) if !is_sent => Ended::NotWritten(error.into()),
            (Some(error), _) if errors::leaves_open(&error) => Ended::Open(error.to_string()),
            (Some(error), _) => Ended::NotWritten(error.into()),
            (None, Some(Err(error))) if errors::leaves_open(&error) => Ended::Open(error.to_string()),
            (None, Some(Err(error))) => Ended::NotWritten(error.into()),
            (None, Some(Ok(_))) => Ended::Committed,
            (None, None) => Ended::Open("no answer".into()),
        }
    }
}

/// Waits for all futures. They are polled in their order, which is the order in which their statements are sent.
async fn join_all<F: Future + Unpin>(waiting: &mut [F], ready: &mut [Option<F::Output>]) {
    std::future::poll_fn(|context| {
        let mut is_done = true;
        for (future, answer) in waiting.iter_mut().zip(ready.iter_mut()) {
            if answer.is_none() {
                match Pin::new(future).poll(context) {
                    Poll::Ready(done) => *answer = Some(done),
                    Poll::Pending => is_done = false,
                }
            }
        }
        if is_done { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The error of a statement that cannot be prepared. If the statement is invalid, the error quotes it.
fn prepare_failure(text: &str, error: tokio_postgres::Error) -> Failure {
    match error.as_db_error() {
        Some(db) if db.code().code().starts_with("42") => {
            Failure::Other(Error::Refused(format!("{}: {}", db.message(), text.lines().last().unwrap_or_default())))
        }
        _ => error.into(),
    }
}

/// Checks that the server is supported, durable and accepts writes.
fn check_server(row: &Row) -> Result<SessionId> {
    let read = || -> std::result::Result<_, tokio_postgres::Error> {
        let text = |column| row.try_get::<_, String>(column);
        let standing = SessionId { key: row.try_get(6)?, timeline: text(8)? };
        Ok((row.try_get::<_, i32>(0)?, text(1)?, row.try_get::<_, bool>(2)?, text(3)?, text(4)?, text(5)?, standing))
    };
    let (version, encoding, is_standby, fsync, full_pages, synchronous, standing) =
        read().map_err(|e| Error::Unavailable(e.to_string()))?;
    if version < VERSION_MIN {
        return Err(Error::Refused(format!("Postgres {} is too old; use 15 or later", version / 10_000)));
    }
    if encoding != "UTF8" {
        return Err(Error::Refused(format!("the database has the encoding {encoding}; it must be UTF8")));
    }
    if is_standby {
        return Err(Error::Unavailable("the server is a standby, which accepts no writes".into()));
    }
    for (name, value) in [("fsync", &fsync), ("full_page_writes", &full_pages)] {
        if value == "off" {
            return Err(Error::Refused(format!(
                "the server has `{name} = off`, so a crash can lose or corrupt acknowledged writes; set `{name} = on`"
            )));
        }
    }
    if synchronous == "off" {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            tracing::warn!("the server has `synchronous_commit = off`: a crash loses the last acknowledged writes");
        });
    }
    Ok(standing)
}
