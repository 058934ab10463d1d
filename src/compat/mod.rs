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
use crate::store::redis::Place;
use crate::store::{KEEP, Options, Store};

pub use self::schedule::{
    Done, Enqueued, Given, SCHEDULE_BATCH_MAX, SCHEDULE_TRIES, Schedule, ScheduleBuilder, Scores, Taken,
};

/// Whose keys a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum System {
    Sidekiq,
    ActionHero,
    RedisInAction,
}

impl System {
    const ALL: [System; 3] = [System::Sidekiq, System::ActionHero, System::RedisInAction];

    /// Opens a store on its keys. Boxed: the types are too deep to become a part of every caller's.
    pub(crate) async fn open(self, place: Place, options: &Options) -> Result<Arc<dyn Store>> {
        Ok(match self {
            System::Sidekiq => Arc::new(Box::pin(Sidekiq::open(place, options)).await?),
            System::ActionHero => Arc::new(Box::pin(ActionHero::open(place, options)).await?),
            System::RedisInAction => Arc::new(Box::pin(RedisInAction::open(place, options)).await?),
        })
    }

    /// Its habits are the default where it keeps jobs too.
    pub(crate) fn adapt(self, options: &mut Options) {
        if self == System::Sidekiq {
            options.fourth_power = true;
            // Nothing is left of a done job, unless somebody wants it to.
            if options.keep == KEEP {
                options.keep = Duration::ZERO;
            }
        }
    }

    /// The scheme of its URLs; with an `s` behind it over TLS.
    pub(crate) fn scheme(self) -> &'static str {
        match self {
            System::Sidekiq => "sidekiq",
            System::ActionHero => "actionhero",
            System::RedisInAction => "redis-in-action",
        }
    }

    /// Options of its URLs beside those of every server.
    pub(crate) fn options(self) -> &'static [&'static str] {
        match self {
            System::Sidekiq => sidekiq::OPTIONS,
            System::ActionHero => actionhero::OPTIONS,
            System::RedisInAction => redis_in_action::OPTIONS,
        }
    }

    /// The system and the place that stand before the `?`; `None` if the scheme is none of these.
    pub(crate) fn parse(url: &str) -> Result<Option<(System, Place)>> {
        let Some((scheme, rest)) = url.split_once("://") else {
            return Ok(None);
        };
        let (base, shape) =
            scheme.split_once('+').map_or((scheme, String::new()), |(base, shape)| (base, format!("+{shape}")));
        let Some((system, tls)) = System::ALL.into_iter().find_map(|system| {
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
        let place = Place::parse(&format!("redis{tls}{shape}://{rest}"))?;
        Ok(place.map(|place| (system, place)))
    }

    /// What a user of the server must be allowed, where that is known.
    pub(crate) fn acl(self, options: &Options) -> Result<Option<String>> {
        match self {
            System::Sidekiq => Sidekiq::acl(options).map(Some),
            System::ActionHero | System::RedisInAction => Ok(None),
        }
    }

    /// The URL of a place, for people.
    pub(crate) fn shown(self, place: &Place) -> String {
        let url = format!("{place:?}");
        format!("{}{}", self.scheme(), url.strip_prefix("redis").unwrap_or(&url))
    }
}

/// An option of a URL, by its name.
fn option<'o>(options: &'o [(String, String)], name: &str) -> Option<&'o str> {
    options.iter().rev().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

/// Refuses an option that nothing here keeps to: whoever asks for it must not believe that a failover loses nothing.
fn no_replicas(options: &Options, what: &str) -> Result<()> {
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
    fn urls_name_a_system_and_a_place() {
        let shown = |url: &str| {
            let (system, place) = System::parse(url).expect("good").expect("one of these");
            system.shown(&place)
        };
        assert_eq!(shown("sidekiq://me:secret@h/3"), "sidekiq://h:6379/3");
        assert_eq!(shown("sidekiqs://h"), "sidekiqs://h:6379");
        assert_eq!(shown("sidekiq+sentinel://a,b/m"), "sidekiq+sentinel://a:26379,b:26379/m");
        assert_eq!(shown("redis-in-actions://h/1"), "redis-in-actions://h:6379/1");
        assert!(System::parse("redis://h").expect("good").is_none());
        let refused = System::parse("sidekiq+cluster://h").expect_err("refused").to_string();
        assert!(refused.contains("spread over a Cluster"), "{refused}");
    }
}
