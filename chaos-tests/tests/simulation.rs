//! Thousands of crash schedules over the cores of an agent, each named by its seed. To replay one:
//! `CHOIR_SEED=<seed> cargo nextest run -p choir-chaos-tests --no-capture one_seed`.

#![allow(clippy::print_stderr, reason = "a seed must be seen")]

use choir_chaos_tests::simulation::{Report, run};

fn play(seed: u64) -> Report {
    match std::panic::catch_unwind(|| run(seed)) {
        Ok(report) => report,
        Err(panic) => {
            eprintln!("seed {seed} broke; replay it with CHOIR_SEED={seed}");
            std::panic::resume_unwind(panic)
        }
    }
}

#[test]
fn no_schedule_of_crashes_loses_a_message_or_repeats_an_effect() {
    let mut total = Report::default();
    for seed in 0..1000 {
        let report = play(seed);
        total.answered += report.answered;
        total.failed += report.failed;
        total.kills += report.kills;
        total.events += report.events;
        total.effects += report.effects;
        total.runs.ended += report.runs.ended;
        total.runs.ran += report.runs.ran;
        total.runs.unknown += report.runs.unknown;
        total.runs.given_up += report.runs.given_up;
        total.runs.stopped += report.runs.stopped;
    }
    println!("{total:?}");
    // The schedules must reach what they are for.
    assert!(total.kills > 5_000, "{total:?}");
    assert!(total.effects > 1000, "{total:?}");
    assert!(total.answered > total.failed, "{total:?}");
    assert!(total.runs.ended > 1000 && total.runs.ran > 500, "{total:?}");
    assert!(total.runs.unknown > 20 && total.runs.stopped > 100 && total.runs.given_up > 10, "{total:?}");
}

#[test]
fn one_seed() {
    let seed = std::env::var("CHOIR_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    println!("seed {seed}: {:?}", play(seed));
}
