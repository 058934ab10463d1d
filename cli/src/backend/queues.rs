//! Queues and their statistics.

use std::collections::{BTreeMap, BTreeSet};

use duly::admin::{Capacity, HistoryQuery, KindStatsQuery};
use duly_http::views::{ChangeResponse, QueueList, QueueStats, QueueView};
use serde::Deserialize;
use serde_json::json;

use super::Backend;
use crate::api_client::url_encode;
use crate::audit;

/// The hours whose kinds are listed.
const KIND_HOURS: u32 = 24;

impl Backend {
    /// Returns all queues with the number of their jobs.
    pub(crate) async fn queues(&self) -> anyhow::Result<QueueList> {
        match self {
            Backend::Store(duly) => Ok(QueueList::from(&duly.queues().counts().await?[..])),
            Backend::Server(server) => server.get("/queues").await,
        }
    }

    /// Returns a queue, if it exists.
    pub(crate) async fn find_queue(&self, queue: &str) -> anyhow::Result<Option<QueueView>> {
        Ok(self.queues().await?.queues.into_iter().find(|found| found.queue == queue))
    }

    /// Pauses a queue, and returns whether it was not paused before.
    pub(crate) async fn pause_queue(&self, queue: &str) -> anyhow::Result<bool> {
        match self {
            Backend::Store(duly) => {
                let paused = duly.queues().pause(queue).await;
                Ok(audit::record(duly, "queues.pause", queue, paused).await?)
            }
            Backend::Server(server) => {
                let response: ChangeResponse = server.post(&format!("/queues/{}/pause", url_encode(queue))).await?;
                Ok(response.changed)
            }
        }
    }

    /// Resumes a queue, and returns whether it was paused before.
    pub(crate) async fn resume_queue(&self, queue: &str) -> anyhow::Result<bool> {
        match self {
            Backend::Store(duly) => {
                let resumed = duly.queues().resume(queue).await;
                Ok(audit::record(duly, "queues.resume", queue, resumed).await?)
            }
            Backend::Server(server) => {
                let response: ChangeResponse = server.post(&format!("/queues/{}/resume", url_encode(queue))).await?;
                Ok(response.changed)
            }
        }
    }

    /// Sets the capacity of a queue, and returns the previous one.
    pub(crate) async fn set_queue_capacity(&self, queue: &str, capacity: Capacity) -> anyhow::Result<Capacity> {
        match self {
            Backend::Store(duly) => {
                let set = duly.queues().set_capacity(queue, capacity).await;
                Ok(audit::record(duly, "queues.edit", queue, set).await?)
            }
            Backend::Server(server) => {
                let before = self.find_queue(queue).await?;
                let before = before.map_or((None, None), |queue| (queue.capacity_jobs, queue.capacity_bytes));
                let body = json!({"capacity_jobs": capacity.jobs, "capacity_bytes": capacity.bytes});
                let _: ChangeResponse =
                    server.request("PATCH", &format!("/queues/{}", url_encode(queue)), Some(body.to_string())).await?;
                Ok(Capacity::unlimited().jobs(before.0).bytes(before.1))
            }
        }
    }

    /// Removes a queue without jobs.
    pub(crate) async fn remove_queue(&self, queue: &str) -> anyhow::Result<()> {
        match self {
            Backend::Store(duly) => {
                let removed = duly.queues().remove(queue).await;
                Ok(audit::record(duly, "queues.remove", queue, removed).await?)
            }
            Backend::Server(server) => server.send("DELETE", &format!("/queues/{}", url_encode(queue)), None).await,
        }
    }

    /// Returns the sums of each queue over the last minutes.
    pub(crate) async fn queue_stats(&self, minutes: u32, queue: Option<&str>) -> anyhow::Result<QueueStats> {
        match self {
            Backend::Store(duly) => {
                let query = HistoryQuery::last_minutes(minutes).queue(queue.map(str::to_owned));
                Ok(QueueStats::new(minutes, &duly.queues().history(query).await?))
            }
            Backend::Server(server) => {
                let queue = queue.map(|queue| format!("&queue={}", url_encode(queue))).unwrap_or_default();
                server.get(&format!("/stats/queues?minutes={minutes}{queue}")).await
            }
        }
    }

    /// Returns the number of all attempts that have ended, by queue. Empty if there is no history, and from a server.
    pub(crate) async fn ended_attempts(&self) -> anyhow::Result<BTreeMap<String, u64>> {
        let Backend::Store(duly) = self else {
            return Ok(BTreeMap::new());
        };
        match duly.queues().totals().await {
            Ok(totals) => Ok(totals.into_iter().map(|(queue, counters)| (queue, counters.attempts())).collect()),
            Err(duly::Error::Unsupported { .. }) => Ok(BTreeMap::new()),
            Err(error) => Err(error.into()),
        }
    }

    /// Returns the kinds of the jobs that have run in the last day.
    pub(crate) async fn kinds(&self) -> anyhow::Result<BTreeSet<String>> {
        match self {
            Backend::Store(duly) => {
                let kinds = duly.kind_stats(KindStatsQuery::last_hours(KIND_HOURS)).await?;
                Ok(kinds.into_iter().map(|kind| kind.kind).collect())
            }
            Backend::Server(server) => {
                let list: KindList = server.get("/stats/kinds").await?;
                Ok(list.kinds.into_iter().map(|kind| kind.kind).collect())
            }
        }
    }
}

/// The kinds of a server.
#[derive(Deserialize)]
struct KindList {
    kinds: Vec<KindName>,
}

#[derive(Deserialize)]
struct KindName {
    kind: String,
}
