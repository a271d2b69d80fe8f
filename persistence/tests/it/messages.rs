use choir_messages::event::MessageOutcome;
use choir_messages::limits::USER_MESSAGE_BYTES;
use choir_persistence::StoreError;
use choir_persistence::limits::INBOX_OPEN;
use choir_persistence::store::inbox::{Accepted, Closing};
use choir_persistence::store::outbox::{OutboundKind, OutboxState, OutboxStep};
use choir_persistence::testing::TestCluster;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::log::{agent, id, session};

#[tokio::test(flavor = "multi_thread")]
async fn a_message_is_accepted_once_and_a_repeat_tells_how_it_ended() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let a = agent("a");
    store.register_agent(&a).await.unwrap();
    store.register_agent(&agent("b")).await.unwrap();
    assert_eq!(store.accept_message(&a, id(1), "chat", "x\0y").await.unwrap(), Accepted::New);
    let repeat = store.accept_message(&a, id(1), "chat", "x\0y").await.unwrap();
    assert_eq!(repeat, Accepted::Repeat { outcome: None });
    for (who, text) in [("a", "other"), ("b", "x\0y")] {
        let error = store.accept_message(&agent(who), id(1), "chat", text).await.unwrap_err();
        assert!(matches!(error, StoreError::MessageIdReused(m) if m == id(1)), "{error}");
    }
    assert_eq!(store.close_message(id(1), MessageOutcome::Refused, "no\0").await.unwrap(), Closing::Closed);
    let repeat = store.accept_message(&a, id(1), "chat", "x\0y").await.unwrap();
    assert_eq!(repeat, Accepted::Repeat { outcome: Some(MessageOutcome::Refused) });
    let said = store.outbox(Some(&a), 5).await.unwrap();
    assert_eq!((said.len(), said[0].text.as_str(), said[0].kind), (1, "no\0", OutboundKind::Answer));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_accepted_is_refused_at_the_door() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let a = agent("a");
    let error = store.accept_message(&a, id(1), "chat", "x").await.unwrap_err();
    assert!(matches!(error, StoreError::UnknownAgent(_)), "{error}");
    store.register_agent(&a).await.unwrap();
    let error = store.accept_message(&a, id(1), "chat", &"x".repeat(1024 * 1024)).await.unwrap_err();
    assert!(matches!(error, StoreError::TooLarge { limit: USER_MESSAGE_BYTES, .. }), "{error}");
    for source in ["", "a\0b", &"s".repeat(200)] {
        assert!(matches!(store.accept_message(&a, id(1), source, "x").await, Err(StoreError::Invalid(_))));
    }
    sqlx::query(
        "INSERT INTO choir_control.inbox (message_id, agent_id, source, text_json)
         SELECT 'filler-' || n, 'a', 'chat', '\"\"' FROM generate_series(1, $1) n",
    )
    .bind(INBOX_OPEN)
    .execute(&mut cluster.connect().await)
    .await
    .unwrap();
    let error = store.accept_message(&a, id(1), "chat", "x").await.unwrap_err();
    assert!(matches!(error, StoreError::InboxFull { waiting: INBOX_OPEN, .. }), "{error}");
    assert!(store.message(id(1)).await.unwrap().is_none());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_host_closes_only_what_no_agent_has_taken_on() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let a = agent("a");
    for n in [3, 1, 2] {
        store.accept_message(&a, id(n), "chat", "x").await.unwrap();
    }
    let order: Vec<_> = store.unrecorded(&a).await.unwrap().iter().map(|m| m.message).collect();
    assert_eq!(order, [id(3), id(1), id(2)], "in order of arrival");
    let user = log.user(id(3));
    log.append(&store, vec![user]).await.unwrap();
    let close = |n| store.close_message(id(n), MessageOutcome::Expired, "too late");
    assert_eq!(close(3).await.unwrap(), Closing::Recorded);
    assert_eq!(close(1).await.unwrap(), Closing::Closed);
    assert_eq!(close(1).await.unwrap(), Closing::Already(MessageOutcome::Expired));
    assert_eq!(close(9).await.unwrap(), Closing::Unknown);
    // The agent takes the expired one on all the same: its user was told, and is not told twice.
    let mut events = vec![log.says(id(3), "yes"), log.close(id(3), MessageOutcome::Answered, "yes")];
    events.extend(log.exchange(id(1), "late"));
    log.append(&store, events).await.unwrap();
    assert_eq!(store.message(id(1)).await.unwrap().unwrap().outcome, Some(MessageOutcome::Expired));
    let said: Vec<_> =
        store.outbox(Some(&a), 9).await.unwrap().into_iter().rev().map(|o| (o.message, o.text)).collect();
    assert_eq!(said, [(id(1), "too late".to_owned()), (id(3), "yes".to_owned())]);
    assert_eq!(store.unanswered(&a).await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn ending_a_session_fails_what_it_had_taken_on_and_leaves_the_rest_to_the_next() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let a = agent("a");
    for n in 1..=3 {
        store.accept_message(&a, id(n), "chat", "x").await.unwrap();
    }
    let mut events = log.exchange(id(1), "done");
    events.push(log.user(id(2)));
    log.append(&store, events).await.unwrap();
    store.mark_stopped(log.row.session, log.row.generation).await.unwrap();
    let next = store.open_or_resume_session(&a, &[], true).await.unwrap();
    assert_ne!(next.session, log.row.session);
    let outcomes: Vec<_> =
        store.inbox(Some(&a), 9).await.unwrap().into_iter().rev().map(|m| m.outcome).collect();
    assert_eq!(outcomes, [Some(MessageOutcome::Answered), Some(MessageOutcome::Failed), None]);
    assert_eq!(store.unrecorded(&a).await.unwrap()[0].message, id(3));
    assert!(!store.mark_ended(log.row.session).await.unwrap(), "it was ended already");
}

