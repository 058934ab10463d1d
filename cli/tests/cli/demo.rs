//! `duly demo`, the short way.

use crate::sandbox::Sandbox;

#[test]
fn demo_loses_nothing_and_starts_nothing_early() {
    let sandbox = Sandbox::new();
    let ran = sandbox.run(&["demo", "--seconds", "10", "--store", "demo.db", "--json"]).ok();
    let sum = ran.json();
    assert_eq!(sum["pushed"], sum["done"], "{sum}");
    assert_eq!((&sum["lost"], &sum["early"]), (&0.into(), &0.into()), "{sum}");
    assert!(sum["twice"].as_u64().expect("a number") >= 1, "{sum}");
    assert!(sum["takeover_us"].as_i64().expect("a number") < 4_000_000, "{sum}");
    sandbox.run(&["demo", "--store", "demo.db"]).failed(4, "exists already");
}
