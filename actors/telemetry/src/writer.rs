//! The log's writer: a thread behind a bounded queue. Whoever logs never waits; what does not fit is counted and said.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};

use choir_messages::time::Timestamp;

use crate::TelemetryError;
use crate::limits::QUEUE_LINES;

/// Where lines go.
#[derive(Debug, Clone, Default)]
pub(crate) struct Target {
    pub(crate) file: Option<PathBuf>,
    /// Folder for full log files; none: the file grows.
    pub(crate) archive: Option<PathBuf>,
    pub(crate) archive_lines: u64,
    pub(crate) stderr: bool,
    /// The name that the writer's own lines carry.
    pub(crate) source: String,
}

enum Job {
    Line(String),
    Flush(SyncSender<()>),
}

/// A handle to the writer; clones share it. The thread ends when the last one is dropped.
#[derive(Debug, Clone)]
pub(crate) struct LogWriter {
    jobs: SyncSender<Job>,
    dropped: Arc<AtomicU64>,
    source: Arc<str>,
}

impl LogWriter {
    /// Opens the file (mode 0600, folders 0700) and starts the thread.
    pub(crate) fn start(target: Target) -> Result<Self, TelemetryError> {
        let file = target.file.as_deref().map(open).transpose()?;
        let (jobs, queue) = sync_channel(QUEUE_LINES);
        let dropped = Arc::new(AtomicU64::new(0));
        let writer = Self { jobs, dropped: Arc::clone(&dropped), source: target.source.as_str().into() };
        std::thread::Builder::new()
            .name("log-writer".into())
            .spawn(move || Out { file, lines: 0, lost: 0, dropped, target }.run(&queue))
            .map_err(|source| TelemetryError::Thread { source })?;
        Ok(writer)
    }

    /// Hands a line over, without its line end. Never waits.
    pub(crate) fn line(&self, line: String) {
        if let Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) =
            self.jobs.try_send(Job::Line(line))
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A line of the telemetry itself, which must not pass through the tracing that it reports on.
    pub(crate) fn say(&self, level: &str, message: &str) {
        self.line(own_line(&self.source, level, message));
    }

    /// Lines dropped so far that the log does not mention yet.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Waits until everything handed over before is written. Blocks: call it off the runtime.
    pub(crate) fn flush(&self) {
        let (done, wait) = sync_channel(1);
        if self.jobs.send(Job::Flush(done)).is_ok() {
            let _ = wait.recv();
        }
    }
}

fn own_line(source: &str, level: &str, message: &str) -> String {
    serde_json::json!({
        "timestamp": Timestamp::now().to_string(),
        "level": level,
        "source": source,
        "message": message,
        "fields": {},
    })
    .to_string()
}

fn open(path: &Path) -> Result<File, TelemetryError> {
    let open = || {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        OpenOptions::new().append(true).create(true).mode(0o600).open(path)
    };
    open().map_err(|source| TelemetryError::LogFile { path: path.to_owned(), source })
}

/// The thread's side.
struct Out {
    file: Option<File>,
    /// Lines in the file.
    lines: u64,
    /// Lines that could not be written.
    lost: u64,
    dropped: Arc<AtomicU64>,
    target: Target,
}

impl Out {
    fn run(mut self, queue: &Receiver<Job>) {
        if self.target.archive.is_some()
            && let Some(file) = self.target.file.as_deref().and_then(|path| File::open(path).ok())
        {
            self.lines = BufReader::new(file).split(b'\n').map_while(Result::ok).count() as u64;
        }
        let mut batch = Vec::new();
        let mut flushes = Vec::new();
        while let Ok(first) = queue.recv() {
            let mut next = Some(first);
            // One write for all that is waiting; the bound keeps the file no further behind than one queue.
            while let Some(job) = next {
                match job {
                    Job::Line(line) => batch.push(line),
                    Job::Flush(done) => flushes.push(done),
                }
                next = if batch.len() < QUEUE_LINES { queue.try_recv().ok() } else { None };
            }
            let dropped = self.dropped.swap(0, Ordering::Relaxed);
            if dropped > 0 {
                let text = format!("{dropped} log lines were dropped because the log's queue was full");
                batch.push(own_line(&self.target.source, "WARN", &text));
            }
            self.write(&mut batch);
            for done in flushes.drain(..) {
                let _ = done.send(());
            }
        }
    }

    fn write(&mut self, batch: &mut Vec<String>) {
        if self.target.stderr {
            let mut err = BufWriter::new(io::stderr().lock());
            // Standard error may be a closed pipe; there is nobody left to tell.
            let _ = batch.iter().try_for_each(|line| writeln!(err, "{line}")).and_then(|()| err.flush());
        }
        if let Some(path) = self.target.file.clone() {
            if self.lost > 0 {
                let text =
                    format!("{} log lines were lost because the log file could not be written", self.lost);
                batch.push(own_line(&self.target.source, "WARN", &text));
            }
            match self.append(&path, batch) {
                Ok(()) => self.lost = 0,
                Err(_) => self.lost = self.lost.saturating_add(batch.len() as u64),
            }
        }
        batch.clear();
    }

