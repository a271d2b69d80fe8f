use super::*;
use proptest::prelude::*;

fn stamps() -> impl Strategy<Value = Option<Stamp>> {
    prop::option::of((any::<u64>(), any::<u64>()).prop_map(|(seconds, nanos)| Stamp { seconds, nanos }))
}

#[derive(Debug, Clone)]
enum Owned {
    Call { to: u64, tag: u64, timeout_ms: Option<u64>, method: String, what: Vec<u8> },
    Reply { to: u64, tag: u64, what: Vec<u8> },
    Ping(Option<Stamp>),
    Pong(Option<Stamp>),
}

impl Owned {
    fn frame(&self) -> Frame<'_> {
        match self {
            Self::Call { to, tag, timeout_ms, method, what } => Frame::Call(Call {
                to: *to,
                tag: *tag,
                timeout_ms: *timeout_ms,
                method,
                has_metadata: false,
                what,
            }),
            Self::Reply { to, tag, what } => Frame::Reply(Reply { to: *to, tag: *tag, what }),
            Self::Ping(stamp) => Frame::Ping(*stamp),
            Self::Pong(stamp) => Frame::Pong(*stamp),
        }
    }
}

fn frames() -> impl Strategy<Value = Owned> {
    let what = prop::collection::vec(any::<u8>(), 0..2000);
    prop_oneof![
        (any::<u64>(), any::<u64>(), any::<Option<u64>>(), "[a-z.0-9]{0,20}", what.clone()).prop_map(
            |(to, tag, timeout_ms, method, what)| Owned::Call { to, tag, timeout_ms, method, what }
        ),
        (any::<u64>(), any::<u64>(), what).prop_map(|(to, tag, what)| Owned::Reply { to, tag, what }),
        stamps().prop_map(Owned::Ping),
        stamps().prop_map(Owned::Pong),
    ]
}

proptest! {
    #[test]
    fn a_frame_reads_back_as_it_was_written_and_its_length_is_right(owned in frames()) {
        let bytes = owned.frame().bytes();
        let (length, inside) = bytes.split_first_chunk::<8>().unwrap();
        prop_assert_eq!(u64::from_be_bytes(*length), inside.len() as u64);
        prop_assert_eq!(Frame::parse(inside), Ok(owned.frame()));
        prop_assert!(inside.len() <= owned.frame().payload().len() + crate::limits::FRAME_OVERHEAD);
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = Frame::parse(&bytes);
        let _ = local::node_says(&bytes);
    }

    #[test]
    fn no_mutation_of_a_frame_makes_the_reader_panic(
        owned in frames(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut: prop::sample::Index,
    ) {
        let mut bytes = owned.frame().bytes().split_off(8);
        for (place, value) in changes {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        let _ = Frame::parse(&bytes);
        let _ = Frame::parse(&bytes[..cut.index(bytes.len())]);
    }

    /// What is read is what is written on: if a frame is accepted, writing it anew gives the same frame.
    #[test]
    fn whatever_is_accepted_has_one_meaning(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(frame) = Frame::parse(&bytes)
            && !matches!(frame, Frame::Other(_) | Frame::Call(Call { has_metadata: true, .. }))
        {
            let again = frame.bytes();
            prop_assert_eq!(Frame::parse(&again[8..]), Ok(frame));
        }
    }
}

#[test]
fn a_repeated_or_unknown_field_is_refused_so_that_no_two_readers_differ() {
    let call = |body: &[u8]| {
        let mut inner = Vec::new();
        put_bytes_head(&mut inner, 2, body.len());
        inner.extend_from_slice(body);
        let mut outer = Vec::new();
        put_bytes_head(&mut outer, 2, inner.len());
        outer.extend_from_slice(&inner);
        outer
    };
    // to = 1, then to = 9: a lenient reader takes the last, another the first.
    assert_eq!(Frame::parse(&call(&[0x08, 1, 0x08, 9])), Err(Malformed));
    assert_eq!(Frame::parse(&call(&[0x38, 1])), Err(Malformed));
    assert!(Frame::parse(&call(&[0x08, 1])).is_ok());
    // Two messages in one frame: the generated decoder would take the last.
    let twice = [call(&[0x08, 1]), call(&[0x08, 9])].concat();
    assert_eq!(Frame::parse(&twice), Err(Malformed));
    assert_eq!(Frame::parse(&[]), Err(Malformed));
}
