//! Catching an actor's panic with its place. Rust tells the place only to the process-wide hook, so one hook is put in
//! front of the one that is there: while an actor of ours is being polled on this thread it notes the place and stays
//! silent (the supervisor reports the exit), for every other panic it hands on to the former hook.

use crate::exit::{Exit, cut};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;

thread_local! {
    static WATCHING: Cell<bool> = const { Cell::new(false) };
    static NOTE: RefCell<Option<Note>> = const { RefCell::new(None) };
}

struct Note {
    message: String,
    location: String,
}

/// Puts the hook in place, once a process. A hook set later by someone else costs us the place of a panic, nothing
/// more.
pub(crate) fn install_hook() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let former = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if WATCHING.try_with(Cell::get).unwrap_or(false) {
                let note = Note {
                    message: text_of(info.payload()),
                    location: info.location().map(ToString::to_string).unwrap_or_default(),
                };
                let _ = NOTE.try_with(|place| place.replace(Some(note)));
            } else {
                former(info);
            }
        }));
    });
}

/// Runs `f`; a panic in it becomes [`Exit::Panicked`].
pub(crate) fn catch<R>(f: impl FnOnce() -> R) -> Result<R, Exit> {
    let before = WATCHING.replace(true);
    let result = panic::catch_unwind(AssertUnwindSafe(f));
    WATCHING.set(before);
    result.map_err(|payload| {
        let message = text_of(&*payload);
        // A panic that was caught and thrown on by the actor itself has an older note, which is not its place.
        let location = NOTE
            .with(RefCell::take)
            .filter(|note| note.message == message && !note.location.is_empty())
            .map(|note| note.location);
        Exit::Panicked { message: cut(message), location }
    })
}

fn text_of(payload: &(dyn Any + Send)) -> String {
    payload
        .downcast_ref::<&str>()
        .map(ToString::to_string)
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a text".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_caught_with_its_text_and_place() {
        install_hook();
        let line = line!() + 1;
        let exit = catch(|| panic!("the {} broke", "wheel")).unwrap_err();
        let Exit::Panicked { message, location } = exit else { panic!("not a panic: {exit}") };
        assert_eq!(message, "the wheel broke");
        let place = location.expect("the hook was in place");
        assert!(place.starts_with("supervisors/src/panics.rs") || place.contains("panics.rs"), "{place}");
        assert!(place.contains(&format!(":{line}:")), "{place} is not line {line}");
    }

    #[test]
    fn a_value_passes_through_and_watching_ends_with_the_call() {
        assert_eq!(catch(|| 7), Ok(7));
        assert!(!WATCHING.get());
    }

    #[test]
    fn a_panic_thrown_on_does_not_borrow_the_place_of_another() {
        install_hook();
        let exit = catch(|| {
            let _ = panic::catch_unwind(|| panic!("first"));
            panic::resume_unwind(Box::new("second"));
        })
        .unwrap_err();
        assert_eq!(exit, Exit::Panicked { message: "second".into(), location: None });
    }
}
