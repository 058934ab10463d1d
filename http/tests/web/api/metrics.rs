//! `/metrics` has every family of the reference, in valid format, and the values change.

use std::collections::{BTreeMap, BTreeSet};

use duly::Outcome;

use crate::api::support::Site;

/// One scrape: the type of each family, and each series with its value.
#[derive(Debug)]
struct Scrape {
    kinds: BTreeMap<String, String>,
    series: BTreeMap<String, f64>,
}

impl Scrape {
    async fn of(site: &Site) -> Scrape {
        let response = site.get("/metrics").await;
        assert!(response.header("content-type").is_some_and(|kind| kind.starts_with("text/plain; version=0.0.4")));
        Scrape::parse(&String::from_utf8(response.body).expect("text"))
    }

    /// Strict: a family has its HELP and its TYPE before its series, and no series repeats.
    fn parse(text: &str) -> Scrape {
        let (mut kinds, mut series, mut helped) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        assert!(text.ends_with('\n'), "the last line ends");
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                assert!(helped.insert(help.split(' ').next().expect("a name").to_owned()), "twice: {line}");
            } else if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a name and a kind");
                assert!(helped.contains(name) && ["gauge", "counter", "histogram"].contains(&kind), "{line}");
                assert!(kinds.insert(name.to_owned(), kind.to_owned()).is_none(), "twice: {line}");
            } else {
                let (name, value) = line.rsplit_once(' ').expect("a name and a value");
                let family = name.split('{').next().expect("a name");
                let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| family.strip_suffix(part));
                let known = kinds.get(family).map(String::as_str).is_some_and(|kind| kind != "histogram");
                let in_histogram = parts.and_then(|of| kinds.get(of)).is_some_and(|kind| kind == "histogram");
                assert!(known || in_histogram, "no TYPE before {line}");
                let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
                assert!(value.is_finite() && value >= 0.0, "{line}");
                assert!(series.insert(name.to_owned(), value).is_none(), "twice: {line}");
            }
        }
        Scrape { kinds, series }
    }

    fn get(&self, series: &str) -> f64 {
        *self.series.get(series).unwrap_or_else(|| panic!("no {series} in {:#?}", self.series.keys()))
    }

    /// Returns the series that only grow: those of counters and histograms.
    fn growing(&self) -> impl Iterator<Item = (&String, f64)> {
        let grows = |name: &str| {
            let family = name.split('{').next().unwrap_or_default();
            let parts = ["_bucket", "_sum", "_count"].iter().find_map(|part| family.strip_suffix(part));
            let kind = self.kinds.get(family).or_else(|| parts.and_then(|of| self.kinds.get(of)));
            kind.is_some_and(|kind| kind != "gauge")
        };
        self.series.iter().filter(move |(name, _)| grows(name)).map(|(name, value)| (name, *value))
    }
}

/// Returns the name and the type of each family in the reference.
fn documented() -> BTreeMap<String, String> {
    let text = include_str!("../../../../docs/reference/metrics.md");
    let (_, text) = text.split_once("## From `duly serve`").expect("a chapter");
    let rows = text.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
    let families = rows.map(|(name, rest)| (name.to_owned(), rest.split(' ').next().unwrap_or_default().to_owned()));
    families.collect()
}

pub async fn every_documented_metric_exists_and_changes(site: Site) {
    site.push("mail").await;
    let before = Scrape::of(&site).await;
    assert_eq!(before.kinds, documented(), "docs/reference/metrics.md says what there is");
    assert_eq!(before.get("duly_jobs{queue=\"mail\",state=\"ready\"}"), 1.0);
    assert_eq!(before.get("duly_pushed_total{queue=\"mail\"}"), 1.0);
    assert_eq!(before.get("duly_settled_total{queue=\"mail\",outcome=\"ack\"}"), 0.0);

    site.push("mail").await;
    let later = Scrape::of(&site).await;
    let oldest = "duly_oldest_ready_seconds{queue=\"mail\"}";
    assert!(later.get(oldest) > before.get(oldest), "it waits longer and longer");
    let worker = site.duly.worker().queue("mail", 1).on_any_kind(async |ctx: duly::Ctx| match ctx.attempt() {
        1 => Outcome::retry(std::time::Duration::ZERO, "once more"),
        _ => Outcome::Ack,
    });
    worker.drain().await.expect("works");

    let after = Scrape::of(&site).await;
    assert_eq!(after.get("duly_jobs{queue=\"mail\",state=\"ready\"}"), 0.0);
    assert_eq!(after.get(oldest), 0.0);
    assert_eq!(after.get("duly_settled_total{queue=\"mail\",outcome=\"ack\"}"), 2.0);
    assert_eq!(after.get("duly_settled_total{queue=\"mail\",outcome=\"retry\"}"), 2.0);
    for histogram in ["duly_lateness_seconds", "duly_duration_seconds"] {
        assert_eq!(after.get(&format!("{histogram}_count{{queue=\"mail\"}}")), 4.0);
        assert_eq!(after.get(&format!("{histogram}_bucket{{queue=\"mail\",le=\"+Inf\"}}")), 4.0);
        assert!(after.get(&format!("{histogram}_sum{{queue=\"mail\"}}")) > 0.0);
    }
    for (name, value) in before.growing() {
        assert!(after.get(name) >= value, "{name} went from {value} to {}", after.get(name));
    }
}
