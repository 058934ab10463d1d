//! Opens connections: addresses, timeouts, TLS and login.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, TlsCertificates,
};

use rustls::crypto::CryptoProvider;
use tokio::net::TcpStream;

use crate::error::{Error, Result};
use crate::store::StoreOptions;
use crate::store::redis::conn::inline_driver::ConnectionDriver;
use crate::store::redis::url::{RedisUrl, ServerAddress, Topology};

/// Timeout for opening a connection.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// Time without any reply after which a server counts as unresponsive; well above any pause of a healthy one.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Idle time after which the operating system sends TCP keepalive probes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

pub(crate) struct Connector {
    tls: bool,
    /// The trusted authority and the client certificate, if the URL names any.
    certificates: Option<TlsCertificates>,
    login: RedisConnectionInfo,
}

impl Connector {
    /// Returns a connector for Redis servers.
    pub(crate) fn new(url: &RedisUrl, options: &StoreOptions) -> Result<Self> {
        Connector::with_login(url, options, build_login(url.user.as_deref(), url.password.as_deref()).set_db(url.db))
    }

    /// Returns a connector for Sentinels, which have their own users or none.
    pub(crate) fn for_sentinels(url: &RedisUrl, options: &StoreOptions) -> Result<Self> {
        let login = build_login(options.sentinel_user.as_deref(), options.sentinel_password.as_deref());
        Connector::with_login(url, options, login)
    }

    fn with_login(url: &RedisUrl, options: &StoreOptions, login: RedisConnectionInfo) -> Result<Self> {
        if options.cert.is_some() && !url.tls {
            return Err(Error::invalid("cert", "needs TLS; write rediss:// instead of redis://"));
        }
        if options.ca.is_some() && !url.tls {
            return Err(Error::invalid("ca", "needs TLS; write rediss:// instead of redis://"));
        }
        let has_sentinel_login = options.sentinel_user.is_some() || options.sentinel_password.is_some();
        if has_sentinel_login && !matches!(url.topology, Topology::Sentinel(_)) {
            let reason = "is for Sentinels only; write redis+sentinel://HOSTS/MASTER, or leave it out";
            return Err(Error::invalid("sentinel_password", reason));
        }
        if url.tls {
            ensure_crypto_provider();
        }
        let connector = Connector { tls: url.tls, certificates: read_certificates(options)?, login };
        if let (Some(host), Some(_)) = (url.hosts.first(), &options.cert) {
            // Checked now: on the first connection it would look like a fault of the server.
            let invalid_pair =
                |e| Error::invalid("cert", format!("cannot be used with this key: {e}; both must be PEM files"));
            connector.client(host).map_err(invalid_pair)?;
        }
        Ok(connector)
    }

    /// Replies have no timeout here; `PendingReplies` has one for all requests of a connection.
    pub(crate) fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT_TIMEOUT)).set_response_timeout(None)
    }

    pub(crate) async fn connect(
        &self,
        address: &ServerAddress,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        self.client(address)?.get_multiplexed_async_connection_with_config(config).await
    }

    /// Opens a connection with an inline driver. Returns `None` for TLS, which only the client crate's own path
    /// supports.
    pub(crate) async fn connect_inline(
        &self,
        address: &ServerAddress,
        config: &AsyncConnectionConfig,
    ) -> Option<Result<(MultiplexedConnection, ConnectionDriver), RedisError>> {
        if self.tls {
            return None;
        }
        let connect = async {
            // A name may resolve to several addresses: the first one that accepts is used.
            let addresses = tokio::net::lookup_host((address.host.as_str(), address.port)).await?;
            let connects: Vec<_> = addresses.map(|address| Box::pin(TcpStream::connect(address))).collect();
            if connects.is_empty() {
                return Err(std::io::Error::other("the host name resolves to no address").into());
            }
            let (stream, _) = futures_util::future::select_ok(connects).await?;
            let socket = SockRef::from(&stream);
            socket.set_tcp_nodelay(true)?;
            socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_IDLE))?;
            #[cfg(target_os = "linux")]
            socket.set_tcp_user_timeout(Some(REPLY_TIMEOUT))?;
            let (connection, driver) =
                MultiplexedConnection::new_with_config(&self.login, stream, config.clone()).await?;
            Ok((connection, ConnectionDriver::start(driver)))
        };
        let timed_out = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        Some(tokio::time::timeout(CONNECT_TIMEOUT, connect).await.unwrap_or_else(timed_out))
    }

    fn client(&self, address: &ServerAddress) -> Result<Client, RedisError> {
        let info = self.connection_info(address)?;
        match &self.certificates {
            None => Client::open(info),
            Some(certificates) => Client::build_with_tls(info, certificates.clone()),
        }
    }

    fn connection_info(&self, address: &ServerAddress) -> Result<ConnectionInfo, RedisError> {
        let ServerAddress { host, port } = address.clone();
        let address = match self.tls {
            false => ConnectionAddr::Tcp(host, port),
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let info = address.into_connection_info()?;
        // Keepalive probes: middleboxes must not drop the connection of an idle worker, and a dead server must be
        // noticed.
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_IDLE);
        let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
        // Data that the server does not acknowledge in this time closes the connection, even if no request waits.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(REPLY_TIMEOUT);
        Ok(info.set_redis_settings(self.login.clone()).set_tcp_settings(tcp))
    }
}

/// Makes sure that the process has a provider of cryptography, and keeps one that the program has installed.
///
/// The client crate builds its TLS configuration itself and takes no provider: it uses that of the process. Without one,
/// rustls installs one too, or panics if the program's crates enable several.
fn ensure_crypto_provider() {
    if CryptoProvider::get_default().is_none() {
        // Fails if another thread has just installed one, which then counts.
        let _ = rustls::crypto::ring::default_provider().install_default();
    }
}

fn build_login(user: Option<&str>, password: Option<&str>) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
    if let Some(user) = user {
        login = login.set_username(user);
    }
    if let Some(password) = password {
        login = login.set_password(password);
    }
    login
}

/// Reads the certificate files that the options name.
fn read_certificates(options: &StoreOptions) -> Result<Option<TlsCertificates>> {
    let read_file = |field: &'static str, path: &Option<PathBuf>| {
        let unreadable = |path: &Path, e| Error::invalid(field, format!("cannot read {}: {e}", path.display()));
        path.as_deref().map(|path| std::fs::read(path).map_err(|e| unreadable(path, e))).transpose()
    };
    let root_cert = read_file("ca", &options.ca)?;
    let client_tls = match (read_file("cert", &options.cert)?, read_file("key", &options.key)?) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
        _ => None,
    };
    let has_certificates = root_cert.is_some() || client_tls.is_some();
    Ok(has_certificates.then_some(TlsCertificates { client_tls, root_cert }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The only unit test that opens a connector with TLS: the provider belongs to the process.
    #[test]
    fn provider_that_the_program_has_installed_is_kept() {
        let mut own = rustls::crypto::ring::default_provider();
        own.cipher_suites.truncate(1);
        own.install_default().expect("no other test of this process needs a provider");
        let url = RedisUrl::parse("rediss://localhost").expect("is valid").expect("is a server");
        Connector::new(&url, &StoreOptions::default()).expect("needs no connection");
        let kept = CryptoProvider::get_default().expect("is installed");
        assert_eq!(kept.cipher_suites.len(), 1, "the provider of the program was replaced");
    }
}
