//! Who an agent is on its link: what every envelope says, and what the hello says beside it.

use choir_messages::chain::Digest;
use choir_messages::event::Head;
use choir_messages::id::{AgentId, LeaseId, RequestId, SessionId};
use choir_messages::wire::{Envelope, Hello, Request, TraceContext, WIRE_VERSION};

/// An agent's identity for the life of its process.
#[derive(Debug, Clone)]
pub struct LinkIdentity {
    /// Which agent.
    pub agent: AgentId,
    /// Which session.
    pub session: SessionId,
    /// Under which lease.
    pub lease: LeaseId,
    /// And generation.
    pub generation: u64,
    /// Version of the binary or image.
    pub image_version: String,
    /// Hash of the tools' views.
    pub tool_manifest: Digest,
    /// Hash of the skills.
    pub skill_manifest: Digest,
    /// Reads the current span's trace context; a function, so that this crate needs no telemetry.
    pub trace: fn() -> TraceContext,
}

impl LinkIdentity {
    /// An envelope around one request.
    #[must_use]
    pub fn envelope(&self, body: Request) -> Envelope {
        Envelope {
            version: WIRE_VERSION,
            request: RequestId::fresh(),
            session: self.session,
            lease: self.lease,
            generation: self.generation,
            trace: (self.trace)(),
            body,
        }
    }

    /// The hello of a log that stands at `head`.
    #[must_use]
    pub fn hello(&self, head: Head) -> Request {
        Request::InitHello(Hello {
            agent: self.agent.clone(),
            image_version: self.image_version.clone(),
            tool_manifest: self.tool_manifest,
            skill_manifest: self.skill_manifest,
            head,
        })
    }
}
