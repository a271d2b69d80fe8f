//! What depends on order, or on the trace as a whole: event ids, the chain, time, artefacts, claims, the protocol's order,
//! and the meta file. Takes the lines one by one, in order, in one thread.

use super::blobs::Blobs;
use super::claims::Claims;
use super::finding::{Check, EventName, Failure, FailureCode, Findings, Place};
use super::home::Home;
use super::line::{Context, Link, Looked, Seen, What};
use super::order::Order;
use super::report::Metrics;
use super::rule::Rule;
use super::said::Found;
use super::says::Says;
use super::seal::Seal;
use super::{Options, Reading, elsewhere};
use crate::id::TraceId;
use choir_messages::chain::Digest;
use std::collections::HashMap;

/// The state between two lines. Grows by about 60 bytes an event (its id, of which the strict reading needs all), and with
/// what [`Blobs`], [`Claims`] and [`Order`] keep.
pub(super) struct Fold<'h> {
    context: &'h Context,
    options: Options,
    pub(super) findings: Findings,
    /// The line of each event id met.
    ids: HashMap<EventName, u32>,
    head: Link,
    /// A line since the last event could not be read, so the next event's predecessor is not known.
    gap: bool,
    any_gap: bool,
    chain_broken: bool,
    latest: Option<Box<str>>,
    blobs: Blobs<'h>,
    claims: Claims,
    order: Order,
    lines: u64,
    events: u64,
    artifacts: u64,
    profile: Option<Option<String>>,
    recorded_fail: Option<Place>,
    ended: bool,
}

impl<'h> Fold<'h> {
    pub(super) fn new(home: &'h dyn Home, context: &'h Context, options: Options) -> Self {
        Self {
            context,
            options,
            findings: Findings::default(),
            ids: HashMap::new(),
            head: Link::Hash(Digest::ZERO),
            gap: false,
            any_gap: false,
            chain_broken: false,
            latest: None,
            blobs: Blobs::new(home),
            claims: Claims::default(),
            order: Order::default(),
            lines: 0,
            events: 0,
            artifacts: 0,
            profile: None,
            recorded_fail: None,
            ended: false,
        }
    }

    fn strict(&self) -> bool {
        self.context.reading == Reading::Strict
    }

    /// Whether the compat reading has come to the line that ends it.
    pub(super) const fn has_ended(&self) -> bool {
        self.ended
    }

    /// Takes the next line.
    pub(super) fn take(&mut self, looked: Looked) {
        if self.ended {
            return;
        }
        for failure in looked.failures {
            self.findings.fail(failure);
        }
        for warning in looked.warnings {
            self.findings.warn(warning);
        }
        match looked.what {
            What::Blank => {}
            What::Unreadable { leftover: true } => {}
            What::Unreadable { leftover: false } => {
                self.lines += 1;
                self.gap = true;
                self.any_gap = true;
                // For the original nothing after such a line exists.
                self.ended = !self.strict();
            }
            What::Event(seen) => {
                self.lines += 1;
                self.events += 1;
                let place = Place { event: seen.name, line: Some(looked.number) };
                self.event(&seen, place);
                self.gap = false;
            }
        }
    }

    fn event(&mut self, seen: &Seen, place: Place) {
        let strict = self.strict();
        self.identity(seen, place);
        self.chain(seen, place);
        self.artifacts += seen.artifacts.len() as u64;
        for carried in &seen.artifacts {
            self.blobs.take(carried, place, strict, &mut self.findings);
        }
        let challenge_known = match &seen.says {
            Says::Challenge { claim } => self.claims.knows(claim.as_ref()),
            _ => true,
        };
        match &seen.says {
            Says::Claim(claim) => {
                let sealed = matches!(seen.seal, Seal::Good);
                self.claims.issue(claim, sealed, place, strict, &self.blobs, &mut self.findings);
            }
            Says::Challenge { claim } => self.claims.challenge(claim.as_ref(), place, strict),
            Says::Final { claims } if strict => self.claims.consolidate(claims, place, &mut self.findings),
            Says::AuditBegins { profile } => self.profile = Some(profile.clone()),
            Says::AuditEnds { failed: true } => self.recorded_fail = Some(place),
            _ => {}
        }
        if strict {
            self.time(seen, place);
            self.order.take(seen, place, self.any_gap, challenge_known, &mut self.findings);
        } else {
            self.order.take_compat(seen, place);
        }
    }

