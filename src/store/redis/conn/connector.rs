//! How a connection is made: timeouts, TLS, login.

use std::path::{Path, PathBuf};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo,
    ProtocolVersion, RedisConnectionInfo, RedisError, TlsCertificates,
};

use tokio::net::TcpStream;

use crate::error::{Error, Result};
use crate::store::StoreOptions;
use crate::store::redis::conn::inline_driver::ConnectionDriver;
use crate::store::redis::url::{RedisUrl, ServerAddress, Topology};

/// How long a connection may take to be made.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How long a server may take to answer: well above any pause of a healthy one.
pub(crate) const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// After so long without a word the systems at both ends make sure that a connection is still there.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(10);

pub(crate) struct Connector {
    tls: bool,
    /// What is trusted and what is shown, if the URL says so.
    certificates: Option<TlsCertificates>,
    login: RedisConnectionInfo,
}

impl Connector {
    /// For the servers themselves.
    pub(crate) fn new(place: &RedisUrl, options: &StoreOptions) -> Result<Self> {
        Connector::with_login(
            place,
            options,
            build_login(place.user.as_deref(), place.password.as_deref()).set_db(place.db),
        )
    }

    /// For Sentinels, which have users of their own, or none.
    pub(crate) fn for_sentinels(place: &RedisUrl, options: &StoreOptions) -> Result<Self> {
        let login = build_login(options.sentinel_user.as_deref(), options.sentinel_password.as_deref());
        Connector::with_login(place, options, login)
    }

    fn with_login(place: &RedisUrl, options: &StoreOptions, login: RedisConnectionInfo) -> Result<Self> {
        if options.cert.is_some() && !place.tls {
            return Err(Error::invalid("cert", "is shown by TLS only; write rediss:// instead of redis://"));
        }
        if options.ca.is_some() && !place.tls {
            return Err(Error::invalid("ca", "is asked by TLS only; write rediss:// instead of redis://"));
        }
        let of_sentinels = options.sentinel_user.is_some() || options.sentinel_password.is_some();
        if of_sentinels && !matches!(place.topology, Topology::Sentinel(_)) {
            let reason = "is for Sentinels; write redis+sentinel://HOSTS/MASTER, or leave it out";
            return Err(Error::invalid("sentinel_password", reason));
        }
        if place.tls {
            // The first to ask decides for the process; any provider will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        let connector = Connector { tls: place.tls, certificates: read_certificates(options)?, login };
        if let (Some(host), Some(_)) = (place.hosts.first(), &options.cert) {
            // Now rather than with the first connection, where it would look like a fault of the server.
            let unfit =
                |e| Error::invalid("cert", format!("cannot be used with this key: {e}; both must be PEM files"));
            connector.client(host).map_err(unfit)?;
        }
        Ok(connector)
    }

    /// A connection waits for ever; `Answers` does not.
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

    /// The same for a connection that is driven by who waits for an answer. `None` where that cannot be: the way through TLS
    /// is the client's own.
    pub(crate) async fn connect_inline(
        &self,
        address: &ServerAddress,
        config: &AsyncConnectionConfig,
    ) -> Option<Result<(MultiplexedConnection, ConnectionDriver), RedisError>> {
        if self.tls {
            return None;
        }
        let connect = async {
            // Of several that a name stands for the first that answers.
            let named = tokio::net::lookup_host((address.host.as_str(), address.port)).await?;
            let tries: Vec<_> = named.map(|one| Box::pin(TcpStream::connect(one))).collect();
            if tries.is_empty() {
                return Err(std::io::Error::other("the name stands for no address").into());
            }
            let (stream, _) = futures_util::future::select_ok(tries).await?;
            let socket = SockRef::from(&stream);
            socket.set_tcp_nodelay(true)?;
            socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE_IDLE))?;
            #[cfg(target_os = "linux")]
            socket.set_tcp_user_timeout(Some(REPLY_TIMEOUT))?;
            let (connection, driver) =
                MultiplexedConnection::new_with_config(&self.login, stream, config.clone()).await?;
            Ok((connection, ConnectionDriver::start(driver)))
        };
        let late = |_| Err(std::io::Error::from(std::io::ErrorKind::TimedOut).into());
        Some(tokio::time::timeout(CONNECT_TIMEOUT, connect).await.unwrap_or_else(late))
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
        let to = match self.tls {
            false => ConnectionAddr::Tcp(host, port),
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let info = to.into_connection_info()?;
        // An idle worker only listens: whatever lies between must not take its connection for a dead one, nor a dead one be
        // taken for quiet.
        let quiet = TcpKeepalive::new().with_time(KEEPALIVE_IDLE);
        let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(quiet);
        // What was sent and is not even received by then ends the connection, also one on which nobody waits for an answer.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(REPLY_TIMEOUT);
        Ok(info.set_redis_settings(self.login.clone()).set_tcp_settings(tcp))
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

/// What the options name, read.
fn read_certificates(options: &StoreOptions) -> Result<Option<TlsCertificates>> {
    let read = |field: &'static str, path: &Option<PathBuf>| {
        let unread = |path: &Path, e| Error::invalid(field, format!("cannot read {}: {e}", path.display()));
        path.as_deref().map(|path| std::fs::read(path).map_err(|e| unread(path, e))).transpose()
    };
    let root_cert = read("ca", &options.ca)?;
    let client_tls = match (read("cert", &options.cert)?, read("key", &options.key)?) {
        (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
        _ => None,
    };
    let any = root_cert.is_some() || client_tls.is_some();
    Ok(any.then_some(TlsCertificates { client_tls, root_cert }))
}
