//! How a connection is made: timeouts, TLS, login.

use std::path::Path;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError, TlsCertificates,
};

use crate::error::{Error, Result};
use crate::store::redis::url::{Address, Place};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(2);
/// How long a server may take to answer: well above any pause of a healthy one.
pub(super) const ANSWER: Duration = Duration::from_secs(5);

/// After so long without a word the systems at both ends make sure that a connection is still there.
const QUIET: Duration = Duration::from_secs(10);

pub(crate) struct Connector {
    tls: bool,
    ca: Option<Vec<u8>>,
    login: RedisConnectionInfo,
}

impl Connector {
    /// For the servers themselves.
    pub(super) fn new(place: &Place, ca: Option<&Path>) -> Result<Self> {
        let mut login = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name()
            .set_db(place.db);
        if let Some(user) = &place.user {
            login = login.set_username(user);
        }
        if let Some(password) = &place.password {
            login = login.set_password(password);
        }
        Connector::with(place, ca, login)
    }

    /// For Sentinels, which have users of their own, or none.
    pub(super) fn to_sentinels(place: &Place, ca: Option<&Path>, password: Option<&str>) -> Result<Self> {
        let mut login = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP3).set_skip_set_lib_name();
        if let Some(password) = password {
            login = login.set_password(password);
        }
        Connector::with(place, ca, login)
    }

    fn with(place: &Place, ca: Option<&Path>, login: RedisConnectionInfo) -> Result<Self> {
        let read = |path: &Path| {
            std::fs::read(path).map_err(|e| Error::invalid("ca", format!("cannot read {}: {e}", path.display())))
        };
        if place.tls {
            // The first to ask decides for the process; any provider will do.
            let _ = rustls::crypto::ring::default_provider().install_default();
        }
        Ok(Connector { tls: place.tls, ca: ca.map(read).transpose()?, login })
    }

    /// A connection waits for ever; `Answers` does not.
    pub(super) fn config(&self) -> AsyncConnectionConfig {
        AsyncConnectionConfig::new().set_connection_timeout(Some(CONNECT)).set_response_timeout(None)
    }

    pub(super) async fn connect(
        &self,
        address: &Address,
        config: &AsyncConnectionConfig,
    ) -> Result<MultiplexedConnection, RedisError> {
        self.client(address)?.get_multiplexed_async_connection_with_config(config).await
    }

    fn client(&self, address: &Address) -> Result<Client, RedisError> {
        let info = self.info(address)?;
        match &self.ca {
            None => Client::open(info),
            Some(ca) => Client::build_with_tls(info, TlsCertificates { client_tls: None, root_cert: Some(ca.clone()) }),
        }
    }

    fn info(&self, address: &Address) -> Result<ConnectionInfo, RedisError> {
        let Address { host, port } = address.clone();
        let to = match self.tls {
            false => ConnectionAddr::Tcp(host, port),
            true => ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None },
        };
        let info = to.into_connection_info()?;
        // An idle worker only listens: whatever lies between must not take its connection for a dead one, nor a dead one be
        // taken for quiet.
        let quiet = TcpKeepalive::new().with_time(QUIET);
        let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(quiet);
        // What was sent and is not even received by then ends the connection, also one on which nobody waits for an answer.
        #[cfg(target_os = "linux")]
        let tcp = tcp.set_user_timeout(ANSWER);
        Ok(info.set_redis_settings(self.login.clone()).set_tcp_settings(tcp))
    }
}
