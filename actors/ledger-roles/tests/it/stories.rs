//! Single stories, told by what the trace says at the end.

use choir_ledger::event::EventType;
use choir_ledger_roles::board::Standing;

use crate::play::{Dice, Play, task};

fn count(play: &Play, kind: EventType) -> usize {
    play.kinds().into_iter().filter(|k| *k == kind).count()
}

#[test]
fn a_run_in_which_nothing_goes_wrong_is_completed() {
    let mut play = Play::new(&task("default", "standard", 8), Dice::GOOD);
    play.play_on();
    assert_eq!(play.ended, None);
    assert_eq!(play.kinds().first(), Some(&EventType::SessionInitialized));
    assert_eq!(play.kinds().last(), Some(&EventType::VerificationRunCompleted));
    assert!(play.board.claims.iter().all(|claim| !claim.evidence.is_empty()));
    assert_eq!(count(&play, EventType::FinalStatementSigned), 1);
}

#[test]
fn a_critic_that_rejects_everything_ends_the_run_as_refused_after_bounded_revisions() {
    let mut play = Play::new(&task("default", "standard", 8), Dice { rejects: 100, ..Dice::GOOD });
    play.play_on();
    let (reason, refused) = play.ended.clone().unwrap();
    assert!(refused && reason.contains("as it seems"), "{reason}");
    assert!(play.board.proposals.iter().all(|proposal| proposal.standing == Standing::Rejected));
    assert_eq!(count(&play, EventType::ToolIntentSigned), 0, "nothing is run without an approval");
}

#[test]
fn a_critic_without_a_usable_answer_approves_nothing() {
    let mut play = Play::new(&task("default", "standard", 8), Dice { bad_answer: 100, ..Dice::GOOD });
    play.play_on();
    assert!(play.ended.is_some());
    assert_eq!(count(&play, EventType::ToolExecutionStarted), 0);
}

#[test]
fn a_challenge_that_is_conceded_stays_open_and_the_run_goes_on() {
    let dice = Dice { challenges: 100, concedes: 100, ..Dice::GOOD };
    let mut play = Play::new(&task("default", "standard", 8), dice);
    play.play_on();
    assert_eq!(play.ended, None);
    assert!(play.board.claims.iter().all(|claim| play.board.open_challenge(&claim.id).is_some()));
}

#[test]
fn a_challenge_that_is_answered_is_settled_and_a_claim_is_challenged_only_so_often() {
    let dice = Dice { challenges: 100, concedes: 0, ..Dice::GOOD };
    let mut play = Play::new(&task("default", "standard", 8), dice);
    play.play_on();
    assert_eq!(play.ended, None);
    assert!(play.board.challenges.iter().any(|challenge| challenge.settled));
}

#[test]
fn tools_that_always_fail_lead_to_fallbacks_and_then_to_claims_of_the_failures() {
    let dice = Dice { tool_fails: 100, ..Dice::GOOD };
    let mut play = Play::new(&task("default", "standard", 20), dice);
    play.play_on();
    assert!(play.board.proposals.iter().any(|proposal| proposal.fallback));
    assert_eq!(count(&play, EventType::ToolExecutionCompleted), 0);
    assert_eq!(play.ended, None, "a failure that is recorded and claimed as such is an end");
}

#[test]
fn the_strict_profile_permits_no_fallback_and_no_open_challenge() {
    let dice = Dice { tool_fails: 100, ..Dice::GOOD };
    let mut play = Play::new(&task("strict", "standard", 20), dice);
    play.play_on();
    assert!(!play.board.proposals.iter().any(|proposal| proposal.fallback));
    let dice = Dice { challenges: 100, concedes: 100, ..Dice::GOOD };
    let mut play = Play::new(&task("strict", "standard", 20), dice);
    play.play_on();
    assert!(play.ended.is_some(), "a conceded challenge cannot be finalised under the strict profile");
}

#[test]
fn restricted_data_is_never_given_to_a_command() {
    for seed in 1..30 {
        let mut play = Play::new(&task("default", "restricted", 8), Dice { seed, ..Dice::GOOD });
        play.play_on();
        assert!(play.board.executions.iter().all(|execution| execution.tool != "choir.exec"));
    }
}
