//! Reading payloads into acts: the members that the strict reading requires (R11), and this implementation's own links.

use choir_messages::chain::Digest;

use super::policy::{Policy, RiskClass};
use super::refused::Refused;
use super::step::{Act, Judgement, MAX_LIST, MAX_NAME_BYTES, Subject, VerificationStatus};
use crate::event::EventType;
use crate::id::{ClaimId, EventId};
use crate::json::Value;

impl Act {
    /// Reads a payload of this type; refuses one that misses a member the strict reading requires (R11).
    pub fn read(event: EventType, payload: &Value<'_>) -> Result<Self, Refused> {
        let read = Reader { event, payload };
        Ok(match event {
            EventType::SessionInitialized => {
                Self::Session { policy: Policy::of_session(payload)?.map(Box::new) }
            }
            EventType::ProposalCreated => {
                read.text("objective")?;
                read.list("assumptions")?;
                read.list("expected_evidence")?;
                Self::Proposal {
                    tools: read.names("required_tools")?,
                    revises: read.link("revises_event_id")?,
                    fallback_of: read.optional_name("fallback_of_execution_id")?,
                }
            }
            EventType::ProposalReviewed => Self::Review {
                judgement: Judgement::of(read.text("proposal_status")?),
                subject: match (read.link("intent_event_id")?, read.link("proposal_event_id")?) {
                    (Some(intent), _) => Subject::Intent(intent),
                    (None, Some(proposal)) => Subject::Proposal(proposal),
                    (None, None) => Subject::Next,
                },
            },
            EventType::ToolIntentSigned => {
                read.digest("normalized_input_hash")?;
                read.text("justification")?;
                Self::Intent {
                    tool: read.name("tool_name")?,
                    class: RiskClass::of(read.text("safety_classification")?),
                    proposal: read.link("proposal_event_id")?,
                }
            }
            EventType::ToolExecutionStarted => Self::Started {
                tool: read.name("tool_name")?,
                execution: read.name("execution_id")?,
                intent: read.link("intent_event_id")?,
            },
            EventType::ToolExecutionCompleted => {
                read.number("exit_status")?;
                Self::Ended {
                    execution: read.name("execution_id")?,
                    outputs: read.digests("output_artifact_hashes")?,
                    failed: false,
                }
            }
            EventType::ToolExecutionFailed => Self::Ended {
                execution: read.name("execution_id")?,
                outputs: match payload.get("output_artifact_hashes") {
                    None => Vec::new(),
                    Some(_) => read.digests("output_artifact_hashes")?,
                },
                failed: true,
            },
            EventType::ArtifactRecorded => Self::Recorded,
            EventType::ClaimIssued => {
                let confidence = payload.get("confidence").and_then(Value::as_f64);
                if !confidence.is_some_and(|confidence| (0.0..=1.0).contains(&confidence)) {
                    return Err(read.wrong("confidence", "a number from 0 to 1"));
                }
                Self::Claim {
                    claim: read.claim("claim_id")?,
                    text: Digest::of(read.text("claim_text")?.as_bytes()),
                    evidence: read.digests("evidence_artifacts")?,
                    resolved: payload.get("resolved").and_then(Value::as_bool).unwrap_or(false),
                }
            }
            EventType::ClaimChallenged => Self::Challenge { claim: read.claim("challenged_claim_id")? },
            EventType::FinalStatementSigned => {
                read.text("final_verdict_text")?;
                let wrong = || read.wrong("consolidated_claim_ids", "a list of claim ids");
                let ids = read.list("consolidated_claim_ids")?;
                let claims =
                    ids.iter().map(|id| id.as_str().and_then(|id| id.parse().ok()).ok_or_else(wrong));
                Self::Final { claims: claims.collect::<Result<_, _>>()? }
            }
            EventType::VerificationRunStarted => Self::VerificationStarted {
                profile: match payload.get("policy_profile").and_then(Value::as_str) {
                    None => None,
                    Some(word) => {
                        let profile = word.parse().ok();
                        Some(
                            profile
                                .ok_or_else(|| read.wrong("policy_profile", "strict, default or lenient"))?,
                        )
                    }
                },
            },
            EventType::VerificationRunCompleted => {
                let form = "pass, pass-with-warnings or fail";
                let status = match read.text("verification_status")? {
                    "pass" => VerificationStatus::Pass,
                    "pass-with-warnings" => VerificationStatus::PassWithWarnings,
                    "fail" => VerificationStatus::Fail,
                    _ => return Err(read.wrong("verification_status", form)),
                };
                if read.link("report_id")?.is_none() {
                    return Err(read.wrong("report_id", "a ULID"));
                }
                Self::VerificationCompleted { status }
            }
        })
    }
}

