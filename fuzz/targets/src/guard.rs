//! The link's guard, between a hostile peer and the local node (DESIGN §4).

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Instant;

use choir_link::LinkLimits;
use choir_link::guard::{FromNode, FromPeer, Guard, Side, judge};
use choir_link::limits::{CALLS_IN_FLIGHT, FRAME_OVERHEAD, INBOUND_BYTES, REPLY_GRACE, UNANSWERED};
use choir_link::wire::{Frame, GATE, METHOD};

use crate::Input;

/// Process id of the gate behind the guard.
const LOCAL_GATE: u64 = 77;

/// The input is a side (one byte), then steps: whose it is (one byte: the peer, the node, or a write that is done) and
/// a frame behind its length. What is held is checked against a second account after each step; what passes is written
/// anew, addressed to the right gate and read by the node as the guard read it.
pub fn guard(data: &[u8]) -> bool {
    let mut input = Input::new(data);
    let side = if input.byte().is_some_and(|byte| byte % 2 == 1) { Side::Agent } else { Side::Host };
    let now = Instant::now();
    let limits = LinkLimits::default();
    let mut guard = Guard::new(side, LOCAL_GATE, &limits, now);
    let mut calls: BTreeMap<u64, usize> = BTreeMap::new();
    let mut asked: BTreeSet<u64> = BTreeSet::new();
    let mut unwritten = VecDeque::new();
    let mut passed = false;
    while let (Some(whose), Some(bytes)) = (input.byte(), input.piece()) {
        match whose % 3 {
            0 => match judge(&mut guard, bytes, now) {
                Ok(FromPeer::Forward(frame)) => {
                    passed = true;
                    assert_reads_back(&frame);
                    match frame {
                        Frame::Call(call) => {
                            assert_eq!(
                                (call.to, call.method, call.has_metadata),
                                (LOCAL_GATE, METHOD, false)
                            );
                            let most = (limits.call + REPLY_GRACE).as_millis();
                            assert!(call.timeout_ms.is_some_and(|ms| u128::from(ms) <= most));
                            assert!(call.what.len() <= side.call_bytes());
                            assert_eq!(calls.insert(call.tag, call.what.len() + FRAME_OVERHEAD), None);
                        }
                        Frame::Reply(reply) => {
                            assert!(asked.remove(&reply.tag), "an answer to nothing passed");
                            assert!(reply.what.len() <= side.reply_bytes());
                        }
                        Frame::Ping(_) | Frame::Pong(_) => {}
                        Frame::Other(kind) => panic!("a {kind:?} passed"),
                    }
                }
                Ok(FromPeer::Wait) => assert!(!calls.is_empty(), "it waits for nothing"),
                Err(_) => break,
            },
            1 => {
                let Ok(frame) = Frame::parse(bytes) else { continue };
                match guard.from_node(&frame) {
                    Ok(FromNode::Send(frame, written)) => {
                        assert_reads_back(&frame);
                        match frame {
                            Frame::Call(call) => {
                                assert_eq!((call.to, call.method), (GATE, METHOD));
                                asked.insert(call.tag);
                                unwritten.push_back((written, None));
                            }
                            Frame::Reply(reply) => {
                                assert_eq!(reply.to, GATE);
                                assert!(calls.contains_key(&reply.tag));
                                unwritten.push_back((written, Some(reply.tag)));
                            }
                            Frame::Ping(_) | Frame::Pong(_) => unwritten.push_back((written, None)),
                            Frame::Other(kind) => panic!("the peer was shown a {kind:?}"),
                        }
                    }
                    Ok(FromNode::Drop) => {}
                    Err(_) => {
                        assert!(asked.len() >= UNANSWERED);
                        break;
                    }
                }
            }
            _ => {
                if let Some((written, tag)) = unwritten.pop_front() {
                    guard.written(written);
                    tag.and_then(|tag| calls.remove(&tag));
                }
            }
        }
        let held = calls.values().sum::<usize>();
        assert_eq!(guard.in_flight(), (calls.len(), held));
        assert!(calls.len() <= CALLS_IN_FLIGHT && held <= INBOUND_BYTES && asked.len() <= UNANSWERED);
    }
    passed
}

fn assert_reads_back(frame: &Frame<'_>) {
    let written = frame.bytes();
    let (length, inside) = written.split_first_chunk::<8>().expect("a frame begins with its length");
    assert_eq!(u64::from_be_bytes(*length), inside.len() as u64);
    assert_eq!(Frame::parse(inside), Ok(*frame));
}