#[tokio::test(flavor = "multi_thread")]
async fn outbound_messages_are_claimed_in_order_and_a_crash_makes_them_ambiguous() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let a = agent("a");
    for n in 1..=3 {
        let source = if n == 2 { "mail" } else { "chat" };
        store.accept_message(&a, id(n), source, "x").await.unwrap();
        let events = log.exchange(id(n), &format!("answer {n}"));
        log.append(&store, events).await.unwrap();
    }
    let first = store.claim_next(&a, Some("chat")).await.unwrap().unwrap();
    let second = store.claim_next(&a, Some("chat")).await.unwrap().unwrap();
    assert_eq!((first.message, second.message), (id(1), id(3)));
    assert_eq!((first.state, first.attempts), (OutboxState::Sending, 1));
    assert!(store.claim_next(&a, Some("chat")).await.unwrap().is_none());
    assert!(store.delivered(first.outbound).await.unwrap());
    assert!(store.delivered(first.outbound).await.unwrap(), "a repeated confirmation is fine");
    let mail = store.claim_next(&a, None).await.unwrap().unwrap();
    assert_eq!(mail.message, id(2));
    assert!(store.not_sent(mail.outbound).await.unwrap());

    let leftovers = store.clean_up_after_crash().await.unwrap();
    assert_eq!(leftovers.ambiguous, 1);
    assert_eq!(leftovers.crashed, [(a.clone(), log.row.session)]);
    let unsure = store.redeliverable(&a, None).await.unwrap();
    assert_eq!(unsure.iter().map(|o| o.outbound).collect::<Vec<_>>(), [second.outbound]);
    let again = store.outbound_step(second.outbound, OutboxStep::Redeliver).await.unwrap().unwrap();
    assert_eq!((again.state, again.attempts), (OutboxState::Sending, 2));
    // Not sent this time, but the first time nobody knows: it is not prepared as if it were new.
    assert!(store.not_sent(second.outbound).await.unwrap());
    assert_eq!(store.redeliverable(&a, Some("chat")).await.unwrap().len(), 1);
    assert_eq!(store.claim_next(&a, None).await.unwrap().unwrap().outbound, mail.outbound);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_outbox_table_moves_exactly_as_its_state_machine_says() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let mut log = session(&store, "a").await;
    let a = agent("a");
    let mut runner = TestRunner::deterministic();
    let walks = prop::collection::vec(prop::sample::select(&OutboxStep::ALL[..]), 1..25);
    for n in 1..=40u128 {
        let walk = walks.new_tree(&mut runner).unwrap().current();
        store.accept_message(&a, id(n), "chat", "x").await.unwrap();
        let events = log.exchange(id(n), "y");
        log.append(&store, events).await.unwrap();
        let outbound = store.outbox(Some(&a), 1).await.unwrap()[0].outbound;
        let (mut state, mut uncertain, mut attempts) = (OutboxState::Prepared, false, 0);
        for step in &walk {
            let expected = state.after(*step, uncertain);
            let found = store.outbound_step(outbound, *step).await.unwrap();
            assert_eq!(found.as_ref().map(|o| o.state), expected, "{walk:?}");
            if let Some(found) = found {
                state = found.state;
                uncertain |= *step == OutboxStep::Lost;
                attempts += u32::from(matches!(step, OutboxStep::Claim | OutboxStep::Redeliver));
                assert_eq!(found.attempts, attempts);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_is_decided_once_and_used_once_for_exactly_its_request() {
    let cluster = TestCluster::start().await;
    let store = cluster.store().await;
    let log = session(&store, "a").await;
    let payload = choir_messages::json::Json(serde_json::json!({"tool": "t", "text": "a\u{0}b", "n": 1.5}));
    let ask = || store.request_approval(log.row.session, "tool_call", &payload);
    let asked = ask().await.unwrap();
    assert_eq!(ask().await.unwrap(), asked, "the same request is the same row");
    assert_eq!((asked.agent.as_str(), &asked.payload, asked.used), ("a", &payload, false));
    assert!(!store.use_approval(asked.approval, asked.payload_hash).await.unwrap(), "nobody has said yes");
    assert!(store.decide_approval(asked.approval, true).await.unwrap());
    assert!(!store.decide_approval(asked.approval, false).await.unwrap());
    assert!(!store.use_approval(asked.approval, choir_messages::chain::Digest::ZERO).await.unwrap());
    assert!(store.use_approval(asked.approval, asked.payload_hash).await.unwrap());
    assert!(!store.use_approval(asked.approval, asked.payload_hash).await.unwrap());
    assert!(store.approval(asked.approval).await.unwrap().unwrap().used);
    let again = ask().await.unwrap();
    assert_ne!(again.approval, asked.approval, "a used approval does not answer a new request");
    assert_eq!(store.pending_approvals().await.unwrap(), [again]);
}
