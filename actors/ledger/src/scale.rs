//! Traces of any length whose every byte is fixed by a recipe, for benches and tests: two implementations that agree on
//! the head hash agree on the canonical form, the signed bytes and the signature of each event. The keys come from public
//! texts and protect nothing.

use crate::event::{Actor, BuildError, Descriptor, Event, EventType, Role, UnsignedEvent};
use crate::id::{ClaimId, EventId, ReportId, TraceId};
use crate::identity::{Identity, Registry, key_id};
use crate::json::Owned;
use crate::meta::{Participant, TraceMeta, TraceStatus};
use crate::payload::{self, ProposalStatus};
use choir_messages::chain::Digest;
use choir_messages::sign::SigningKey;
use choir_messages::time::Timestamp;
use std::path::Path;

/// The first event's time: 2026-03-01T00:00:00.000Z.
pub const T0: u64 = 1_772_323_200_000;

/// The shortest trace: the session, a proposal, its review, one cycle and the end.
pub const MIN_EVENTS: u64 = 11;

/// Blobs there are; cycle c reads blob c mod 16 and writes blob 16 + c mod 16.
const BLOBS: u64 = 32;

/// Events before the cycles and after them.
const FRAME: u64 = 6;

/// Events of a cycle.
const CYCLE: u64 = 5;

/// Claims the final statement names at most.
const CONSOLIDATED: usize = 10;

/// When the registry's entries were made.
const KEYS_MADE: &str = "2026-01-01T00:00:00.000Z";

/// The public test key of a role: the seed is the SHA-256 of a text.
#[must_use]
pub fn test_key(role: Role) -> SigningKey {
    SigningKey::from_seed(Digest::of(format!("ledger-golden-test-key/{role}-agent/1").as_bytes()).bytes())
}

/// The bytes of blob b.
#[must_use]
pub fn blob(b: u64) -> Vec<u8> {
    format!("{{\"blob\":{b}}}").into_bytes()
}

/// Writes a trace of the recipe, event by event. An iterator of exactly `n` events.
#[derive(Debug)]
pub struct Recipe {
    n: u64,
    next: u64,
    head: Digest,
    artifacts: u64,
    claims: std::collections::VecDeque<ClaimId>,
    signers: Vec<(Role, Actor, SigningKey)>,
    last_output: u64,
}

impl Recipe {
    /// The trace of `n` events; fewer than [`MIN_EVENTS`] are raised to that.
    #[must_use]
    pub fn new(n: u64) -> Self {
        let signers = Role::ALL.iter().map(|role| {
            let key = test_key(*role);
            let key_id = key_id(&key.public());
            (*role, Actor { agent_id: format!("{role}-agent"), role: *role, key_id }, key)
        });
        Self {
            n: n.max(MIN_EVENTS),
            next: 0,
            head: Digest::ZERO,
            artifacts: 0,
            claims: std::collections::VecDeque::new(),
            signers: signers.collect(),
            last_output: 0,
        }
    }

    /// The trace's id.
    #[must_use]
    pub const fn trace_id(&self) -> TraceId {
        TraceId::from_parts(T0, self.n as u128)
    }

    /// The meta file for the events written so far.
    #[must_use]
    pub fn meta(&self) -> TraceMeta {
        let participants = self.signers.iter().map(|(role, actor, _)| Participant {
            agent_id: actor.agent_id.clone(),
            role: *role,
            key_id: actor.key_id.clone(),
        });
        TraceMeta {
            schema_version: "1.0.0".to_owned(),
            trace_id: self.trace_id(),
            task_id: "scale".to_owned(),
            started_at: Timestamp::from_millis(T0).to_string(),
            status: TraceStatus::Succeeded,
            participants: participants.collect(),
            head_event_hash: self.head,
            event_count: self.next,
            artifact_count: self.artifacts,
            policy_profile: "default".to_owned(),
            config_fingerprint: None,
            tool_versions: None,
            ended_at: None,
            other: serde_json::Map::new(),
        }
    }

