//! Claims, their evidence and the challenges against them: check 8, R13's first half, R14 and R15.

use super::Profile;
use super::blobs::Blobs;
use super::finding::{Check, Failure, FailureCode, Findings, Place, Severity, Warning, WarningCode};
use super::rule::Rule;
use super::says::{Claim, Key};
use choir_messages::chain::Digest;
use std::collections::HashMap;

/// A claim that was issued.
struct Issued {
    /// The text it was last issued with.
    text: Key,
    /// Events that issued it without `resolved`; what the compat reading asks for.
    unresolved: u64,
}

/// A claim whose evidence may still turn up on a later line (compat only).
struct Waiting {
    place: Place,
    evidence: Vec<Digest>,
}

/// All claims so far. Grows by one entry a claim, and by one for each challenge that is open.
#[derive(Default)]
pub(super) struct Claims {
    issued: HashMap<Key, Issued>,
    waiting: Vec<Waiting>,
    /// Open challenges of a claim (strict), or the last one (compat).
    challenges: HashMap<Key, Vec<Place>>,
}

fn unproven(place: Place, why: &'static str) -> Failure {
    Failure::new(Check::Claim, FailureCode::ClaimUnproven, place, why)
}

impl Claims {
    /// Whether this claim was issued.
    pub(super) fn knows(&self, claim: Option<&Key>) -> bool {
        claim.is_some_and(|claim| self.issued.contains_key(claim))
    }

    /// How many claims were issued.
    pub(super) fn count(&self) -> u64 {
        self.issued.len() as u64
    }

    /// A claim is issued. Its own descriptors are in `blobs` already.
    pub(super) fn issue(
        &mut self,
        claim: &Claim,
        sealed: bool,
        place: Place,
        strict: bool,
        blobs: &Blobs,
        findings: &mut Findings,
    ) {
        let Some(id) = claim.id.filter(|_| !claim.evidence.is_empty()) else {
            let why = if claim.id.is_none() { "the claim has no id" } else { "the claim has no evidence" };
            findings.fail(unproven(place, why));
            if strict && let Some(id) = claim.id {
                self.remember(id, claim, place, strict, findings);
            }
            return;
        };
        if !sealed {
            findings.fail(unproven(place, "the claim's signature is not good"));
        } else {
            self.weigh(claim, place, strict, blobs, findings);
        }
        self.remember(id, claim, place, strict, findings);
    }

    /// Holds the evidence against what was carried so far.
    fn weigh(&mut self, claim: &Claim, place: Place, strict: bool, blobs: &Blobs, findings: &mut Findings) {
        let mut later = Vec::new();
        for evidence in &claim.evidence {
            let Some(hash) = evidence else {
                findings.fail(unproven(place, "a piece of evidence is not a hash"));
                return;
            };
            match blobs.is_sound(hash) {
                Some(true) => {}
                Some(false) => {
                    findings.fail(unproven(place, "a piece of evidence is missing or altered"));
                    return;
                }
                None if strict => {
                    let failure = unproven(place, "a piece of evidence was not carried by then");
                    findings.fail(failure.by(Rule::EvidenceCarried).about(*hash));
                    return;
                }
                None => later.push(*hash),
            }
        }
        if !later.is_empty() {
            self.waiting.push(Waiting { place, evidence: later });
        }
    }

    fn remember(&mut self, id: Key, claim: &Claim, place: Place, strict: bool, findings: &mut Findings) {
        let issued = self.issued.entry(id).or_insert(Issued { text: claim.text, unresolved: 0 });
        if strict && issued.text != claim.text && !claim.resolved {
            let failure =
                unproven(place, "the claim was issued before with another text and is not resolved");
            findings.fail(failure.by(Rule::ChallengeSettled));
        }
        issued.text = claim.text;
        issued.unresolved += u64::from(!claim.resolved);
        if strict && claim.resolved {
            self.challenges.remove(&id);
        }
    }

    /// A claim is challenged.
    pub(super) fn challenge(&mut self, claim: Option<&Key>, place: Place, strict: bool) {
        let Some(claim) = claim else { return };
        let open = self.challenges.entry(*claim).or_default();
        if !strict {
            open.clear();
        }
        open.push(place);
    }

    /// The final statement names these claims (R15).
    pub(super) fn consolidate(&self, claims: &[Key], place: Place, findings: &mut Findings) {
        if claims.iter().any(|claim| !self.issued.contains_key(claim)) {
            let why = "the final statement names a claim that was not issued before";
            let failure = Failure::new(Check::Finalization, FailureCode::ClaimUnproven, place, why);
            findings.fail(failure.by(Rule::ClaimsKnown));
        }
    }

    /// The end of the ledger: evidence that never came, challenges that are open.
    pub(super) fn end(self, profile: Profile, strict: bool, blobs: &Blobs, findings: &mut Findings) {
        for waiting in &self.waiting {
            if waiting.evidence.iter().any(|hash| blobs.is_sound(hash) != Some(true)) {
                findings.fail(unproven(waiting.place, "a piece of evidence is missing or altered"));
            }
        }
        let mut open: Vec<Place> = Vec::new();
        for (claim, challenges) in &self.challenges {
            match self.issued.get(claim) {
                Some(_) if strict => open.extend(challenges),
                // One finding for each event that issued the claim unresolved, all on the last challenge.
                Some(issued) => {
                    let times = usize::try_from(issued.unresolved).unwrap_or(usize::MAX);
                    open.extend(challenges.iter().cycle().take(times));
                }
                None => {}
            }
        }
        open.sort_by_key(|place| place.line);
        for place in open {
            const WHY: &str = "a claim was challenged, and the challenge is not settled";
            let rule = strict.then_some(Rule::ChallengeSettled);
            if profile == Profile::Strict {
                findings.fail(Failure { rule, ..unproven(place, WHY) });
            } else {
                findings.warn(Warning {
                    warning_code: WarningCode::ClaimDisputed,
                    verification_step: Check::Claim,
                    severity: Severity::Medium,
                    event_id: place.event,
                    line: place.line,
                    rule,
                    message: WHY.into(),
                });
            }
        }
    }
}
