//! Connection URLs: `postgres://user:password@host:port/database?sslmode=…`.
//!
//! tokio-postgres parses the parameters of libpq, except for those of TLS, which are parsed here because this crate
//! verifies the certificates:
//!
//! | `sslmode` | encrypted | certificate of the server |
//! |---|---|---|
//! | `disable` | no | – |
//! | `prefer` (default) | if the server supports it | not verified |
//! | `require` | yes | not verified; with `sslrootcert`, as `verify-ca` |
//! | `verify-ca` | yes | signed by a trusted authority |
//! | `verify-full` | yes | also issued for the name of the host |
//!
//! `sslrootcert` names a PEM file of trusted authorities; without it, the public ones are trusted. A Unix socket is a
//! percent-encoded directory as host, or `?host=/run/postgresql`.

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

/// A listener for the notifications of a session.
pub(super) trait NotificationListener: Send + Sync {
    fn on_notification(&self, payload: &str);
    /// Called when the connection has ended.
    fn on_close(&self);
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
                    return Err(Error::Refused(format!("`{name}` in the URL of the database is not supported")));
                }
                _ => drop(rest.append_pair(&name, &value)),
            }
        }
        let rest = rest.finish().replace('+', "%20");
        let plain = if rest.is_empty() { address.to_owned() } else { format!("{address}?{rest}") };
        let mut config: Config = plain.parse().map_err(|e: tokio_postgres::Error| {
            let why = std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string);
            Error::Refused(format!("the URL of the database is invalid: {why}"))
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

    /// Connects, and spawns a task that does the I/O of the connection.
    pub(super) async fn connect(
        &self,
        listener: Option<Arc<dyn NotificationListener>>,
    ) -> Result<(Client, AbortHandle)> {
        let is_local = self.config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        match self.encryption.as_ref().filter(|_| !is_local) {
            Some(encryption) => {
                let opened = self.config.connect(encryption.clone()).await;
                let (client, connection) = opened.map_err(|e| errors::on_connect(&e))?;
                Ok((client, spawn_connection(connection, listener)))
            }
            None => {
                let (client, connection) = self.config.connect(NoTls).await.map_err(|e| errors::on_connect(&e))?;
                Ok((client, spawn_connection(connection, listener)))
            }
        }
    }
}

fn spawn_connection<S, T>(
    mut connection: Connection<S, T>,
    listener: Option<Arc<dyn NotificationListener>>,
) -> AbortHandle
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    tokio::spawn(async move {
        loop {
            match std::future::poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(notification))) => {
                    if let Some(listener) = &listener {
                        listener.on_notification(notification.payload());
                    }
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => {
                    tracing::debug!(%error, "a connection to the database ended");
                    break;
                }
                None => break,
            }
        }
        // Callers that wait for an answer must see the connection closed before the listener checks whether it is.
        drop(connection);
        if let Some(listener) = listener {
            listener.on_close();
        }
    })
    .abort_handle()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_parsed_or_refused() {
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
            ("postgres://u@h:port/d", "invalid"),
            ("postgres://u@h/d?sslmode=verify-ca&sslrootcert=/nowhere/ca.pem", "/nowhere/ca.pem"),
        ] {
            let error = Target::parse(bad).err().expect(bad);
            assert!(matches!(&error, Error::Refused(text) if text.contains(why)), "{error}");
        }
    }
}
