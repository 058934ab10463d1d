//! The border of "this machine": which client needs no token as long as the store has none.
//!
//! A loopback address is not enough. Every user of the machine can connect to it, and so can a proxy on behalf of other
//! machines. A client is local only if its end of the connection belongs to the user of this process, which the kernel
//! lists in `/proc/net/tcp`. A proxy under the same user still has to betray itself: by HTTP/1.0, which plain proxies
//! send, or by a forwarding header.
//!
//! A client may send a request and reset its connection at once. The request can still be read, while a connection of
//! another user takes over the port. So the server's own end, known by its inode, must still be open after the client's
//! end was found: two open ends between the same addresses belong to each other.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::sync::Arc;

use axum::http::request::Parts;
use axum::http::{Extensions, HeaderMap, Version};
use tokio::sync::OnceCell;

use super::server::App;

/// The lists of TCP connections of this process's network.
const CONNECTION_LISTS: [&str; 2] = ["/proc/self/net/tcp", "/proc/self/net/tcp6"];
/// The file with the uid that stands for every user that this process cannot see.
const OVERFLOW_UID: &str = "/proc/sys/kernel/overflowuid";
/// The most bytes of a list that are read: about a million connections.
const LIST_BYTES_MAX: u64 = 160 * 1024 * 1024;
/// The state of an open connection in the lists. A closed one no longer shows its user.
const ESTABLISHED: &str = "01";

/// Headers by which proxies forward the address or the name of their client.
const FORWARDING_HEADERS: [&str; 8] = [
    "forwarded",
    "via",
    "x-real-ip",
    "x-client-ip",
    "x-original-host",
    "x-cluster-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
];
/// The prefix of further ones, such as `X-Forwarded-For`.
const FORWARDING_PREFIX: &str = "x-forwarded";

/// The reason why a client does not count as local.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotLocal {
    /// The options of the server, or a token in the store, require a token from every client.
    TokenRequired,
    /// The client is on another machine, or the router does not know its connection.
    Remote,
    /// A proxy may have sent the request.
    Proxied,
    /// The connection belongs to another user.
    OtherUser,
    /// The user of the connection cannot be determined.
    Unknown,
}

impl NotLocal {
    /// Explains the refusal to the client.
    pub(crate) fn explain(self) -> &'static str {
        match self {
            NotLocal::TokenRequired | NotLocal::Remote => "missing token",
            NotLocal::Proxied => {
                "missing token: a request through a proxy (HTTP/1.0, or with a forwarding header) never counts as local"
            }
            NotLocal::OtherUser => {
                "missing token: without one, this server accepts only clients of the user that it runs as"
            }
            NotLocal::Unknown => {
                "missing token: this server cannot tell which user sends a request; open the sign-in link that it \
                 printed at its start: it works once, for 15 minutes, until there is a token; restart the server for a \
                 new link"
            }
        }
    }
}

/// A connection that this server has accepted.
#[derive(Clone)]
pub(crate) struct Connection(Arc<Endpoints>);

struct Endpoints {
    peer: SocketAddr,
    local: SocketAddr,
    /// The inode of this server's end; `None` if it is unknown.
    inode: Option<u64>,
    /// The user of the other end, once it was needed.
    uid: OnceCell<Option<u32>>,
}

impl Connection {
    /// Returns the connection between these addresses, of which `socket` is the server's end.
    pub(crate) fn new(peer: SocketAddr, local: SocketAddr, socket: impl AsFd) -> Self {
        let (peer, local, inode) = (canonical(peer), canonical(local), inode_of(socket));
        Connection(Arc::new(Endpoints { peer, local, inode, uid: OnceCell::new() }))
    }

    /// Returns the user of the other end, if this machine knows it.
    async fn uid(&self) -> Option<u32> {
        let (peer, local, inode) = (self.0.peer, self.0.local, self.0.inode?);
        let find = async || tokio::task::spawn_blocking(move || find_uid(peer, local, inode)).await.ok().flatten();
        *self.0.uid.get_or_init(find).await
    }
}

