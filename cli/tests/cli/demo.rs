//! `duly demo` in its shortest form.

use crate::sandbox::Sandbox;

#[test]
fn demo_loses_nothing_and_starts_nothing_early() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["demo", "--seconds", "10", "--store", "demo.db", "--json"]).ok();
    let summary = ran.json();
    assert_eq!(summary["pushed"], summary["done"], "{summary}");
    assert_eq!((&summary["lost"], &summary["early"]), (&0.into(), &0.into()), "{summary}");
    assert!(summary["run_twice"].as_u64().expect("a number") >= 1, "{summary}");
    assert!(summary["takeover_us"].as_i64().expect("a number") < 4_000_000, "{summary}");
    sandbox.run(&["demo", "--store", "demo.db"]).failed(4, "exists already");
}
