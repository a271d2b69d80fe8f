//! The order of the protocol (R10, R12) and the end of a trace (check 10). The counterpart in [`crate::trace`] refuses what
//! is out of order; here it is only noted, and the next event is judged as if it had been in order.

use super::finding::{Check, Failure, FailureCode, Findings, Place};
use super::line::Seen;
use super::rule::Rule;
use super::says::{Key, Says};
use crate::event::Role;
use std::collections::HashMap;

/// An execution that has not ended.
struct Open {
    place: Place,
    /// Some event of it carried a descriptor.
    left_something: bool,
}

/// What happened so far. Grows with executions that are open and intents that are unused only.
#[derive(Default)]
pub(super) struct Order {
    events: u64,
    sessions: u64,
    proposals: u64,
    /// Whether the latest review approved; nothing before the first.
    approved: Option<bool>,
    /// Unused intents by tool.
    intents: HashMap<Key, u64>,
    open: HashMap<Key, Open>,
    /// Executions that ended.
    ended: u64,
    claims: u64,
    first_final: Option<(u64, Place)>,
    audit_begun: bool,
    first_verdict: Option<u64>,
}

impl Order {
    /// Takes the next event. `gap`: lines before it could not be read, so what seems to be missing may have stood there.
    pub(super) fn take(
        &mut self,
        seen: &Seen,
        place: Place,
        gap: bool,
        challenges_known: bool,
        findings: &mut Findings,
    ) {
        let mut misplaced = |check: Check, message: &'static str| {
            let failure = Failure::new(check, FailureCode::RolePolicyViolation, place, message);
            findings.fail(failure.by(Rule::Order));
        };
        if self.events == 0 && !gap && !matches!(seen.says, Says::Session) {
            misplaced(Check::Role, "the first event must be session_initialized");
        }
        if self.first_verdict.is_some() {
            misplaced(Check::Finalization, "nothing may follow verification_run_completed");
        } else if self.first_final.is_some() && seen.role != Some(Role::Auditor) {
            misplaced(Check::Finalization, "after the final statement only the auditor may emit");
        }
        self.events += 1;
        let carries = !seen.artifacts.is_empty();
        match &seen.says {
            Says::Nothing => {}
            Says::Session => {
                self.sessions += 1;
                if self.sessions > 1 || self.events > 1 && !gap {
                    misplaced(Check::Role, "a session begins once, with the first event");
                }
            }
            Says::Proposal => self.proposals += 1,
            Says::Review { approves } => {
                if self.proposals == 0 {
                    misplaced(Check::Role, "there is no proposal yet to review");
                }
                self.approved = Some(*approves);
            }
            Says::Intent { tool } => {
                if self.approved != Some(true) {
                    misplaced(Check::Role, "an intent needs the latest review to be an approval");
                }
                *self.intents.entry(*tool).or_default() += 1;
            }
            Says::Started { tool, execution } => {
                match self.intents.get_mut(tool) {
                    Some(1) => drop(self.intents.remove(tool)),
                    Some(unused) => *unused -= 1,
                    None => misplaced(Check::Role, "there is no unused intent for the tool"),
                }
                if self.approved != Some(true) {
                    misplaced(Check::Role, "the latest review does not approve the execution");
                }
                self.open.insert(*execution, Open { place, left_something: carries });
            }
            Says::Ended { execution, outputs } => {
                let open = self.open.remove(execution);
                if open.is_none() {
                    misplaced(Check::Role, "no such execution is open");
                }
                self.ended += 1;
                if !carries && !open.is_some_and(|open| open.left_something) {
                    leaves_nothing(place, findings);
                }
                for output in outputs {
                    let carried = output
                        .is_some_and(|hash| seen.artifacts.iter().any(|carried| carried.hash == Some(hash)));
                    if !carried {
                        let failure = Failure::new(
                            Check::ArtifactExistence,
                            FailureCode::ArtifactMissing,
                            place,
                            "the event names an output that it does not carry",
                        );
                        let failure = failure.by(Rule::ExecutionLeaves);
                        findings.fail(match output {
                            Some(hash) => failure.about(*hash),
                            None => failure,
                        });
                    }
                }
            }
            Says::Claim(_) => {
                if self.ended == 0 {
                    misplaced(Check::Role, "a claim needs an execution that ended");
                }
                self.claims += 1;
            }
            Says::Challenge { .. } => {
                if !challenges_known {
                    misplaced(Check::Role, "the challenged claim was not issued before");
                }
            }
            Says::Final { .. } => {
                if self.claims == 0 {
                    misplaced(Check::Finalization, "a final statement needs a claim");
                }
                self.first_final.get_or_insert((self.events, place));
            }
            Says::AuditBegins { .. } => self.audit_begun = true,
            Says::AuditEnds { .. } => {
                if !self.audit_begun {
                    misplaced(Check::Finalization, "no verification run was started");
                }
                self.first_verdict.get_or_insert(self.events);
            }
        }
    }

    /// Only what check 10 needs: all that the compat reading looks at.
    pub(super) fn take_compat(&mut self, seen: &Seen, place: Place) {
        self.events += 1;
        match seen.says {
            Says::Final { .. } => drop(self.first_final.get_or_insert((self.events, place))),
            Says::AuditBegins { .. } => self.audit_begun = true,
            Says::AuditEnds { .. } => drop(self.first_verdict.get_or_insert(self.events)),
            _ => {}
        }
    }

    /// The end of the ledger. `awaiting_verdict`: the auditor is about to record one.
    pub(super) fn end(self, awaiting_verdict: bool, findings: &mut Findings) {
        let mut missing = |what: &'static str| {
            findings.fail(Failure::new(
                Check::Finalization,
                FailureCode::SchemaInvalid,
                Place::default(),
                what,
            ));
        };
        if self.first_final.is_none() {
            missing("there is no final_statement_signed");
        }
        if !self.audit_begun {
            missing("there is no verification_run_started");
        }
        if self.first_verdict.is_none() && !awaiting_verdict {
            missing("there is no verification_run_completed");
        }
        if let (Some((statement, place)), Some(verdict)) = (self.first_final, self.first_verdict)
            && statement > verdict
        {
            findings.fail(Failure::new(
                Check::Finalization,
                FailureCode::RolePolicyViolation,
                place,
                "the final statement comes after the verification was completed",
            ));
        }
    }

    /// The strict end: executions that never ended must have left something, too.
    pub(super) fn end_strict(self, awaiting_verdict: bool, findings: &mut Findings) {
        for open in self.open.values().filter(|open| !open.left_something) {
            leaves_nothing(open.place, findings);
        }
        self.end(awaiting_verdict, findings);
    }
}

fn leaves_nothing(place: Place, findings: &mut Findings) {
    let failure = Failure::new(
        Check::ArtifactExistence,
        FailureCode::ArtifactMissing,
        place,
        "the execution left no artefact",
    );
    findings.fail(failure.by(Rule::ExecutionLeaves));
}
