//! The real processes under two hundred seeds of kills and freezes. Each run names its seed when it breaks; to replay it:
//! `CHOIR_SEED=<seed> cargo nextest run -p choir-chaos-tests replay --no-capture`.

#![allow(clippy::print_stdout, reason = "seeds, tallies and stories must be seen")]

use std::ops::Range;

use choir_chaos_tests::harness::Tally;

/// The seeds of one shard.
const SHARD: u64 = 50;

fn shard(number: u64) -> Range<u64> {
    number * SHARD..(number + 1) * SHARD
}

async fn hold(sandbox: &str, seeds: Range<u64>, keep: bool) -> Tally {
    let tally = Tally::of(sandbox, seeds, keep).await;
    println!("{tally}");
    assert!(tally.failures.is_empty(), "{}", tally.failures.join("\n\n"));
    tally
}

/// Plays a shard, and makes sure that it reached what it is for.
async fn whole(number: u64) {
    let tally = hold("process", shard(number), false).await;
    assert_eq!(u64::from(tally.played), SHARD);
    let dealt = tally.dealt.values().sum::<u32>() as usize;
    assert!(dealt * 2 > tally.planned, "too few steps were reached: {tally}");
    for kind in ["agent actor", "host actor", "kill choir-agent", "kill choird", "kill postgres"] {
        assert!(tally.dealt.contains_key(kind), "no \"{kind}\" was dealt: {tally}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kill_loses_a_message_or_repeats_an_effect_in_seeds_0_to_49() {
    whole(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kill_loses_a_message_or_repeats_an_effect_in_seeds_50_to_99() {
    whole(1).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kill_loses_a_message_or_repeats_an_effect_in_seeds_100_to_149() {
    whole(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_kill_loses_a_message_or_repeats_an_effect_in_seeds_150_to_199() {
    whole(3).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_same_holds_inside_bubblewrap() {
    hold("bubblewrap", 200..206, false).await;
}

/// Plays the seed in `CHOIR_SEED`, or one if it is not set, and tells what happened. `CHOIR_SEED=100..150` plays a range,
/// `CHOIR_SANDBOX` names another sandbox, `CHOIR_KEEP=1` keeps the folder with its logs.
#[tokio::test(flavor = "multi_thread")]
async fn replay() {
    let text = std::env::var("CHOIR_SEED").unwrap_or_else(|_| "1".into());
    let sandbox = std::env::var("CHOIR_SANDBOX").unwrap_or_else(|_| "process".into());
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let seeds = match text.split_once("..") {
        Some((from, to)) => number(from).zip(number(to)).map(|(from, to)| from..to),
        None => number(&text).map(|seed| seed..seed + 1),
    };
    match seeds {
        Some(seeds) => {
            let one = seeds.end == seeds.start + 1;
            let keep = std::env::var_os("CHOIR_KEEP").is_some();
            let tally = hold(&sandbox, seeds, keep).await;
            if one {
                println!("{}", tally.last.join("\n"));
            }
        }
        None => panic!("CHOIR_SEED={text} is neither a number nor a range such as 100..150"),
    }
}