fn inode_of(socket: impl AsFd) -> Option<u64> {
    rustix::fs::fstat(socket).ok().map(|stat| stat.st_ino)
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Returns the user of this process, if the users of connections can be compared with it.
pub(crate) fn own_uid() -> Option<u32> {
    let own = rustix::process::geteuid().as_raw();
    let readable = CONNECTION_LISTS.iter().any(|list| File::open(list).is_ok());
    (readable && own != overflow_uid()?).then_some(own)
}

fn overflow_uid() -> Option<u32> {
    std::fs::read_to_string(OVERFLOW_UID).ok()?.trim().parse().ok()
}

/// Returns the user of the connection of a request, if it is a loopback connection and this machine knows the user.
pub(crate) async fn loopback_uid(extensions: &Extensions) -> Option<u32> {
    let connection = extensions.get::<Connection>().filter(|connection| connection.0.peer.ip().is_loopback())?;
    connection.uid().await
}

/// Returns `Ok` if the request comes from the user of this process on this machine, over no proxy.
pub(crate) async fn check_local(app: &App, request: &Parts) -> Result<(), NotLocal> {
    let connection = request.extensions.get::<Connection>().ok_or(NotLocal::Remote)?;
    if !connection.0.peer.ip().is_loopback() {
        return Err(NotLocal::Remote);
    }
    if request.version < Version::HTTP_11 || is_forwarded(&request.headers) {
        return Err(NotLocal::Proxied);
    }
    let own = app.own_uid.ok_or(NotLocal::Unknown)?;
    match connection.uid().await {
        Some(uid) if uid == own => Ok(()),
        Some(_) => Err(NotLocal::OtherUser),
        None => Err(NotLocal::Unknown),
    }
}

fn is_forwarded(headers: &HeaderMap) -> bool {
    let is_forwarding = |name: &str| FORWARDING_HEADERS.contains(&name) || name.starts_with(FORWARDING_PREFIX);
    headers.keys().any(|name| is_forwarding(name.as_str()))
}

/// Returns the user of the connection's other end. `inode` is that of this server's end.
fn find_uid(peer: SocketAddr, local: SocketAddr, inode: u64) -> Option<u32> {
    // The other end's own address is our peer.
    let other = find_end(peer, local)?;
    // In this order: while our end is open, no other connection can have both addresses.
    let own = find_end(local, peer)?;
    (own.inode == inode).then_some(other.uid)
}

fn find_end(from: SocketAddr, to: SocketAddr) -> Option<OpenEnd> {
    CONNECTION_LISTS.iter().find_map(|list| {
        let list = BufReader::new(File::open(list).ok()?.take(LIST_BYTES_MAX));
        list.lines().map_while(Result::ok).find_map(|line| parse_end(&line, from, to))
    })
}

/// One end of an open connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OpenEnd {
    uid: u32,
    inode: u64,
}

/// Parses a line of the kernel's list; `None` unless it is the end at `from` of the open connection to `to`.
fn parse_end(line: &str, from: SocketAddr, to: SocketAddr) -> Option<OpenEnd> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    let (own, other, state) = (fields.next()?, fields.next()?, fields.next()?);
    let matches = |text: &str, address: SocketAddr| parse_address(text) == Some(address);
    if state != ESTABLISHED || !matches(own, from) || !matches(other, to) {
        return None;
    }
    // Three fields of counters and timers, then the user; behind a timeout, the inode, which is 0 without a process.
    let uid = fields.nth(3)?.parse().ok()?;
    let inode = fields.nth(1)?.parse().ok()?;
    (inode != 0).then_some(OpenEnd { uid, inode })
}

