//! Foreign bytes against the guard: the input is a sequence of frames, each behind a two-byte length. No input may
//! panic, and what is held must stay within the link's bounds.
#![no_main]

use std::time::Instant;

use choir_link::LinkLimits;
use choir_link::guard::{FromPeer, Guard, Side, judge};
use choir_link::limits::{CALLS_IN_FLIGHT, INBOUND_BYTES};
use choir_link::wire::Frame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let now = Instant::now();
    let mut guard = Guard::new(Side::Host, 77, &LinkLimits::default(), now);
    let mut rest = data;
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let length = usize::from(u16::from_be_bytes(*length)).min(tail.len());
        let (frame, tail) = tail.split_at(length);
        rest = tail;
        match judge(&mut guard, frame, now) {
            // What passes is read by the node as the guard read it.
            Ok(FromPeer::Forward(passed)) => {
                let written = passed.bytes();
                assert_eq!(Frame::parse(&written[8..]), Ok(passed));
            }
            Ok(FromPeer::Wait) => {}
            Err(_) => return,
        }
        let (calls, bytes) = guard.in_flight();
        assert!(calls <= CALLS_IN_FLIGHT && bytes <= INBOUND_BYTES);
    }
});
