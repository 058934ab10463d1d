//! Who the masters are: asked of a Cluster or of Sentinels when somebody misses one.

use std::collections::HashMap;
use std::time::Duration;

use redis::Value;

use super::lane::Lane;
use super::slots::SlotMap;
use super::{Link, Way};
use crate::store::redis::url::{Address, Shape};

/// How long one Sentinel is waited for: the others know as much.
const SENTINEL_ANSWER: Duration = Duration::from_secs(1);

impl Link {
    /// Finds out who the masters are, unless somebody else has since `lessons`.
    pub(super) async fn learn(&self, lessons: u64) {
        if self.place.shape == Shape::One {
            return;
        }
        let _one_at_a_time = self.refreshing.lock().await;
        if self.known().lessons != lessons {
            return;
        }
        match &self.place.shape {
            Shape::Cluster => self.learn_slots().await,
            Shape::Sentinel(name) => self.learn_master(name).await,
            Shape::One => {}
        }
        self.known().lessons += 1;
    }

    async fn learn_slots(&self) {
        let mut hosts = self.known().slots.masters();
        hosts.extend(self.place.hosts.iter().cloned());
        let mut cmd = redis::cmd("CLUSTER");
        cmd.arg("SLOTS");
        for host in hosts {
            let answer = self.lane(Way::Door, &host).send(&cmd).await;
            if let Some(slots) = answer.ok().and_then(|answer| SlotMap::read(answer, &host)) {
                self.known().slots = slots;
                return;
            }
        }
    }

    async fn learn_master(&self, name: &str) {
        let Some(named) = self.named_master(name).await else {
            return;
        };
        // The server itself must agree; and making the connection may have taken long enough for another to be named.
        let agrees = is_master(&self.lane(Way::Door, &named)).await;
        if agrees && self.named_master(name).await.as_ref() == Some(&named) {
            self.known().master = Some(named);
        }
    }

    /// The master as the Sentinel says that knows of the latest failover: the others learn of it a little later.
    async fn named_master(&self, name: &str) -> Option<Address> {
        let mut cmd = redis::cmd("SENTINEL");
        cmd.arg("MASTER").arg(name);
        let asks = self.sentinels.iter().map(async |sentinel| {
            let answer = tokio::time::timeout(SENTINEL_ANSWER, sentinel.send(&cmd)).await;
            answer.ok().and_then(Result::ok)
        });
        let mut latest: Option<(u64, Address)> = None;
        for answer in futures_util::future::join_all(asks).await.into_iter().flatten() {
            let fields: HashMap<String, String> = redis::from_redis_value(answer).unwrap_or_default();
            let field = |name: &str| fields.get(name).map(String::as_str).unwrap_or_default();
            let epoch = field("config-epoch").parse().unwrap_or(0);
            if let (Ok(port), false) = (field("port").parse(), field("ip").is_empty())
                && latest.as_ref().is_none_or(|(known, _)| epoch > *known)
            {
                latest = Some((epoch, Address { host: field("ip").to_owned(), port }));
            }
        }
        latest.map(|(_, address)| address)
    }

    pub(super) fn nobody(&self) -> String {
        match &self.place.shape {
            Shape::Sentinel(name) => format!("no Sentinel of {} names a master for {name:?}", self.place.shown()),
            Shape::One | Shape::Cluster => format!("no server of {} says who has this slot", self.place.shown()),
        }
    }

    /// Under Sentinel a master that was lost from sight is asked nothing more until the Sentinels name it again:
    /// it may come back as it was, still thinking itself the master, when another one has long taken its place.
    pub(super) fn doubt(&self, lane: &Lane) {
        if matches!(self.place.shape, Shape::Sentinel(_)) {
            let mut known = self.known();
            known.leave(lane.address());
            known.master = known.master.take().filter(|master| master != lane.address());
        }
    }

    /// Asks the Sentinels again; a master that was replaced is left at once, also one that still answers.
    pub(in crate::store::redis) async fn look_after_master(&self) {
        let Shape::Sentinel(name) = &self.place.shape else {
            return;
        };
        let before = self.known().master.clone();
        let named = self.named_master(name).await;
        if named.is_none() || named == before {
            return;
        }
        let _one_at_a_time = self.refreshing.lock().await;
        self.learn_master(name).await;
        let mut known = self.known();
        if known.master != before {
            known.lessons += 1;
            if let Some(before) = before {
                known.leave(&before);
            }
        }
    }
}

async fn is_master(lane: &Lane) -> bool {
    match lane.send(&redis::cmd("ROLE")).await {
        Ok(Value::Array(role)) => matches!(role.first(), Some(Value::BulkString(name)) if name == b"master"),
        _ => false,
    }
}
