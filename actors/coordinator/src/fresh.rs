//! Random bits for ids, from the system's generator. Drawn for many ids at once: asking costs as much as an ordinary step
//! of the rules.

use std::cell::RefCell;

/// Ids that one question to the system is enough for.
const AT_ONCE: usize = 32;

const EACH: usize = size_of::<u128>();

/// Bits that were drawn and not used yet.
struct Drawn {
    bytes: [u8; AT_ONCE * EACH],
    used: usize,
}

thread_local! {
    static DRAWN: RefCell<Drawn> = const { RefCell::new(Drawn { bytes: [0; AT_ONCE * EACH], used: AT_ONCE }) };
}

/// Bits that nobody has had before. The system's generator fails only before the kernel is seeded; ids are then still told
/// apart by their time.
pub(crate) fn bits() -> u128 {
    DRAWN.with_borrow_mut(|drawn| {
        if drawn.used >= AT_ONCE {
            drawn.used = 0;
            if getrandom::fill(&mut drawn.bytes).is_err() {
                drawn.used = AT_ONCE;
                return 0;
            }
        }
        let at = drawn.used * EACH;
        drawn.used += 1;
        let next = drawn.bytes.get(at..).and_then(|rest| rest.first_chunk());
        next.map_or(0, |bytes| u128::from_be_bytes(*bytes))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_bits_are_given_twice_whichever_thread_asks() {
        let many = || (0..1000).map(|_| bits()).collect::<Vec<u128>>();
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(many)).collect();
        let all: Vec<u128> = threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect();
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), 4000);
        // Every bit is sometimes set and sometimes not.
        assert_eq!(
            (all.iter().fold(0, |a, b| a | b), all.iter().fold(u128::MAX, |a, b| a & b)),
            (u128::MAX, 0)
        );
    }
}
