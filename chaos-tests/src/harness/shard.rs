//! Many seeds in one house, and what they came to. A house in which something broke is closed and kept; the next seed
//! gets a new one.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

use super::house::{House, Setup};
use super::run::{Played, play};
use crate::check::check;
use crate::plan::Plan;

/// Failures after which a shard gives up: more would say the same again.
const ENOUGH: usize = 5;

/// Seeds that are told as the slowest.
const SLOWEST: usize = 5;

/// What seeds came to.
#[derive(Debug, Default)]
pub struct Tally {
    /// Seeds played to their end.
    pub played: u32,
    /// Messages answered to their sender.
    pub messages: usize,
    /// Durable events.
    pub events: usize,
    /// Lines left in workspaces.
    pub effects: usize,
    /// Requests to the model.
    pub requests: usize,
    /// Wounds that were planned.
    pub planned: usize,
    /// Wounds that were dealt, by kind.
    pub dealt: BTreeMap<&'static str, u32>,
    /// How long seeds took, the slowest first, each with its longest pause.
    pub slowest: Vec<(Duration, u64, String)>,
    /// What happened in the last seed, line by line.
    pub last: Vec<String>,
    /// What broke, each with its seed, its story and where its house is kept.
    pub failures: Vec<String>,
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { played, messages, events, effects, requests, planned, .. } = self;
        writeln!(
            f,
            "{played} seeds: {messages} messages, {events} events, {effects} effects, {requests} model requests"
        )?;
        let dealt: u32 = self.dealt.values().sum();
        writeln!(f, "{dealt} of {planned} wounds dealt: {:?}", self.dealt)?;
        for (took, seed, pause) in self.slowest.iter().take(SLOWEST) {
            writeln!(f, "seed {seed} took {took:.1?}, {pause}")?;
        }
        Ok(())
    }
}

impl Tally {
    /// Plays plans one after another. The last house is removed unless it is to be kept.
    pub async fn of(setup: Setup<'static>, plans: impl IntoIterator<Item = Plan>, keep: bool) -> Self {
        let mut tally = Self::default();
        let mut house = None;
        for plan in plans {
            if tally.failures.len() >= ENOUGH {
                break;
            }
            let current = match house.take() {
                Some(house) => house,
                None => match House::open(setup).await {
                    Ok(house) => house,
                    Err(error) => {
                        tally.failures.push(error.to_string());
                        return tally;
                    }
                },
            };
            let began = Instant::now();
            let played = play(&current, &plan).await;
            let (pause, after) = &played.pause;
            tally.slowest.push((began.elapsed(), plan.seed, format!("{pause:.1?} of it after \"{after}\"")));
            tally.last.clone_from(&played.story);
            let broken = tally.count(&plan, &played);
            if broken.is_empty() {
                house = Some(current);
                continue;
            }
            let kept = match current.close(true).await {
                Ok(Some(kept)) => kept.display().to_string(),
                Ok(None) => "nowhere".into(),
                Err(error) => format!("its folder, though: {error}"),
            };
            tally.failures.push(tell(setup, &plan, &broken, &played.story, &kept));
        }
        if let Some(house) = house {
            match house.close(keep).await {
                Ok(Some(kept)) => tally.last.push(format!("kept in {}", kept.display())),
                Ok(None) => {}
                Err(error) => tally.failures.push(error.to_string()),
            }
        }
        tally.slowest.sort_unstable_by(|a, b| b.cmp(a));
        tally
    }

    /// Counts a run; what is wrong with it.
    fn count(&mut self, plan: &Plan, played: &Played) -> Vec<String> {
        self.planned += plan.wounds.len();
        for wound in &played.dealt {
            *self.dealt.entry(wound.kind()).or_insert(0) += 1;
        }
        let evidence = match &played.result {
            Ok(evidence) => evidence,
            Err(error) => return vec![error.to_string()],
        };
        self.played += 1;
        self.messages += evidence.asked.len();
        self.events += evidence.log.len();
        self.effects += evidence.lines.len();
        self.requests += evidence.requests.len();
        check(evidence).iter().map(ToString::to_string).collect()
    }
}

fn tell(setup: Setup<'_>, plan: &Plan, broken: &[String], story: &[String], kept: &str) -> String {
    let wounds: Vec<String> = plan.wounds.iter().map(|w| format!("  {:?}, when {}", w.wound, w.at)).collect();
    let seed = plan.seed;
    let mut kind = if plan.long { "CHOIR_LONG=1 " } else { "" }.to_owned();
    let usual = Setup::default();
    for (name, word, usual) in
        [("CHOIR_SANDBOX", setup.sandbox, usual.sandbox), ("CHOIR_LINK", setup.link, usual.link)]
    {
        if word != usual {
            kind.push_str(&format!("{name}={word} "));
        }
    }
    format!(
        "seed {seed} broke:\n  {}\nits wounds:\n{}\nwhat happened:\n{}\nkept in {kept}\n\
         replay: {kind}CHOIR_SEED={seed} cargo nextest run -p choir-chaos-tests replay --no-capture",
        broken.join("\n  "),
        wounds.join("\n"),
        story.join("\n"),
    )
}