/// Parses `0100007F:1F90`: the bytes of the address in words of this machine's byte order, and the port.
fn parse_address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let word = |at: usize| Some(u32::from_str_radix(address.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let ip = match address.len() {
        8 => IpAddr::V4(Ipv4Addr::from(word(0)?)),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_exact_mut(4).enumerate() {
                part.copy_from_slice(&word(at * 8)?);
            }
            IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    #[test]
    #[cfg(target_endian = "little")]
    fn only_the_open_connection_between_both_addresses_has_a_user() {
        let line = |state, inode| {
            format!(
                "  7: 0100007F:A1B2 0100007F:1E1F {state} 00000000:00000000 00:00000000 00000000  1000        0 {inode} 1"
            )
        };
        let (client, server) = (address("127.0.0.1:41394"), address("127.0.0.1:7711"));
        let uid_of_line = |line: &str, from, to| parse_end(line, from, to).map(|end| end.uid);
        assert_eq!(uid_of_line(&line("01", 4711), client, server), Some(1000));
        assert_eq!(uid_of_line(&line("01", 4711), server, client), None, "the other direction");
        assert_eq!(uid_of_line(&line("01", 4711), client, address("127.0.0.1:7712")), None, "another server");
        for state in ["05", "06", "08"] {
            assert_eq!(uid_of_line(&line(state, 4711), client, server), None, "closing: {state}");
        }
        assert_eq!(uid_of_line(&line("01", 0), client, server), None, "no process has it");
        for text in ["", "  sl  local_address rem_address   st", "7: x:y 0100007F:1E1F 01", "7: :: : 01 2 3 4 5 6 7"] {
            assert_eq!(parse_end(text, client, server), None, "{text}");
        }
        assert_eq!(
            parse_address("0000000000000000FFFF00000100007F:1E1F"),
            Some(server),
            "an IPv4 address in the list of IPv6"
        );
        assert_eq!(parse_address("00000000000000000000000001000000:0050"), Some(address("[::1]:80")));
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn own_connection_belongs_to_this_user_until_it_is_closed() {
        for host in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(listener) = TcpListener::bind(host) else {
                continue; // A machine without IPv6.
            };
            let client = TcpStream::connect(listener.local_addr().expect("bound")).expect("connects");
            let (server, peer) = listener.accept().expect("accepts");
            let (local, inode) = (server.local_addr().expect("an address"), inode_of(&server).expect("a socket"));
            assert_eq!(find_uid(peer, local, inode), Some(rustix::process::geteuid().as_raw()), "{host}");
            drop(client);
            assert_eq!(find_uid(peer, local, inode), None, "{host}: a closed end shows no user, or root");
        }
    }

    /// A client of another user sends a request, resets the connection, and leaves its port to a client of this user.
    #[tokio::test]
    #[cfg(target_os = "linux")]
    async fn reset_connection_does_not_get_the_user_of_the_next_one_from_its_port() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let local = listener.local_addr().expect("bound");
        let connect = async |from: SocketAddr| {
            let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
            socket.set_reuseaddr(true).expect("set");
            socket.bind(from).expect("the port is free");
            socket.connect(local).await.expect("connects")
        };
        let mut first = connect(address("127.0.0.1:0")).await;
        let port = first.local_addr().expect("bound");
        first.write_all(b"POST /").await.expect("sends");
        first.set_zero_linger().expect("set");
        drop(first);
        let _next = connect(port).await;
        let (mut reset, peer) = listener.accept().await.expect("accepts the first one");
        let (next, next_peer) = listener.accept().await.expect("accepts the next one");
        assert_eq!((peer, next_peer), (port, port));
        let mut sent = [0; 6];
        let read = reset.read_exact(&mut sent).await;
        assert!(read.is_ok() && &sent == b"POST /", "its request can be read: {read:?}");
        assert_eq!(find_uid(peer, local, inode_of(&reset).expect("a socket")), None);
        let uid = find_uid(peer, local, inode_of(&next).expect("a socket"));
        assert_eq!(uid, Some(rustix::process::geteuid().as_raw()));
    }

    #[test]
    fn every_forwarding_header_is_recognised() {
        for name in ["Forwarded", "Via", "X-Forwarded-For", "X-Forwarded-Host", "x-forwarded-whatever", "X-Real-IP"] {
            let name = axum::http::HeaderName::try_from(name).expect("a name");
            let headers = HeaderMap::from_iter([(name.clone(), axum::http::HeaderValue::from_static("x"))]);
            assert!(is_forwarded(&headers), "{name}");
        }
        assert!(!is_forwarded(&HeaderMap::new()));
    }
}
