//! The real processes under two hundred seeds of kills and freezes. Each run names its seed when it breaks; to replay it:
//! `CHOIR_SEED=<seed> cargo nextest run -p choir-chaos-tests replay --no-capture`.

#![allow(clippy::print_stdout, reason = "seeds, tallies and stories must be seen")]

use std::ops::Range;
use std::time::Duration;

use choir_chaos_tests::harness::{Setup, Tally};
use choir_chaos_tests::plan::Plan;

/// The seeds of one shard.
const SHARD: u64 = 50;

/// The crash threshold that `choirctl init` writes.
const USUAL: Duration = Duration::from_secs(10);

async fn hold(setup: Setup<'static>, plans: impl IntoIterator<Item = Plan>, keep: bool) -> Tally {
    let tally = Tally::of(setup, plans, keep).await;
    println!("{tally}");
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n\n"));
    tally
}

/// Plays a shard, and makes sure that it reached what it is for.
async fn shard(number: u64) {
    let seeds = number * SHARD..(number + 1) * SHARD;
    let tally = hold(Setup::default(), seeds.map(Plan::of), false).await;
    assert_eq!(u64::from(tally.played), SHARD);
    let dealt = tally.dealt.values().sum::<u32>() as usize;
    assert!(dealt * 2 > tally.planned, "too few steps were reached: {tally}");
    for kind in ["agent actor", "host actor", "kill choir-agent", "kill choird", "kill postgres"] {
        assert!(tally.dealt.contains_key(kind), "no \"{kind}\" was dealt: {tally}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kill_loses_a_message_or_repeats_an_effect_in_seeds_0_to_49() {
    shard(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kill_loses_a_message_or_repeats_an_effect_in_seeds_50_to_99() {
    shard(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kill_loses_a_message_or_repeats_an_effect_in_seeds_100_to_149() {
    shard(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kill_loses_a_message_or_repeats_an_effect_in_seeds_150_to_199() {
    shard(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_holds_inside_bubblewrap() {
    let setup = Setup { sandbox: "bubblewrap", ..Setup::default() };
    hold(setup, (200..210).map(Plan::of), false).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_holds_over_tcp() {
    let setup = Setup { link: "tcp", ..Setup::default() };
    // Six in a row whose wounds are of the kinds that end links.
    let tally = hold(setup, (232..238).map(Plan::of), false).await;
    for kind in ["agent actor", "kill choir-agent", "kill choird"] {
        assert!(tally.dealt.contains_key(kind), "no \"{kind}\" was dealt: {tally}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_freeze_longer_than_all_deadlines_inside_changes_nothing_either() {
    let setup = Setup { crash: USUAL, ..Setup::default() };
    let tally = hold(setup, (0..4).map(Plan::long), false).await;
    assert!(tally.dealt.values().sum::<u32>() > 2, "too few steps were reached: {tally}");
}

/// Plays the seed in `CHOIR_SEED`, or one if it is not set, and tells what happened. `CHOIR_SEED=100..150` plays a range,
/// `CHOIR_LONG=1` plays the long freezes, `CHOIR_SANDBOX=bubblewrap` uses that sandbox, `CHOIR_LINK=tcp` that carrier,
/// `CHOIR_KEEP=1` keeps the folder with its logs.
#[tokio::test(flavor = "multi_thread")]
async fn replay() {
    let text = std::env::var("CHOIR_SEED").unwrap_or_else(|_| "1".into());
    let said = |name| std::env::var_os(name).is_some();
    let among = |name: &str, words: [&'static str; 2]| match std::env::var(name) {
        Err(_) => words[0],
        Ok(said) => words
            .into_iter()
            .find(|word| *word == said)
            .unwrap_or_else(|| panic!("{name}={said} is neither {} nor {}", words[0], words[1])),
    };
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let seeds: Option<Range<u64>> = match text.split_once("..") {
        Some((from, to)) => number(from).zip(number(to)).map(|(from, to)| from..to),
        None => number(&text).map(|seed| seed..seed + 1),
    };
    let Some(seeds) = seeds else {
        panic!("CHOIR_SEED={text} is neither a number nor a range such as 100..150")
    };
    let one = seeds.end == seeds.start + 1;
    let (plan, crash) = if said("CHOIR_LONG") {
        (Plan::long as fn(u64) -> Plan, USUAL)
    } else {
        (Plan::of as fn(u64) -> Plan, Setup::default().crash)
    };
    let sandbox = among("CHOIR_SANDBOX", ["process", "bubblewrap"]);
    let link = among("CHOIR_LINK", ["unix", "tcp"]);
    let tally = hold(Setup { sandbox, link, crash }, seeds.map(plan), said("CHOIR_KEEP")).await;
    if one {
        println!("{}", tally.last.join("\n"));
    }
}
