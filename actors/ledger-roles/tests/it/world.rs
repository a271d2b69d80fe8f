//! A trace in memory, a model that plays dice, and hands that run nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use choir_ledger::event::{Actor, Descriptor, Event, Role, UnsignedEvent};
use choir_ledger::id::{ClaimId, EventId, TraceId};
use choir_ledger::identity::key_id;
use choir_ledger::json::Owned;
use choir_ledger::scale::test_key;
use choir_ledger::trace::{Policy, PolicyProfile, Step, Trace};
use choir_ledger_roles::book::{Book, BookError, Ending};
use choir_ledger_roles::draft::{Draft, Piece};
use choir_ledger_roles::duty::{ToolInfo, form};
use choir_messages::chain::Digest;
use choir_messages::time::Timestamp;
use choir_messages::tool::SideEffect;
use serde_json::json;

/// What survives the book that writes it.
#[derive(Default)]
pub(crate) struct Shelf {
    pub(crate) events: Vec<Event>,
    pub(crate) blobs: BTreeMap<Digest, Vec<u8>>,
    pub(crate) ended: Option<(Ending, String)>,
    /// Whose key was revoked.
    pub(crate) revoked: Option<Role>,
    /// Whether a book is open: there is one writer, as in the store.
    pub(crate) held: bool,
}

/// A book in memory. Its clock is the number of its events, so a run looks the same every time.
pub(crate) struct MemoryBook {
    pub(crate) shelf: Arc<Mutex<Shelf>>,
    trace: Trace,
}

pub(crate) const TRACE: TraceId = TraceId::from_bits(1 << 90);

/// When the first event is.
pub(crate) const BEGAN: u64 = 1_800_000_000_000;

impl MemoryBook {
    pub(crate) fn open(shelf: &Arc<Mutex<Shelf>>) -> Self {
        shelf.lock().unwrap().held = true;
        let mut trace = Trace::new(Policy::protocol(PolicyProfile::Default));
        for event in &shelf.lock().unwrap().events {
            trace.apply(&Step::of(event).unwrap()).unwrap();
        }
        Self { shelf: Arc::clone(shelf), trace }
    }

    fn one(&mut self, role: Role, draft: &Draft, now: u64) -> Result<Event, BookError> {
        let shelf = Arc::clone(&self.shelf);
        let mut shelf = shelf.lock().unwrap();
        let key = test_key(role);
        let place = shelf.events.len() as u64;
        let at = Timestamp::from_millis(now.max(shelf.events.last().map_or(0, |e| e.created_at().millis())));
        let event_id = EventId::from_parts(at.millis(), u128::from(place));
        let mut artifacts = Vec::new();
        for piece in &draft.artifacts {
            artifacts.push(match piece {
                Piece::New { text, media_type } => {
                    shelf.blobs.insert(Digest::of(text.as_bytes()), text.clone().into_bytes());
                    let at = at.to_string();
                    Descriptor::of(text.as_bytes(), media_type, "utf-8", TRACE, event_id, &at)
                }
                Piece::Again(hash) => {
                    let known = shelf.events.iter().flat_map(Event::artifacts);
                    known
                        .into_iter()
                        .find(|d| d.artifact_hash.to_string() == *hash)
                        .expect("carried before")
                        .clone()
                }
            });
        }
        let unsigned = UnsignedEvent {
            trace_id: TRACE,
            event_id,
            event_type: draft.kind,
            created_at: at,
            actor: Actor {
                agent_id: format!("{}-agent", role.as_str()),
                role,
                key_id: key_id(&key.public()),
            },
            payload: Owned::from(draft.payload.clone()),
            claims: draft.claims.iter().map(|id| id.parse::<ClaimId>().unwrap()).collect(),
            artifacts,
        };
        let prev = shelf.events.last().map_or(Digest::ZERO, Event::event_hash);
        let event = unsigned.sign(&key, prev).map_err(|error| BookError::Failed(error.to_string()))?;
        let step = Step::of(&event).map_err(|refused| BookError::Refused(refused.to_string()))?;
        self.trace.apply(&step).map_err(|refused| BookError::Refused(refused.to_string()))?;
        shelf.events.push(event.clone());
        Ok(event)
    }

    pub(crate) fn append_at(
        &mut self,
        role: Role,
        drafts: &[Draft],
        now: u64,
    ) -> Result<Vec<Event>, (Vec<Event>, BookError)> {
        if self.shelf.lock().unwrap().revoked == Some(role) {
            return Err((Vec::new(), BookError::NoSigner(format!("the {role}'s key was revoked"))));
        }
        let mut done = Vec::new();
        for draft in drafts {
            match self.one(role, draft, now) {
                Ok(event) => done.push(event),
                Err(error) => return Err((done, error)),
            }
        }
        Ok(done)
    }
}

impl Drop for MemoryBook {
    fn drop(&mut self) {
        self.shelf.lock().unwrap().held = false;
    }
}

impl Book for MemoryBook {
    fn trace(&self) -> TraceId {
        TRACE
    }

    fn events(&self) -> Result<Vec<Event>, BookError> {
        Ok(self.shelf.lock().unwrap().events.clone())
    }

    fn append(&mut self, role: Role, drafts: &[Draft]) -> Result<Vec<Event>, (Vec<Event>, BookError)> {
        self.append_at(role, drafts, Timestamp::now().millis())
    }

    fn artifact(&self, hash: &Digest) -> Option<Vec<u8>> {
        self.shelf.lock().unwrap().blobs.get(hash).cloned()
    }

    fn checkpoint(&mut self) -> Result<(), BookError> {
        Ok(())
    }

    fn finish(self: Box<Self>, ending: Ending, reason: &str) -> Result<(), BookError> {
        self.shelf.lock().unwrap().ended = Some((ending, reason.to_owned()));
        Ok(())
    }
}

/// Three tools: one that looks, one that writes, one that can do anything.
pub(crate) fn tools() -> Arc<[ToolInfo]> {
    let tool = |name, side_effect| ToolInfo {
        view: form(
            name,
            "A tool.",
            json!({ "type": "object", "properties": { "path": { "type": "string" } }, "required": ["path"] }),
        ),
        side_effect,
    };
    [
        tool("choir.exec", SideEffect::Write),
        tool("choir.fs.read", SideEffect::Read),
        tool("choir.fs.write", SideEffect::Write),
    ]
    .into()
}
