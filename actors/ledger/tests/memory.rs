//! A program of its own, because it looks at the memory of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may panic, in its helpers too")]

use choir_ledger::id::TraceId;
use choir_ledger::layout;
use choir_ledger::verify::{Home, Options, Verdict, verify};
use std::io::{self, Read};
use std::path::Path;

/// A ledger that is made while it is read: `left` bytes of one line, again and again.
struct Endless {
    left: usize,
    at: usize,
}

const LINE: &[u8] =
    b"{\"schema_version\":\"1.0.0\",\"event_id\":\"none\",\"payload\":{\"text\":\"some words\"},\"claims\":[],\"artifacts\":[]}\n";

impl Read for Endless {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = buffer.len().min(self.left).min(LINE.len() - self.at);
        buffer[..len].copy_from_slice(&LINE[self.at..self.at + len]);
        self.at = (self.at + len) % LINE.len();
        self.left -= len;
        Ok(len)
    }
}

struct Long(usize);

impl Home for Long {
    fn open(&self, path: &Path) -> io::Result<Option<Box<dyn Read + '_>>> {
        let is_ledger = path == layout::events(TraceId::from_bits(1));
        Ok(is_ledger.then(|| Box::new(Endless { left: self.0, at: 0 }) as Box<dyn Read>))
    }
    fn traces(&self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// The most memory this process has held, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn memory_does_not_grow_with_the_ledger() {
    let run = |megabytes: usize| {
        let report = verify(&Long(megabytes << 20), TraceId::from_bits(1), Options::default());
        assert_eq!(report.verification_status, Verdict::Fail);
        report.metrics.event_count
    };
    let few = run(4);
    let before = peak();
    let many = run(24);
    assert!(many > 5 * few);
    // How many chunks are under way at the worst moment differs a little from run to run; twenty megabytes of lines, and ten
    // times that in their parsed form, would not pass.
    let grown = peak() - before;
    assert!(grown < 8 << 10, "six times the ledger took {grown} KiB more");
}
