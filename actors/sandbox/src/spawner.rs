//! The thread that starts agents. The kernel's "die with your parent" means the *thread* that forked, so that thread
//! must live as long as its children: it ends when the last handle to it is dropped, and every running agent holds one.

use std::io;
use std::process::{Child, Command};

use tokio::sync::{mpsc, oneshot};

use crate::SandboxError;
use crate::limits::SPAWN_QUEUE;

struct Job {
    command: Command,
    reply: oneshot::Sender<io::Result<Unclaimed>>,
}

/// A child nobody has taken charge of yet: killed when dropped.
struct Unclaimed(Option<Child>);

impl Unclaimed {
    fn claim(mut self) -> Option<Child> {
        self.0.take()
    }
}

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A handle to the thread.
#[derive(Debug, Clone)]
pub(crate) struct Spawner(mpsc::Sender<Job>);

impl Spawner {
    pub(crate) fn new() -> Result<Self, SandboxError> {
        let (sender, mut jobs) = mpsc::channel::<Job>(SPAWN_QUEUE);
        std::thread::Builder::new()
            .name("sandbox-parent".into())
            .spawn(move || {
                while let Some(Job { mut command, reply }) = jobs.blocking_recv() {
                    // When the asker has gone, the answer and the child in it are dropped here.
                    let _ = reply.send(command.spawn().map(|child| Unclaimed(Some(child))));
                }
            })
            .map_err(SandboxError::system("the thread that starts agents could not be created"))?;
        Ok(Self(sender))
    }

    /// Starts a command on the thread.
    pub(crate) async fn spawn(&self, command: Command) -> Result<Child, SandboxError> {
        let program = command.get_program().to_string_lossy().into_owned();
        let lost = || io::Error::other("the thread that starts agents is gone");
        let (reply, answer) = oneshot::channel();
        let outcome = match self.0.send(Job { command, reply }).await {
            Ok(()) => answer.await.unwrap_or_else(|_| Err(lost())),
            Err(_) => Err(lost()),
        };
        outcome
            .and_then(|child| child.claim().ok_or_else(lost))
            .map_err(|source| SandboxError::Spawn { program, source })
    }
}
