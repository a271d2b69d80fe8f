//! The pass over a ledger: this thread cuts lines and folds what they came to, in order; workers look at the lines. What is
//! under way at once is bounded, so memory does not grow with the ledger.

use super::fold::Fold;
use super::line::{self, Context, Looked, What};
use super::lines::{Chunk, Lines};
use super::seal::{self, Seal};
use super::{comb, finding::Place};
use crate::event::EventType;
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

/// Workers at most. Past this the one thread that folds is the limit.
const MAX_WORKERS: usize = 8;

/// Chunks under way per worker: one in its hands, one waiting.
const CHUNKS_PER_WORKER: usize = 2;

/// Reads a whole ledger into the fold.
pub(super) fn run(reader: Box<dyn Read + '_>, context: &Context, fold: &mut Fold<'_>) -> io::Result<()> {
    let mut lines = Lines::new(reader);
    let Some(first) = lines.next_chunk()? else { return Ok(()) };
    let Some(second) = lines.next_chunk()? else {
        // One chunk only: no thread is worth its start.
        fold_all(look_at_all(&first, context), fold);
        return Ok(());
    };
    let workers = std::thread::available_parallelism().map_or(1, std::num::NonZero::get).min(MAX_WORKERS);
    std::thread::scope(|scope| {
        let (jobs, todo) = sync_channel::<(u64, Chunk)>(workers * CHUNKS_PER_WORKER);
        let (done, results) = sync_channel::<(u64, Vec<Looked>)>(workers * CHUNKS_PER_WORKER);
        let todo = std::sync::Arc::new(Mutex::new(todo));
        for _ in 0..workers {
            let (todo, done) = (todo.clone(), done.clone());
            scope.spawn(move || work(&todo, &done, context));
        }
        drop(done);
        let mut waiting = [second, first].into_iter().collect::<Vec<_>>();
        let (mut sent, mut folded) = (0u64, 0u64);
        let mut early: BTreeMap<u64, Vec<Looked>> = BTreeMap::new();
        let bound = (workers * CHUNKS_PER_WORKER) as u64;
        loop {
            while sent - folded < bound && !fold.has_ended() {
                let chunk = match waiting.pop() {
                    Some(chunk) => Some(chunk),
                    None => lines.next_chunk()?,
                };
                let Some(chunk) = chunk else { break };
                if jobs.send((sent, chunk)).is_err() {
                    break;
                }
                sent += 1;
            }
            if folded == sent || fold.has_ended() {
                return Ok(());
            }
            let Ok((number, looked)) = results.recv() else { return Ok(()) };
            early.insert(number, looked);
            while let Some(looked) = early.remove(&folded) {
                fold_all(looked, fold);
                folded += 1;
            }
        }
    })
}

fn work(todo: &Mutex<Receiver<(u64, Chunk)>>, done: &SyncSender<(u64, Vec<Looked>)>, context: &Context) {
    loop {
        let job = todo.lock().map(|todo| todo.recv());
        let Ok(Ok((number, chunk))) = job else { return };
        if done.send((number, look_at_all(&chunk, context))).is_err() {
            return;
        }
    }
}

fn look_at_all(chunk: &Chunk, context: &Context) -> Vec<Looked> {
    let looked = chunk
        .lines
        .iter()
        .map(|line| line::look(line, chunk.bytes.get(line.bytes.clone()).unwrap_or_default(), context));
    let mut looked: Vec<Looked> = looked.collect();
    settle(&mut looked, context);
    looked
}

/// Settles the signatures that were computed.
fn settle(looked: &mut [Looked], context: &Context) {
    let mut equations = Vec::new();
    let mut whose = Vec::new();
    for (index, item) in looked.iter_mut().enumerate() {
        let What::Event(seen) = &mut item.what else { continue };
        match std::mem::replace(&mut seen.seal, Seal::NotGood) {
            Seal::Pending { equation, bound } => {
                equations.push(equation);
                whose.push((index, bound));
            }
            settled => seen.seal = settled,
        }
    }
    for ((index, bound), holds) in whose.into_iter().zip(comb::settle(&equations)) {
        let Some(item) = looked.get_mut(index) else { continue };
        let What::Event(seen) = &mut item.what else { continue };
        let place = Place { event: seen.name, line: Some(item.number) };
        let mandatory = seen.event_type.is_some_and(EventType::signature_is_mandatory);
        seen.seal = seal::conclude(holds, bound, mandatory, context.reading, place, &mut item.failures);
    }
}

fn fold_all(looked: Vec<Looked>, fold: &mut Fold<'_>) {
    for item in looked {
        fold.take(item);
    }
}
