//! A Redis server for one measurement: on a free port, without persistence, stopped with this process.

use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client};
use anyhow::{Context, Result, bail, ensure};
use test_support::servers::{Binary, Options};

/// How to install missing programs.
pub(super) const INSTALL_HINT: &str =
    "as root: apt-get install -y --no-install-recommends redis-server ruby-sidekiq ruby-hiredis nodejs npm";
/// The longest wait for a reply: flushing a million jobs takes a while.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(60);
/// The slow log records commands above this time, at most this many.
const SLOWLOG_THRESHOLD_US: u64 = 1_000;
const SLOWLOG_ENTRIES_MAX: usize = 10_000;

/// A high priority for the server: otherwise the time of a script includes waiting for a core.
/// Without root, `nice` prints a warning and the server runs at the usual priority.
const NICENESS: i32 = -15;

/// A server and a connection to inspect it. Dropping it stops the server.
pub(super) struct RedisServer {
    server: test_support::servers::Server,
    connection: MultiplexedConnection,
}

impl RedisServer {
    pub(super) async fn start() -> Result<Self> {
        ensure!(crate::machine::redis_version().is_some(), "cannot start redis-server; {INSTALL_HINT}");
        let server = Options::new(Binary::Redis)
            .niceness(NICENESS)
            .set("slowlog-log-slower-than", &SLOWLOG_THRESHOLD_US.to_string())
            .set("slowlog-max-len", &SLOWLOG_ENTRIES_MAX.to_string())
            .set("maxmemory-policy", "noeviction")
            .set("loglevel", "warning")
            .start();
        let connection = connect_with_retries(server.port()).await?;
        Ok(RedisServer { server, connection })
    }

    pub(super) fn url(&self) -> String {
        format!("{}/", self.server.url())
    }

    /// Removes all data, so that each side starts with an empty server.
    pub(super) async fn flush(&self) -> Result<()> {
        Ok(::redis::cmd("FLUSHALL").arg("SYNC").query_async(&mut self.connection.clone()).await?)
    }

    /// Returns the CPU time of the server since its start.
    pub(super) async fn cpu_time(&self) -> Result<Duration> {
        let (user, system) = (self.read_info("used_cpu_user").await?, self.read_info("used_cpu_sys").await?);
        Ok(Duration::from_secs_f64(user + system))
    }

    pub(super) async fn memory_bytes(&self) -> Result<f64> {
        self.read_info("used_memory").await
    }

    /// Returns the number of processed commands since the start, including those that scripts call.
    pub(super) async fn commands_processed(&self) -> Result<f64> {
        self.read_info("total_commands_processed").await
    }

    async fn read_info(&self, name: &str) -> Result<f64> {
        let reply: String = ::redis::cmd("INFO").query_async(&mut self.connection.clone()).await?;
        let value = reply.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        Ok(value.with_context(|| format!("INFO has no {name}"))?.trim().parse()?)
    }

    pub(super) async fn reset_slowlog(&self) -> Result<()> {
        Ok(::redis::cmd("SLOWLOG").arg("RESET").query_async(&mut self.connection.clone()).await?)
    }

    /// Returns the milliseconds of the slowest command or script since [`Self::reset_slowlog`].
    ///
    /// Less than one millisecond counts as one; SLOWLOG commands do not count.
    /// Prints the next slowest, too: a single outlier may have waited for its core.
    pub(super) async fn slowest_command_ms(&self) -> Result<f64> {
        let reply: Vec<Vec<::redis::Value>> =
            ::redis::cmd("SLOWLOG").arg("GET").arg(-1).query_async(&mut self.connection.clone()).await?;
        let mut slow = vec![SLOWLOG_THRESHOLD_US];
        for entry in reply {
            // Id, time, microseconds, arguments, client.
            let [_, _, micros, words, ..] = &entry[..] else { bail!("a slow log entry has fewer than four fields") };
            let words: Vec<Vec<u8>> = ::redis::from_redis_value_ref(words)?;
            if words.first().is_none_or(|first| !first.eq_ignore_ascii_case(b"SLOWLOG")) {
                slow.push(::redis::from_redis_value_ref(micros)?);
            }
        }
        slow.sort_unstable();
        let nth_slowest_ms = |n: usize| slow[slow.len().saturating_sub(n).max(1) - 1] as f64 / 1_000.0;
        eprintln!(
            "{} took a millisecond or more; the 2nd longest {:.2} ms, the 10th {:.2} ms",
            slow.len() - 1,
            nth_slowest_ms(1),
            nth_slowest_ms(9)
        );
        Ok(nth_slowest_ms(0))
    }

    /// Returns the requests of clients per second, from the first to the last request.
    ///
    /// Commands that a script calls are part of its request.
    pub(super) fn measure_requests_per_s(&self, time: Duration) -> Result<f64> {
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.server.port()))?;
        stream.set_read_timeout(Some(Duration::from_millis(100)))?;
        stream.write_all(b"MONITOR\r\n")?;
        let mut reader = BufReader::new(stream);
        let (begin, mut requests, mut line) = (Instant::now(), Vec::new(), Vec::new());
        while begin.elapsed() < time {
            // An incomplete line stays in the buffer.
            match reader.read_until(b'\n', &mut line) {
                Ok(0) => break,
                Ok(_) => {
                    requests.extend(is_client_request(&line).then(Instant::now));
                    line.clear();
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(match requests[..] {
            // Uses the interval between periodic requests; a burst has none.
            [first, .., last] if last - first > time / 2 => (requests.len() - 1) as f64 / (last - first).as_secs_f64(),
            _ => requests.len() as f64 / begin.elapsed().as_secs_f64(),
        })
    }
}

/// Returns true if a line of MONITOR, `+1700000000.123456 [0 127.0.0.1:4711] "GET" ..`, is from a client, not a script.
fn is_client_request(line: &[u8]) -> bool {
    let line = String::from_utf8_lossy(line);
    let source = line.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    source.is_some_and(|(source, _)| !source.ends_with("lua"))
}

async fn connect_with_retries(port: u16) -> Result<MultiplexedConnection> {
    let client = Client::open((Ipv4Addr::LOCALHOST.to_string(), port))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(Some(RESPONSE_TIMEOUT));
    Ok(client.get_multiplexed_async_connection_with_config(&config).await?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_called_by_script_is_not_a_request() {
        assert!(is_client_request(b"+1700000000.123456 [0 127.0.0.1:4711] \"EVALSHA\" \"[0 lua]\"\r\n"));
        assert!(!is_client_request(b"+1700000000.123456 [0 lua] \"ZADD\" \"a\"\r\n"));
        assert!(!is_client_request(b"+OK\r\n"));
    }
}
