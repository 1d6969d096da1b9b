//! TLS to the server, by the parameters of the database URL as libpq understands them: `sslmode`, `sslrootcert`,
//! `sslcert`, `sslkey`. The driver knows only some of these, so they are taken out of the URL and the rest is left to
//! the driver. Owns how connections are made; must not know queues.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use deadpool_postgres::Connect;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::verify_server_cert_signed_by_trust_anchor;
use rustls::crypto::{CryptoProvider, WebPkiSupportedAlgorithms, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::tls::MakeTlsConnect;
use tokio_postgres::{Client, Config, Connection, Socket};
use tokio_postgres_rustls::MakeRustlsConnect;

use crate::error::{Error, Result};
use crate::postgres::engine::url;

/// The TLS stream of a connection.
type Stream = <MakeRustlsConnect as MakeTlsConnect<Socket>>::Stream;

/// Whether TLS is used, and how much of the server's identity is checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

/// Where to connect, and how.
#[derive(Clone)]
pub(in crate::postgres) struct Target {
    pub(in crate::postgres) config: Config,
    tls: MakeRustlsConnect,
    /// With `prefer`: whether to connect without TLS if TLS fails.
    falls_back: bool,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target").field("hosts", &self.config.get_hosts()).finish_non_exhaustive()
    }
}

impl Target {
    /// Reads a database URL.
    pub(in crate::postgres) fn read(text: &str) -> Result<Self> {
        let (rest, given) = url::split(text)?;
        let mut config: Config = rest
            .parse()
            .map_err(|error| Error::invalid(format!("the database URL cannot be read: {error}")).with_source(error))?;
        if config.get_hosts().is_empty() {
            return Err(Error::invalid("the database URL names no host: use postgres://user@host:port/database"));
        }
        let mode = match given.mode.as_deref() {
            None | Some("prefer") => Mode::Prefer,
            Some("disable") => Mode::Disable,
            // As libpq does: with a root certificate, `require` verifies like `verify-ca`.
            Some("require") if given.root.is_some() => Mode::VerifyCa,
            Some("require") => Mode::Require,
            Some("verify-ca") => Mode::VerifyCa,
            Some("verify-full") => Mode::VerifyFull,
            Some(other) => {
                return Err(Error::invalid(format!(
                    "sslmode={other} is not known: use disable, prefer, require, verify-ca or verify-full"
                )));
            }
        };
        // The server offers no TLS on a Unix socket, which does not leave the machine.
        let local = config.get_hosts().iter().all(|host| matches!(host, Host::Unix(_)));
        config.ssl_mode(match mode {
            _ if local => SslMode::Disable,
            Mode::Disable => SslMode::Disable,
            Mode::Prefer => SslMode::Prefer,
            Mode::Require | Mode::VerifyCa | Mode::VerifyFull => SslMode::Require,
        });
        let tls = MakeRustlsConnect::new(client_config(mode, &given)?);
        Ok(Self { config, tls, falls_back: mode == Mode::Prefer })
    }

    /// Connects. The caller must drive the returned connection.
    pub(in crate::postgres) async fn connect(
        &self,
    ) -> Result<(Client, Connection<Socket, Stream>), tokio_postgres::Error> {
        match self.config.connect(self.tls.clone()).await {
            Err(error) if self.falls_back && may_connect_plain(&error) => {
                let mut plain = self.config.clone();
                plain.ssl_mode(SslMode::Disable);
                // If that fails too, report the error of the attempt with TLS.
                plain.connect(self.tls.clone()).await.map_err(|_| error)
            }
            made => made,
        }
    }

    /// Connects, and drives the connection in a task of its own.
    pub(in crate::postgres) async fn connect_driven(&self) -> Result<(Client, JoinHandle<()>), tokio_postgres::Error> {
        let (client, connection) = self.connect().await?;
        let driver = tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a database connection ended");
            }
        });
        Ok((client, driver))
    }

    /// The TLS settings, for the extra connection that cancels a statement.
    pub(in crate::postgres) fn tls(&self) -> MakeRustlsConnect {
        self.tls.clone()
    }
}

