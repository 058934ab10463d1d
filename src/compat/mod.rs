//! Stores and clients that share the keys of other systems, in the formats of those systems.
//! The vocabulary of those systems is used in this module only.

pub mod actionhero;
mod one_by_one;
mod redis_in_action;
mod schedule;
mod script;
mod sidekiq;

use std::sync::Arc;
use std::time::Duration;

use self::actionhero::ActionHero;
use self::redis_in_action::RedisInAction;
use self::sidekiq::Sidekiq;
use crate::error::{Error, Result};
use crate::store::redis::RedisUrl;
use crate::store::{DEFAULT_KEEP, Store, StoreOptions};

pub use self::schedule::{
    DEFAULT_SCHEDULE_MAX_ATTEMPTS, DeadId, DoneResult, EnqueueResult, LeasedId, SCHEDULE_BATCH_MAX, ScoreUnit,
    SortedSetSchedule, SortedSetScheduleBuilder,
};
pub use self::sidekiq::id::{id_of_jid, jid_of_id};

/// A system whose keys duly can share; selected by the scheme of the URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignSystem {
    Sidekiq,
    ActionHero,
    RedisInAction,
}

impl ForeignSystem {
    const ALL: [ForeignSystem; 3] = [ForeignSystem::Sidekiq, ForeignSystem::ActionHero, ForeignSystem::RedisInAction];

    /// Opens a store on the keys of this system. The futures are boxed to keep the callers' futures small.
    pub(crate) async fn open(self, server: RedisUrl, options: &StoreOptions) -> Result<Arc<dyn Store>> {
        Ok(match self {
            ForeignSystem::Sidekiq => Arc::new(Box::pin(Sidekiq::open(server, options)).await?),
            ForeignSystem::ActionHero => Arc::new(Box::pin(ActionHero::open(server, options)).await?),
            ForeignSystem::RedisInAction => Arc::new(Box::pin(RedisInAction::open(server, options)).await?),
        })
    }

    /// Replaces duly's defaults with the defaults of this system.
    pub(crate) fn apply_defaults(self, options: &mut StoreOptions) {
        if self == ForeignSystem::Sidekiq {
            options.fourth_power_backoff = true;
            // Sidekiq deletes a job when it is done.
            if options.keep == DEFAULT_KEEP {
                options.keep = Duration::ZERO;
            }
        }
    }

    /// Returns the URL scheme; a trailing `s` selects TLS.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            ForeignSystem::Sidekiq => "sidekiq",
            ForeignSystem::ActionHero => "actionhero",
            ForeignSystem::RedisInAction => "redis-in-action",
        }
    }

    /// Returns the URL options that only this system has.
    pub(crate) fn url_options(self) -> &'static [&'static str] {
        match self {
            ForeignSystem::Sidekiq => sidekiq::URL_OPTIONS,
            ForeignSystem::ActionHero => actionhero::URL_OPTIONS,
            ForeignSystem::RedisInAction => redis_in_action::URL_OPTIONS,
        }
    }

    /// Parses the part of a URL before the `?`. Returns `None` if the scheme belongs to none of these systems.
    pub(crate) fn parse(url: &str) -> Result<Option<(ForeignSystem, RedisUrl)>> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Ok(None);
        };
        let (base, shape) =
            scheme.split_once('+').map_or((scheme, String::new()), |(base, shape)| (base, format!("+{shape}")));
        let Some((system, tls)) = ForeignSystem::ALL.into_iter().find_map(|system| {
            let tls = base.strip_prefix(system.scheme())?;
            matches!(tls, "" | "s").then_some((system, tls))
        }) else {
            return Ok(None);
        };
        if shape == "+cluster" {
            let reason = format!(
                "{scheme}:// is not supported: each operation needs several keys of {}, and a Cluster spreads them over its servers; use one server, or Sentinel",
                system.scheme()
            );
            return Err(Error::invalid("store", reason));
        }
        let server = RedisUrl::parse(&format!("redis{tls}{shape}://{rest}"))?;
        Ok(server.map(|server| (system, server)))
    }

    /// Returns the ACL rules that a user of the server needs, if they are known for this system.
    pub(crate) fn acl_rules(self, options: &StoreOptions) -> Result<Option<String>> {
        match self {
            ForeignSystem::Sidekiq => Sidekiq::acl_rules(options).map(Some),
            ForeignSystem::ActionHero | ForeignSystem::RedisInAction => Ok(None),
        }
    }

    /// Returns the URL of a server without credentials, for display.
    pub(crate) fn display_url(self, server: &RedisUrl) -> String {
        let url = format!("{server:?}");
        format!("{}{}", self.scheme(), url.strip_prefix("redis").unwrap_or(&url))
    }
}

/// Returns the value of a URL option; the last one wins.
fn url_option<'o>(options: &'o [(String, String)], name: &str) -> Option<&'o str> {
    options.iter().rev().find(|(option, _)| option == name).map(|(_, value)| value.as_str())
}

/// Rejects the `replicas` option: accepting it would promise that a failover loses nothing.
fn reject_replicas(options: &StoreOptions, subject: &str) -> Result<()> {
    match options.replicas {
        0 => Ok(()),
        _ => {
            let reason = format!(
                "{subject} does not wait for replicas: a failover may lose writes that the new master has not received; remove `replicas` from this URL"
            );
            Err(Error::invalid("replicas", reason))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parse_returns_system_and_server_url() {
        let displayed = |url: &str| {
            let (system, server) = ForeignSystem::parse(url).expect("valid").expect("a foreign system");
            system.display_url(&server)
        };
        assert_eq!(displayed("sidekiq://me:secret@h/3"), "sidekiq://h:6379/3");
        assert_eq!(displayed("sidekiqs://h"), "sidekiqs://h:6379");
        assert_eq!(displayed("sidekiq+sentinel://a,b/m"), "sidekiq+sentinel://a:26379,b:26379/m");
        assert_eq!(displayed("redis-in-actions://h/1"), "redis-in-actions://h:6379/1");
        assert!(ForeignSystem::parse("redis://h").expect("valid").is_none());
        let error = ForeignSystem::parse("sidekiq+cluster://h").expect_err("rejected").to_string();
        assert!(error.contains("a Cluster spreads them"), "{error}");
    }
}