    /// The registry of the four test keys.
    #[must_use]
    pub fn registry(&self) -> Registry {
        let identities = self.signers.iter().map(|(role, actor, key)| {
            let mut name = role.as_str().to_owned();
            if let Some(first) = name.get_mut(..1) {
                first.make_ascii_uppercase();
            }
            Identity::new(&actor.agent_id, &format!("{name} Agent"), &[*role], &key.public(), KEYS_MADE)
        });
        Registry { identities: identities.collect(), ..Registry::empty(KEYS_MADE) }
    }

    /// What event `i` reports: its type, payload, claims and the blob it carries.
    fn event(&mut self, i: u64, id: EventId) -> (EventType, Owned, Vec<ClaimId>, Option<u64>) {
        let objective = format!("scale {}", self.n);
        let cycles = (self.n - FRAME) / CYCLE;
        match i {
            0 => (EventType::SessionInitialized, payload::session("scale", &objective, &[]), vec![], None),
            1 => {
                let (tools, evidence) = (["scale.tool".to_owned()], ["output".to_owned()]);
                let payload = payload::proposal(&objective, &[], &tools, &evidence);
                (EventType::ProposalCreated, payload, vec![], None)
            }
            2 => {
                let payload = payload::review(ProposalStatus::Approved, "low", "scale");
                (EventType::ProposalReviewed, payload, vec![], None)
            }
            _ if i < 3 + cycles * CYCLE => self.cycle((i - 3) / CYCLE, (i - 3) % CYCLE, id),
            _ if i < self.n - 3 => self.recorded(self.last_output),
            _ if i == self.n - 3 => {
                let claims: Vec<ClaimId> = self.claims.iter().copied().collect();
                let payload = payload::final_statement(&claims, "scale");
                (EventType::FinalStatementSigned, payload, claims, Some(self.last_output))
            }
            _ if i == self.n - 2 => {
                let payload = payload::verification_started("default");
                (EventType::VerificationRunStarted, payload, vec![], None)
            }
            _ => {
                let report = ReportId::from_parts(T0 + self.n, u128::from(self.n));
                let payload = payload::verification_completed("pass", report);
                (EventType::VerificationRunCompleted, payload, vec![], None)
            }
        }
    }

    fn cycle(&mut self, c: u64, step: u64, id: EventId) -> (EventType, Owned, Vec<ClaimId>, Option<u64>) {
        const TOOL: &str = "scale.tool";
        let (input, output) = (c % 16, 16 + c % 16);
        let hash = Digest::of(&blob(output));
        let execution = format!("exec_{c}");
        self.last_output = output;
        match step {
            0 => {
                let input = Digest::of(format!("{{\"cycle\":{c}}}").as_bytes());
                let payload = payload::intent(TOOL, &input, "standard", "scale");
                (EventType::ToolIntentSigned, payload, vec![], None)
            }
            1 => {
                let payload = payload::started(TOOL, &execution);
                (EventType::ToolExecutionStarted, payload, vec![], Some(input))
            }
            2 => {
                let payload = payload::completed(TOOL, &execution, 0, &[hash]);
                (EventType::ToolExecutionCompleted, payload, vec![], Some(output))
            }
            3 => self.recorded(output),
            _ => {
                let claim = ClaimId::from_bits(id.bits());
                self.claims.push_back(claim);
                if self.claims.len() > CONSOLIDATED {
                    self.claims.pop_front();
                }
                let payload = payload::claim(claim, &format!("cycle {c}"), 0.5, &[hash]);
                (EventType::ClaimIssued, payload, vec![claim], Some(output))
            }
        }
    }

    fn recorded(&self, output: u64) -> (EventType, Owned, Vec<ClaimId>, Option<u64>) {
        let payload = payload::recorded(&Digest::of(&blob(output)), "application/json");
        (EventType::ArtifactRecorded, payload, vec![], Some(output))
    }

