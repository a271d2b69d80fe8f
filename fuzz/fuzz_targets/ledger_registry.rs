#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    choir_fuzz_targets::ledger_registry(data);
});
