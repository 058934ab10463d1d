//! A minimal blocking client for administering servers. It has no pool, no retries and no RESP3.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::time::Duration;

/// Default read timeout. A healthy server replies sooner, except to commands that block on purpose.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    List(Vec<Reply>),
    Error(String),
}

impl Reply {
    /// Returns a text, number or error as text; empty for nil and lists.
    pub fn text(&self) -> String {
        match self {
            Reply::Text(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Reply::Int(number) => number.to_string(),
            Reply::Error(text) => text.clone(),
            Reply::Nil | Reply::List(_) => String::new(),
        }
    }

    /// Returns the items of a list; empty for all other replies.
    pub fn list(&self) -> &[Reply] {
        match self {
            Reply::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the value after a name in a list of names and values, as in replies to `CONFIG GET` and `SENTINEL
    /// MASTER`.
    pub fn field(&self, name: &str) -> Option<String> {
        let mut pairs = self.list().chunks_exact(2);
        pairs.find(|pair| pair[0].text() == name).map(|pair| pair[1].text())
    }
}

/// A connection to a server on loopback.
pub struct Client(BufReader<TcpStream>);

impl Client {
    /// Connects, and authenticates as the default user if there is a password.
    pub fn connect(port: u16, password: Option<&str>) -> io::Result<Client> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, port)), REPLY_TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
        let mut client = Client(BufReader::new(stream));
        match password.map(|password| client.send_command(&["AUTH", password])).transpose()? {
            Some(Reply::Error(error)) => Err(io::Error::other(error)),
            _ => Ok(client),
        }
    }

    /// Sets the read timeout for the next replies. The default is five seconds.
    pub fn set_timeout(&mut self, timeout: Duration) -> io::Result<()> {
        self.0.get_ref().set_read_timeout(Some(timeout))
    }

    /// Sends a command and reads its reply. An error reply of the server is a [`Reply::Error`].
    pub fn send_command(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<Reply> {
        self.write_command(command)?;
        self.read_reply()
    }

    /// Sends a command without waiting for its reply.
    pub fn write_command(&mut self, command: &[impl AsRef<[u8]>]) -> io::Result<()> {
        let mut bytes = format!("*{}\r\n", command.len()).into_bytes();
        for word in command.iter().map(AsRef::as_ref) {
            bytes.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            bytes.extend_from_slice(word);
            bytes.extend_from_slice(b"\r\n");
        }
        self.0.get_mut().write_all(&bytes)
    }

    /// Reads the next reply, or the next message of a subscription.
    pub fn read_reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.0.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {line:?}"));
        let (kind, rest) = line.trim_end().split_at_checked(1).ok_or_else(invalid)?;
        let number = || rest.parse::<i64>().map_err(|_| invalid());
        Ok(match kind {
            "+" => Reply::Text(rest.into()),
            "-" => Reply::Error(rest.into()),
            ":" => Reply::Int(number()?),
            "$" | "*" if number()? < 0 => Reply::Nil,
            "$" => Reply::Text(self.bytes(number()? as usize)?),
            "*" => Reply::List((0..number()?).map(|_| self.read_reply()).collect::<io::Result<_>>()?),
            _ => return Err(invalid()),
        })
    }

    fn bytes(&mut self, length: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; length + "\r\n".len()];
        self.0.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(bytes)
    }
}
