//! The minimal ACL rules for duly's user on the server.

/// The commands of scripts and connections; a test compares them with the scripts.
const COMMANDS: &[&str] = &[
    "auth",
    "multi",
    "exec",
    "hello",
    "ping",
    "select",
    "time",
    "wait",
    "role",
    "info",
    "asking",
    "evalsha",
    "script|load",
    "client|setname",
    "client|id",
    "cluster|slots",
    "pubsub|shardnumsub",
    "spublish",
    "ssubscribe",
    "sunsubscribe",
    "exists",
    "unlink",
    "get",
    "setnx",
    "hset",
    "hsetnx",
    "hget",
    "hmget",
    "hgetall",
    "hdel",
    "hexists",
    "hincrby",
    "hlen",
    "hstrlen",
    "hscan",
    "hkeys",
    "hvals",
    "zscan",
    "sscan",
    "rpush",
    "lpush",
    "lmpop",
    "llen",
    "lrange",
    "lrem",
    "ltrim",
    "lpos",
    "zadd",
    "zrem",
    "zremrangebylex",
    "zremrangebyrank",
    "zrange",
    "zrevrange",
    "zcard",
    "zcount",
    "zscore",
    "zmscore",
    "zlexcount",
    "zrank",
    "zrevrank",
    "zpopmax",
    "sadd",
    "srem",
    "scard",
    "sismember",
    "smismember",
    "smembers",
];

/// Returns the arguments for `ACL SETUSER`, without name and password.
pub(crate) fn rules(prefix: &str) -> String {
    let commands: Vec<String> = COMMANDS.iter().map(|command| format!("+{command}")).collect();
    format!("resetkeys ~{prefix}:* resetchannels &{prefix}:* -@all {}", commands.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::redis::script;

    #[test]
    fn acl_allows_exactly_the_commands_used() {
        let mut used = std::collections::BTreeSet::new();
        script::ALL.iter().for_each(|script| used.extend(script.commands()));
        // Passed to `push_tickets` by name.
        used.extend(["rpush".to_owned(), "lpush".to_owned()]);
        for command in &used {
            let allowed = |granted: &&str| granted.split('|').next() == Some(command);
            assert!(COMMANDS.iter().any(allowed), "{command} is used and not allowed");
        }
        let by_connections = [
            "multi", "exec", "auth", "hello", "ping", "select", "wait", "role", "info", "asking", "evalsha", "get",
            "setnx", "smembers", "zscan", "sscan", "hincrby",
        ];
        for command in COMMANDS.iter().filter(|c| !c.contains('|') && !c.contains("subscribe")) {
            assert!(used.contains(*command) || by_connections.contains(command), "{command} is allowed and not used");
        }
    }
}