    /// Check 1's second half: ids are used once, and events belong to the trace.
    fn identity(&mut self, seen: &Seen, place: Place) {
        let mut fail = |rule: Option<Rule>, message: &'static str| {
            let failure = Failure::new(Check::Schema, FailureCode::SchemaInvalid, place, message);
            self.findings.fail(Failure { rule, ..failure });
        };
        let strict = self.context.reading == Reading::Strict;
        let mut repeated = false;
        if let Some(name) = seen.name.filter(|_| seen.schema_ok || strict) {
            let line = place.line.and_then(|line| u32::try_from(line).ok()).unwrap_or(u32::MAX);
            match self.ids.entry(name) {
                std::collections::hash_map::Entry::Occupied(_) => repeated = true,
                std::collections::hash_map::Entry::Vacant(free) => {
                    free.insert(line);
                }
            }
        }
        if repeated {
            fail(None, "the event id was used on an earlier line");
        }
        let judged = if strict { true } else { seen.schema_ok && !repeated };
        if judged && !seen.own_trace {
            fail(None, "the event belongs to another trace");
        }
    }

    /// Check 3.
    fn chain(&mut self, seen: &Seen, place: Place) {
        let follows = seen.prev == self.head && !matches!(seen.prev, Link::Absent);
        let unknown = self.gap && self.strict();
        if !follows && !unknown && (self.strict() || !self.chain_broken) {
            self.chain_broken = true;
            self.findings.fail(Failure::new(
                Check::Chain,
                FailureCode::ChainBreak,
                place,
                "prev_event_hash is not the hash of the event before",
            ));
        }
        self.head = seen.hash;
    }

    /// R09: times never go back.
    fn time(&mut self, seen: &Seen, place: Place) {
        let Some(at) = &seen.created_at else { return };
        if self.latest.as_ref().is_some_and(|latest| at < latest) {
            let failure = Failure::new(
                Check::Schema,
                FailureCode::SchemaInvalid,
                place,
                "the event is older than one before it",
            );
            self.findings.fail(failure.by(Rule::TimeRunsOn));
        } else {
            self.latest = Some(at.clone());
        }
    }

    /// The end of the ledger: everything that only the whole trace can tell.
    pub(super) fn end(mut self, home: &dyn Home, trace: TraceId) -> (Findings, Metrics) {
        let strict = self.strict();
        let metrics = Metrics {
            event_count: self.events,
            artifact_reference_count: self.artifacts,
            artifact_count: self.blobs.found,
            claim_count: self.claims.count(),
            failure_count: 0,
            warning_count: 0,
            verification_duration_ms: 0.0,
        };
        let mut findings = self.findings;
        self.claims.end(self.options.profile, strict, &self.blobs, &mut findings);
        let awaiting = self.options.awaiting_verdict;
        if strict {
            self.order.end_strict(awaiting, &mut findings);
            let found = Found {
                lines: self.lines,
                events: self.events,
                artifacts: self.artifacts,
                head: match self.head {
                    Link::Hash(digest) => Some(digest),
                    Link::Other(_) | Link::Absent => None,
                },
                tail_unread: self.gap,
                profile: self.profile.take(),
                recorded_fail: self.recorded_fail,
            };
            self.context.said.check(trace, &found, &mut findings);
            let ids = &mut self.ids;
            elsewhere::each_event_id(home, trace, |id| {
                // Removed, so that an id in several other traces is one finding.
                let used = EventName::of(id).and_then(|name| ids.remove_entry(&name));
                if let Some((name, line)) = used {
                    let place = Place { event: Some(name), line: Some(u64::from(line)) };
                    let failure = Failure::new(
                        Check::Schema,
                        FailureCode::SchemaInvalid,
                        place,
                        "the event id is used in another trace of this home",
                    );
                    findings.fail(failure.by(Rule::IdUsedOnce));
                }
            });
        } else {
            self.order.end(awaiting, &mut findings);
        }
        (findings, metrics)
    }
}
