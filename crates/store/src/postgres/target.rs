//! Where the database is and how to talk to it: `postgres://user:password@host:port/database?sslmode=…`.
//!
//! What libpq understands is read by the driver, apart from the settings of TLS, which are ours because the
//! certificates are checked by us:
//!
//! | `sslmode` | encrypted | the server proves to be |
//! |---|---|---|
//! | `disable` | no | – |
//! | `prefer` (what is meant when nothing is said) | if the server can | anybody |
//! | `require` | yes | anybody; with `sslrootcert`, as `verify-ca` |
//! | `verify-ca` | yes | one our authority signed for |
//! | `verify-full` | yes | the one of that name |
//!
//! `sslrootcert` names a file of authorities in PEM; without it, the well-known ones are trusted. A Unix socket
//! is a percent-encoded directory as host, or `?host=/run/postgresql`.

use super::errors;
use super::tls::{Check, Encryption};
use crate::{Error, Result};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::{AsyncMessage, Client, Config, Connection, NoTls};
use url::form_urlencoded;

pub(super) struct Target {
    config: Config,
    encryption: Option<Encryption>,
}

/// Whoever wants to know what a session hears without having asked.
pub(super) trait Ear: Send + Sync {
    fn hear(&self, said: &str);
    /// The connection is over.
    fn ended(&self);
}

impl Target {
    pub(super) fn parse(url: &str) -> Result<Target> {
        let (address, query) = url.split_once('?').unwrap_or((url, ""));
        let mut rest = form_urlencoded::Serializer::new(String::new());
        let (mut mode, mut authority) = ("prefer".to_owned(), None);
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "sslmode" => mode = value.into_owned(),
                "sslrootcert" => authority = Some(value.into_owned()),
                "sslcert" | "sslkey" | "sslcrl" => {
                    return Err(Error::Refused(format!("`{name}` in the address of the database is not supported")));
                }
                _ => drop(rest.append_pair(&name, &value)),
            }
        }
        let rest = rest.finish().replace('+', "%20");
        let plain = if rest.is_empty() { address.to_owned() } else { format!("{address}?{rest}") };
        let mut config: Config = plain.parse().map_err(|e: tokio_postgres::Error| {
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            Error::Refused(format!("the address of the database cannot be understood: {why}"))
        })?;
        let check = match (&*mode, &authority) {
            ("disable", _) => None,
            ("prefer" | "allow", _) => Some(Check::Nothing),
            ("require", None) => Some(Check::Nothing),
            ("require" | "verify-ca", _) => Some(Check::Authority),
            ("verify-full", _) => Some(Check::Name),
            (other, _) => {
                return Err(Error::Refused(format!(
                    "`sslmode={other}` is none of `disable`, `prefer`, `require`, `verify-ca` and `verify-full`"
                )));
            }
        };
        config.ssl_mode(match &*mode {
            "disable" => SslMode::Disable,
            "prefer" | "allow" => SslMode::Prefer,
            _ => SslMode::Require,
        });
        let encryption = check.map(|check| Encryption::new(check, authority.as_deref())).transpose()?;
        config.application_name("onward");
        config.connect_timeout(Duration::from_secs(5));
        config.tcp_user_timeout(Duration::from_secs(15));
        config.keepalives_idle(Duration::from_secs(15));
        if config.get_hosts().is_empty() {
            config.host("localhost");
        }
        Ok(Target { config, encryption })
    }

    /// Connects, and lets a task drive the socket.
    pub(super) async fn connect(&self, ear: Option<Arc<dyn Ear>>) -> Result<(Client, AbortHandle)> {
        let is_local = self.config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        match self.encryption.as_ref().filter(|_| !is_local) {
            Some(encryption) => {
                let opened = self.config.connect(encryption.clone()).await;
                let (client, connection) = opened.map_err(|e| errors::on_connect(&e))?;
                Ok((client, driven(connection, ear)))
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await.map_err(|e| errors::on_connect(&e))?;
                Ok((client, driven(connection, ear)))
            }
        }
    }
}

fn driven<S, T>(mut connection: Connection<S, T>, ear: Option<Arc<dyn Ear>>) -> AbortHandle
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(said))) => drop(ear.as_ref().map(|ear| ear.hear(said.payload()))),
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "a connection to the database ended");
                    break;
                }
                None => break,
            }
        }
        // Whoever waits for an answer hears that there is none before anybody looks whether it is over.
        drop(connection);
        if let Some(ear) = ear {
            ear.ended();
        }
    })
    .abort_handle()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_understood_or_refused() {
        for good in [
            "postgres://u:p@db.example:5433/onward",
            "postgresql://u@/onward?host=%2Frun%2Fpostgresql",
            "postgres://u@%2Frun%2Fpostgresql/onward?sslmode=disable",
            "postgres://u@h/d?sslmode=verify-full&connect_timeout=3",
            "postgres://u@a,b/d?target_session_attrs=read-write&sslmode=require",
        ] {
            assert!(Target::parse(good).is_ok(), "{good}");
        }
        for (bad, why) in [
            ("postgres://u@h/d?sslmode=maybe", "`sslmode=maybe`"),
            ("postgres://u@h/d?sslkey=k", "`sslkey`"),
            ("postgres://u@h/d?colour=red", "colour"),
            ("postgres://u@h:port/d", "understood"),
            ("postgres://u@h/d?sslmode=verify-ca&sslrootcert=/nowhere/ca.pem", "/nowhere/ca.pem"),
        ] {
            let error = Target::parse(bad).err().expect(bad);
            assert!(matches!(&error, Error::Refused(text) if text.contains(why)), "{error}");
        }
    }
}
