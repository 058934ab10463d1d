//! Beside other systems, on their own keys and in their own bytes. Their words are spoken here and nowhere else.

pub mod actionhero;
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
    DeadId, DoneResult, EnqueueResult, LeasedId, SCHEDULE_BATCH_MAX, SCHEDULE_MAX_ATTEMPTS, ScoreUnit,
    SortedSetSchedule, SortedSetScheduleBuilder,
};

/// Whose keys a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignSystem {
    Sidekiq,
    ActionHero,
    RedisInAction,
}

impl ForeignSystem {
    const ALL: [ForeignSystem; 3] = [ForeignSystem::Sidekiq, ForeignSystem::ActionHero, ForeignSystem::RedisInAction];

    /// Opens a store on its keys. Boxed: the types are too deep to become a part of every caller's.
    pub(crate) async fn open(self, place: RedisUrl, options: &StoreOptions) -> Result<Arc<dyn Store>> {
        Ok(match self {
            ForeignSystem::Sidekiq => Arc::new(Box::pin(Sidekiq::open(place, options)).await?),
            ForeignSystem::ActionHero => Arc::new(Box::pin(ActionHero::open(place, options)).await?),
            ForeignSystem::RedisInAction => Arc::new(Box::pin(RedisInAction::open(place, options)).await?),
        })
    }

    /// Its habits are the default where it keeps jobs too.
    pub(crate) fn apply_defaults(self, options: &mut StoreOptions) {
        if self == ForeignSystem::Sidekiq {
            options.fourth_power_backoff = true;
            // Nothing is left of a done job, unless somebody wants it to.
            if options.keep == DEFAULT_KEEP {
                options.keep = Duration::ZERO;
            }
        }
    }

    /// The scheme of its URLs; with an `s` behind it over TLS.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            ForeignSystem::Sidekiq => "sidekiq",
            ForeignSystem::ActionHero => "actionhero",
            ForeignSystem::RedisInAction => "redis-in-action",
        }
    }

    /// Options of its URLs beside those of every server.
    pub(crate) fn url_options(self) -> &'static [&'static str] {
        match self {
            ForeignSystem::Sidekiq => sidekiq::URL_OPTIONS,
            ForeignSystem::ActionHero => actionhero::URL_OPTIONS,
            ForeignSystem::RedisInAction => redis_in_action::URL_OPTIONS,
        }
    }

    /// The system and the place that stand before the `?`; `None` if the scheme is none of these.
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
                "{scheme}:// is not possible: keys of {} are spread over a Cluster, and no step of duly's could touch two of them",
                system.scheme()
            );
            return Err(Error::invalid("store", reason));
        }
        let place = RedisUrl::parse(&format!("redis{tls}{shape}://{rest}"))?;
        Ok(place.map(|place| (system, place)))
    }

    /// What a user of the server must be allowed, where that is known.
    pub(crate) fn acl_rules(self, options: &StoreOptions) -> Result<Option<String>> {
        match self {
            ForeignSystem::Sidekiq => Sidekiq::acl_rules(options).map(Some),
            ForeignSystem::ActionHero | ForeignSystem::RedisInAction => Ok(None),
        }
    }

    /// The URL of a place, for people.
    pub(crate) fn display_url(self, place: &RedisUrl) -> String {
        let url = format!("{place:?}");
        format!("{}{}", self.scheme(), url.strip_prefix("redis").unwrap_or(&url))
    }
}

/// An option of a URL, by its name.
fn url_option<'o>(options: &'o [(String, String)], name: &str) -> Option<&'o str> {
    options.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Refuses an option that nothing here keeps to: whoever asks for it must not believe that a failover loses nothing.
fn reject_replicas(options: &StoreOptions, what: &str) -> Result<()> {
    match options.replicas {
        0 => Ok(()),
        _ => {
            let reason = format!(
                "{what} does not wait for replicas: a failover may lose what the new master had not received. Leave it out of this URL"
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
        let shown = |url: &str| {
            let (system, place) = ForeignSystem::parse(url).expect("good").expect("one of these");
            system.display_url(&place)
        };
        assert_eq!(shown("sidekiq://me:secret@h/3"), "sidekiq://h:6379/3");
        assert_eq!(shown("sidekiqs://h"), "sidekiqs://h:6379");
        assert_eq!(shown("sidekiq+sentinel://a,b/m"), "sidekiq+sentinel://a:26379,b:26379/m");
        assert_eq!(shown("redis-in-actions://h/1"), "redis-in-actions://h:6379/1");
        assert!(ForeignSystem::parse("redis://h").expect("good").is_none());
        let refused = ForeignSystem::parse("sidekiq+cluster://h").expect_err("refused").to_string();
        assert!(refused.contains("spread over a Cluster"), "{refused}");
    }
}