impl Connect for Target {
    // The pool passes the configuration that this target was made with.
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        self.connect_driven().boxed()
    }
}

/// Whether a connection without TLS may succeed where one with TLS failed.
fn may_connect_plain(error: &tokio_postgres::Error) -> bool {
    error.code() == Some(&SqlState::INVALID_AUTHORIZATION_SPECIFICATION) || error.to_string().contains("TLS")
}

fn client_config(mode: Mode, given: &url::Given) -> Result<ClientConfig> {
    // Explicit, since there is no default in a process with several providers.
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Error::invalid("TLS cannot be set up").with_source(error))?;
    let algorithms = provider.signature_verification_algorithms;
    let verifier: Arc<dyn ServerCertVerifier> = match mode {
        Mode::Disable | Mode::Prefer | Mode::Require => Arc::new(Unchecked(algorithms)),
        Mode::VerifyCa => Arc::new(AnyName { roots: roots(given)?, algorithms }),
        Mode::VerifyFull => full_verifier(roots(given)?, provider)?,
    };
    let builder = builder.dangerous().with_custom_certificate_verifier(verifier);
    let (Some(certificates), Some(key)) = (&given.certificate, &given.key) else {
        if given.certificate.is_none() && given.key.is_none() {
            return Ok(builder.with_no_client_auth());
        }
        return Err(Error::invalid("sslcert and sslkey go together: name both files or neither"));
    };
    let chain = read_certificates("sslcert", certificates)?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(|error| {
        Error::invalid(format!("sslkey: {key} is not a readable, unencrypted private key in PEM form: {error}"))
    })?;
    builder.with_client_auth_cert(chain, secret).map_err(|error| {
        Error::invalid(format!("sslcert and sslkey cannot be used together: {error}")).with_source(error)
    })
}

fn full_verifier(roots: RootCertStore, provider: Arc<CryptoProvider>) -> Result<Arc<dyn ServerCertVerifier>> {
    let built = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider).build();
    built
        .map(|verifier| -> Arc<dyn ServerCertVerifier> { verifier })
        .map_err(|error| Error::invalid(format!("the root certificates cannot be used: {error}")).with_source(error))
}

/// The trusted roots: those of the given file, else the machine's, else the Mozilla roots.
fn roots(given: &url::Given) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match given.root.as_deref() {
        Some(file) if file != "system" => {
            for certificate in read_certificates("sslrootcert", file)? {
                roots.add(certificate).map_err(|error| {
                    Error::invalid(format!("sslrootcert: {file} holds a certificate that cannot be a root: {error}"))
                        .with_source(error)
                })?;
            }
        }
        _ => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
            }
        }
    }
    Ok(roots)
}

fn read_certificates(parameter: &str, file: &str) -> Result<Vec<CertificateDer<'static>>> {
    let unreadable = |error: &dyn fmt::Display| {
        Error::invalid(format!("{parameter}: {file} cannot be read as certificates in PEM form: {error}"))
    };
    let read = CertificateDer::pem_file_iter(Path::new(file)).map_err(|error| unreadable(&error))?;
    let certificates = read.collect::<Result<Vec<_>, _>>().map_err(|error| unreadable(&error))?;
    if certificates.is_empty() {
        return Err(unreadable(&"the file holds none"));
    }
    Ok(certificates)
}

/// Accepts any certificate: the connection is encrypted, but the server is not authenticated. What `require` means
/// without a root.
#[derive(Debug)]
struct Unchecked(WebPkiSupportedAlgorithms);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_schemes()
    }
}

/// Checks who signed the certificate, but not the host name in it. What `verify-ca` means.
#[derive(Debug)]
struct AnyName {
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyName {
    fn verify_server_cert(
        &self,
        certificate: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let parsed = ParsedCertificate::try_from(certificate)?;
        verify_server_cert_signed_by_trust_anchor(&parsed, &self.roots, intermediates, now, self.algorithms.all)?;
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
