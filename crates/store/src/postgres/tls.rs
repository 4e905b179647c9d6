//! TLS to the database: rustls as the TLS implementation of tokio-postgres.

use crate::{Error, Result};
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};

/// How the certificate of the server is verified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Check {
    Nothing,
    /// A trusted authority must have signed it.
    Authority,
    /// It must also be issued for the name of the host.
    Name,
}

#[derive(Clone)]
pub(super) struct Encryption(Arc<ClientConfig>);

impl Encryption {
    /// The trusted authorities are those of the PEM file, or the public ones.
    pub(super) fn new(check: Check, authorities: Option<&str>) -> Result<Encryption> {
        let provider = Arc::new(ring::default_provider());
        let broken = |e: &dyn std::fmt::Display| Error::Refused(format!("TLS cannot be set up: {e}"));
        let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|e| broken(&e))?;
        let inner = match check {
            Check::Nothing => None,
            Check::Authority | Check::Name => {
                let roots = Arc::new(roots(authorities)?);
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, Arc::clone(&provider)).build();
                Some(verifier.map_err(|e| broken(&e))?)
            }
        };
        let verifier = Arc::new(Verifier { check, inner, provider });
        Ok(Encryption(Arc::new(builder.dangerous().with_custom_certificate_verifier(verifier).with_no_client_auth())))
    }
}

fn roots(file: Option<&str>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let Some(file) = file else {
        store.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
        return Ok(store);
    };
    let unreadable = |e: &dyn std::fmt::Display| Error::Refused(format!("cannot read certificates from `{file}`: {e}"));
    for certificate in CertificateDer::pem_file_iter(file).map_err(|e| unreadable(&e))? {
        let certificate = certificate.map_err(|e| unreadable(&e))?;
        store.add(certificate).map_err(|e| unreadable(&e))?;
    }
    if store.is_empty() {
        return Err(unreadable(&"the file has no certificate"));
    }
    Ok(store)
}

#[derive(Debug)]
struct Verifier {
    check: Check,
    inner: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> std::result::Result<ServerCertVerified, rustls::Error> {
        let Some(inner) = &self.inner else { return Ok(ServerCertVerified::assertion()) };
        match inner.verify_server_cert(end_entity, intermediates, name, ocsp, now) {
            // rustls checks the name last, so everything else is valid.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) if self.check == Check::Authority => Ok(ServerCertVerified::assertion()),
            other => other,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Encryption {
    type Stream = Stream<S>;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> std::result::Result<Handshake, Self::Error> {
        let name = ServerName::try_from(host)?.to_owned();
        Ok(Handshake { config: Arc::clone(&self.0), name })
    }
}

pub(super) struct Handshake {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        let connect = tokio_rustls::TlsConnector::from(self.config).connect(self.name, stream);
        Box::pin(async move { connect.await.map(Stream) })
    }
}

pub(super) struct Stream<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> tokio_postgres::tls::TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
