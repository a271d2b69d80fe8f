//! What must hold for every sequence of bytes that Choir reads from someone it does not trust: peers of the link, model
//! providers, models, files of operators, clients of the control socket and of the Coordinator. Each target is one
//! plain function from bytes to a verdict; libFuzzer drives them with nightly (`make fuzz`), and a test of the normal
//! suite replays the seeds through the same functions with stable, so that neither the targets nor the seeds can rot.
//! They promise to panic when a property is broken and at no other time, to keep nothing between two inputs, and to
//! stay in memory and below a private temporary folder.
//!
//! To add a target: write `pub fn name(data: &[u8]) -> bool` in a module here and list it in [`TARGETS`]; add
//! `fuzz_targets/name.rs` and its `[[bin]]` in `fuzz/Cargo.toml` (copies of a neighbour's); put at least one input that
//! is understood into `fuzz/seeds/name/` (made by `examples/seeds.rs` where it is not text). The replay test fails
//! until all of that is there. A finding's input goes into the same folder once it is mended.

mod bootstrap;
mod canonical_json;
mod chap_calls;
mod config;
mod control_lines;
mod event_log;
mod guard;
mod input;
mod ledger;
mod link_codec;
mod model_answer;
mod scrubber;
mod search;
mod tool_args;

pub use bootstrap::bootstrap;
pub use canonical_json::canonical_json;
pub use chap_calls::chap_calls;
pub use config::config;
pub use control_lines::control_lines;
pub use event_log::event_log;
pub use guard::guard;
pub use input::Input;
pub use ledger::{ledger_home, ledger_line, ledger_registry};
pub use link_codec::link_codec;
pub use model_answer::model_answer;
pub use scrubber::scrubber;
pub use search::search;
pub use tool_args::tool_args;

/// One function that reads foreign bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name: of the function, of its libFuzzer program, of its folder of seeds.
    pub name: &'static str,
    /// Reads one input and panics if a property is broken. True if the input was understood in its main part, so that
    /// a seed which no longer reaches what it was made for shows.
    pub run: fn(&[u8]) -> bool,
}

/// Every target.
pub const TARGETS: &[Target] = &[
    Target { name: "guard", run: guard },
    Target { name: "canonical_json", run: canonical_json },
    Target { name: "event_log", run: event_log },
    Target { name: "bootstrap", run: bootstrap },
    Target { name: "link_codec", run: link_codec },
    Target { name: "model_answer", run: model_answer },
    Target { name: "tool_args", run: tool_args },
    Target { name: "config", run: config },
    Target { name: "control_lines", run: control_lines },
    Target { name: "scrubber", run: scrubber },
    Target { name: "search", run: search },
    Target { name: "chap_calls", run: chap_calls },
    Target { name: "ledger_line", run: ledger_line },
    Target { name: "ledger_registry", run: ledger_registry },
    Target { name: "ledger_home", run: ledger_home },
];

/// What stands in inputs where a secret would: it must turn up in no error and no log.
pub(crate) const CANARY: &str = "canary";

/// Panics if a sentence for a person would run over several lines or move a terminal's cursor.
pub(crate) fn assert_one_line(sentence: &str) {
    assert!(!sentence.contains(char::is_control), "a sentence holds control characters: {sentence:?}");
}

/// Runs a future that waits for nothing but bytes that are already here.
pub(crate) fn block_on<T>(future: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .build()
            .expect("a runtime without threads and sockets needs nothing that could be missing");
    }
    RUNTIME.with(|runtime| runtime.block_on(future))
}
