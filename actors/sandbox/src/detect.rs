//! Which sandbox this machine can have.

use std::sync::Arc;

use crate::{BubblewrapSandbox, ProcessSandbox, Sandbox, SandboxError};

/// What the operator asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preference {
    /// Bubblewrap where it works, else none, with a warning.
    #[default]
    Auto,
    /// Bubblewrap or an error.
    Bubblewrap,
    /// No isolation.
    Process,
}

/// The outcome of [`detect`].
pub struct Detected {
    /// The sandbox to use.
    pub sandbox: Arc<dyn Sandbox>,
    /// A sentence the operator must see, if agents will not be isolated.
    pub warning: Option<String>,
}

impl std::fmt::Debug for Detected {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detected")
            .field("sandbox", &self.sandbox.name())
            .field("warning", &self.warning)
            .finish()
    }
}

/// Picks the sandbox; bubblewrap is really tried once. Needs a tokio runtime with I/O and time.
pub async fn detect(preference: Preference) -> Result<Detected, SandboxError> {
    let reason = match preference {
        Preference::Process => "the configuration asks for it".to_owned(),
        Preference::Bubblewrap | Preference::Auto => match BubblewrapSandbox::probe().await {
            Ok(sandbox) => return Ok(Detected { sandbox: Arc::new(sandbox), warning: None }),
            Err(error) if preference == Preference::Bubblewrap => return Err(error),
            Err(error) => error.to_string(),
        },
    };
    Ok(Detected {
        sandbox: Arc::new(ProcessSandbox::new()?),
        warning: Some(format!("agents are not isolated from this machine (sandbox \"process\"): {reason}")),
    })
}