struct Reader<'a> {
    event: EventType,
    payload: &'a Value<'a>,
}

impl<'a> Reader<'a> {
    fn wrong(&self, member: &'static str, form: &'static str) -> Refused {
        Refused::Payload { event: self.event, member, form }
    }

    fn text(&self, member: &'static str) -> Result<&'a str, Refused> {
        let text = self.payload.get(member).and_then(Value::as_str).filter(|text| !text.is_empty());
        text.ok_or_else(|| self.wrong(member, "a text"))
    }

    fn name(&self, member: &'static str) -> Result<String, Refused> {
        let name = self.text(member)?;
        if name.len() > MAX_NAME_BYTES {
            Err(self.wrong(member, "at most 256 bytes"))
        } else {
            Ok(name.into())
        }
    }

    fn optional_name(&self, member: &'static str) -> Result<Option<String>, Refused> {
        if self.payload.get(member).is_none_or(Value::is_null) {
            Ok(None)
        } else {
            self.name(member).map(Some)
        }
    }

    fn number(&self, member: &'static str) -> Result<(), Refused> {
        let number = self.payload.get(member).and_then(Value::as_f64);
        number.map(|_| ()).ok_or_else(|| self.wrong(member, "a number"))
    }

    fn list(&self, member: &'static str) -> Result<&'a [Value<'a>], Refused> {
        let list = self.payload.get(member).and_then(Value::as_array).filter(|list| list.len() <= MAX_LIST);
        list.ok_or_else(|| self.wrong(member, "a list of at most 4096 entries"))
    }

    fn names(&self, member: &'static str) -> Result<Vec<String>, Refused> {
        let name =
            |value: &Value<'_>| value.as_str().filter(|name| name.len() <= MAX_NAME_BYTES).map(str::to_owned);
        let names = self.list(member)?.iter().map(name).collect::<Option<_>>();
        names.ok_or_else(|| self.wrong(member, "a list of names"))
    }

    fn digest(&self, member: &'static str) -> Result<Digest, Refused> {
        let digest = self.payload.get(member).and_then(Value::as_str).and_then(|text| text.parse().ok());
        digest.ok_or_else(|| self.wrong(member, "64 lower-case hex digits"))
    }

    fn digests(&self, member: &'static str) -> Result<Vec<Digest>, Refused> {
        let digest = |value: &Value<'_>| value.as_str().and_then(|text| text.parse().ok());
        let digests = self.list(member)?.iter().map(digest).collect::<Option<_>>();
        digests.ok_or_else(|| self.wrong(member, "a list of hashes, 64 lower-case hex digits each"))
    }

    fn link(&self, member: &'static str) -> Result<Option<EventId>, Refused> {
        match self.payload.get(member) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => {
                let id = value.as_str().and_then(|id| id.parse().ok());
                id.map(Some).ok_or_else(|| self.wrong(member, "a ULID"))
            }
        }
    }

    fn claim(&self, member: &'static str) -> Result<ClaimId, Refused> {
        let id = self.payload.get(member).and_then(Value::as_str).and_then(|id| id.parse().ok());
        id.ok_or_else(|| self.wrong(member, "claim_ and a ULID"))
    }
}