    fn append(&mut self, path: &Path, batch: &[String]) -> io::Result<()> {
        let mut rest = batch;
        while !rest.is_empty() {
            if self.room() == 0 {
                self.archive(path)?;
            }
            let Some(file) = &self.file else { return Ok(()) };
            let (now, later) =
                rest.split_at(rest.len().min(usize::try_from(self.room()).unwrap_or(usize::MAX)));
            let mut out = BufWriter::new(file);
            now.iter().try_for_each(|line| writeln!(out, "{line}"))?;
            out.flush()?;
            self.lines += now.len() as u64;
            rest = later;
        }
        Ok(())
    }

    /// Lines that the file may still take.
    fn room(&self) -> u64 {
        if self.target.archive.is_none() {
            return u64::MAX;
        }
        self.target.archive_lines.max(1).saturating_sub(self.lines)
    }

    fn archive(&mut self, path: &Path) -> io::Result<()> {
        let Some(folder) = &self.target.archive else { return Ok(()) };
        move_to_archive(path, folder)?;
        self.file = Some(OpenOptions::new().append(true).create(true).mode(0o600).open(path)?);
        self.lines = 0;
        Ok(())
    }
}

/// Moves a finished log file to `<folder>/<timestamp>.log` and returns the new path; both must be on one file system.
/// No earlier archive is overwritten.
pub fn move_to_archive(path: &Path, folder: &Path) -> io::Result<PathBuf> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    let stamp = Timestamp::now().to_string().replace(':', "-");
    let mut target = folder.join(format!("{stamp}.log"));
    let mut n = 1;
    while fs::symlink_metadata(&target).is_ok() {
        target = folder.join(format!("{stamp}.{n}.log"));
        n += 1;
    }
    fs::rename(path, &target)?;
    Ok(target)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    fn target(dir: &Path) -> Target {
        Target {
            file: Some(dir.join("logs/choird.log")),
            archive: Some(dir.join("logs/archive/choird")),
            archive_lines: 3,
            stderr: false,
            source: "choird".into(),
        }
    }

    #[test]
    fn a_full_file_is_archived_and_no_line_is_lost_or_doubled() {
        let dir = tempfile::tempdir().unwrap();
        for lines in [2, 8] {
            // The second start finds a file that is partly full.
            let writer = LogWriter::start(target(dir.path())).unwrap();
            for i in 0..lines {
                writer.line(format!("line {i}"));
            }
            writer.flush();
        }
        let mut counts: Vec<usize> = fs::read_dir(dir.path().join("logs/archive/choird"))
            .unwrap()
            .map(|e| fs::read_to_string(e.unwrap().path()).unwrap().lines().count())
            .collect();
        let active = dir.path().join("logs/choird.log");
        counts.push(fs::read_to_string(&active).unwrap().lines().count());
        assert_eq!(counts, [3, 3, 3, 1]);
        assert_eq!(fs::metadata(active).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn dropped_lines_are_counted_in_the_log_itself() {
        let dir = tempfile::tempdir().unwrap();
        let writer = LogWriter::start(Target { archive: None, ..target(dir.path()) }).unwrap();
        writer.dropped.store(7, Ordering::Relaxed);
        writer.line("x".into());
        writer.flush();
        let text = fs::read_to_string(dir.path().join("logs/choird.log")).unwrap();
        assert!(text.contains("7 log lines were dropped"), "{text}");
        assert_eq!(writer.dropped(), 0);
    }

    #[test]
    fn a_full_queue_drops_and_does_not_wait() {
        let (jobs, queue) = sync_channel(1);
        let writer = LogWriter { jobs, dropped: Arc::default(), source: "x".into() };
        for _ in 0..4 {
            writer.line("x".into());
        }
        assert_eq!(writer.dropped(), 3);
        drop(queue);
        writer.line("x".into());
        assert_eq!(writer.dropped(), 4);
    }

    #[test]
    fn a_file_that_cannot_be_written_is_told_of_when_it_can_be_again() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target { archive: None, ..target(dir.path()) };
        let path = target.file.clone().unwrap();
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, "").unwrap();
        let mut out = Out {
            file: Some(File::open(&path).unwrap()), // opened for reading: writes fail
            lines: 0,
            lost: 0,
            dropped: Arc::default(),
            target,
        };
        out.write(&mut vec!["a".into(), "b".into()]);
        assert_eq!(out.lost, 2);
        out.file = Some(open(&path).unwrap());
        out.write(&mut vec!["c".into()]);
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.starts_with("c\n") && text.contains("2 log lines were lost"), "{text}");
    }

    #[test]
    fn a_log_file_that_cannot_be_opened_is_named() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("logs"), "a file").unwrap();
        let error = LogWriter::start(target(dir.path())).unwrap_err();
        assert!(error.to_string().contains("choird.log"), "{error}");
    }
}