    fn sign(&mut self) -> Result<Event, BuildError> {
        let i = self.next;
        let event_id = EventId::from_parts(T0 + i, u128::from(i));
        let created_at = Timestamp::from_millis(T0 + i);
        let trace_id = self.trace_id();
        let (event_type, payload, claims, blob_number) = self.event(i, event_id);
        let artifacts = blob_number.map(|b| {
            let at = created_at.to_string();
            Descriptor::of(&blob(b), "application/json", "utf-8", trace_id, event_id, &at)
        });
        self.artifacts += u64::from(artifacts.is_some());
        let (_, actor, key) = self
            .signers
            .iter()
            .find(|(role, ..)| *role == event_type.role())
            .expect("there is a signer for each role");
        let event = UnsignedEvent {
            trace_id,
            event_id,
            event_type,
            created_at,
            actor: actor.clone(),
            payload,
            claims,
            artifacts: artifacts.into_iter().collect(),
        };
        let event = event.sign(key, self.head)?;
        self.head = event.event_hash();
        self.next += 1;
        Ok(event)
    }
}

impl Iterator for Recipe {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        (self.next < self.n).then(|| self.sign().expect("the recipe's events are in the schema's form"))
    }
}

/// Writes the recipe's trace of `n` events as a whole home into an empty folder and returns the trace's id.
pub fn write_home(home: &Path, n: u64) -> std::io::Result<TraceId> {
    use std::io::Write as _;
    let mut recipe = Recipe::new(n);
    let trace = recipe.trace_id();
    std::fs::create_dir_all(home.join(crate::layout::trace_dir(trace)))?;
    let mut ledger = std::io::BufWriter::new(std::fs::File::create(home.join(crate::layout::events(trace)))?);
    for event in recipe.by_ref() {
        writeln!(ledger, "{}", event.line())?;
    }
    ledger.flush()?;
    std::fs::write(home.join(crate::layout::meta(trace)), serde_json::to_vec_pretty(&recipe.meta())?)?;
    std::fs::create_dir_all(home.join("keys"))?;
    std::fs::write(home.join(crate::layout::REGISTRY), serde_json::to_vec_pretty(&recipe.registry())?)?;
    for b in 0..BLOBS {
        let bytes = blob(b);
        let path = home.join(crate::layout::storage_uri(&Digest::of(&bytes)));
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(path, bytes)?;
    }
    Ok(trace)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The head hash and the digest of the ledger's bytes.
    fn run(n: u64) -> (String, String, u64) {
        use sha2::Digest as _;
        let mut recipe = Recipe::new(n);
        let mut file = sha2::Sha256::new();
        for event in recipe.by_ref() {
            file.update(event.line());
            file.update("\n");
        }
        (
            recipe.meta().head_event_hash.to_string(),
            hex::encode(file.finalize()),
            recipe.meta().artifact_count,
        )
    }

    #[test]
    fn the_recipe_gives_the_bytes_every_implementation_gives() {
        for (n, artifacts, head, file) in [
            (
                26,
                17,
                "e76089c1ece3d934a533842f4af8e7cd209ff10b1cdafe06af3b90818dca61f5",
                "a07400a172d84297ac6299d0c486914e462d2a5a5f9f414ba9021dc9aa9f2ef3",
            ),
            (
                100,
                77,
                "35a0715a55b8d62c8c8bd5af098f07993814c0af24b2f81a755d7281dfb55b79",
                "160027048a795271fefb43727d25a59f4f954aed2de2e3e99c1a302f3c3adb46",
            ),
            (
                1_000,
                797,
                "d1a12edb3b791119d81b6fa4e1d40884ee2564c50d310d5bbb7c35e76e0b5c25",
                "ca5562718fe9b343ab47da28669c1fd684e48512e3d866e9d83866bfdf49e7ea",
            ),
            (
                10_000,
                7_997,
                "5ba2c4c248993cc83b2cf43877e2aa13966ba056c18afe6458b499e18d73efc2",
                "be585147694c5175f98e1ec3b0bdd3921988bbf9043d20d991950ef11a55abba",
            ),
        ] {
            assert_eq!(run(n), (head.to_owned(), file.to_owned(), artifacts), "{n} events");
        }
    }
}
