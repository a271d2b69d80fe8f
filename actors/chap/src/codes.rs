//! The error codes of JSON-RPC and of CHAP's profiles (digest §3.13).

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $value:literal;)*) => { $($(#[$doc])* pub const $name: i64 = $value;)* };
}

codes! {
    /// The bytes are not JSON.
    PARSE = -32700;
    /// Not a JSON-RPC 2.0 call, too large, or too deep.
    REQUEST = -32600;
    /// No such method, or one of a profile that the workspace does not advertise.
    METHOD = -32601;
    /// The params do not fit the method.
    PARAMS = -32602;
    /// A fault of the Coordinator; no input leads here.
    INTERNAL = -32603;
    /// The task is not under review, or may not be put under review.
    NOT_REVIEWABLE = -32010;
    /// The sender may not do this.
    NOT_AUTHORISED = -32011;
    /// The JSON Patch does not apply.
    PATCH_FAILED = -32012;
    /// The review's deadline has passed.
    REVIEW_LAPSED = -32013;
    /// A review is open with other content or another rule.
    REVIEW_ALREADY_OPEN = -32014;
    /// The whisper has its answer.
    WHISPER_ALREADY_ANSWERED = -32020;
    /// The whisper's deadline has passed.
    WHISPER_LAPSED = -32021;
    /// The answer is none of the options.
    WHISPER_OPTION_NOT_IN_SET = -32022;
    /// The voter is not on the list.
    DELIBERATION_VOTER_NOT_IN_LIST = -32030;
    /// The voter has voted.
    DELIBERATION_ALREADY_VOTED = -32031;
    /// The deliberation is closed or past its deadline.
    DELIBERATION_NOT_OPEN = -32032;
    /// No such decision rule.
    DELIBERATION_UNKNOWN_RULE = -32033;
    /// The mode is above the workspace's ceiling.
    MODE_CEILING_EXCEEDED = -32040;
    /// A promotion needs a fresh login.
    MODE_STEP_UP_REQUIRED = -32041;
    /// A task is not the proposer's to hand over.
    HANDOFF_TASK_NOT_PROPOSERS = -32050;
    /// The handoff is accepted or declined already.
    HANDOFF_ALREADY_RESOLVED = -32051;
    /// The recipient is not a member, or the caller is not the recipient.
    HANDOFF_RECIPIENT_NOT_MEMBER = -32052;
    /// A control operation needs a fresh login.
    CONTROL_STEP_UP_REQUIRED = -32060;
    /// The task's state does not allow this control operation.
    CONTROL_NOT_AUTHORISED = -32061;
    /// No such snapshot.
    CONTROL_SNAPSHOT_NOT_FOUND = -32062;
    /// The workspace or the participant is paused, or the workspace is closed.
    CONTROL_PAUSED = -32063;
    /// The signature is missing, malformed or wrong.
    SIGNATURE_FAILED = -32070;
    /// No such key of this member is valid.
    SIGNATURE_KEY_NOT_FOUND = -32071;
    /// The key is revoked.
    SIGNATURE_KEY_REVOKED = -32072;
    /// A rotation is not signed with the old key.
    SIGNATURE_ROTATION_MISMATCH = -32073;
    /// The decision's digest is not that of the artefact under review.
    ARTEFACT_DIGEST_MISMATCH = -32074;
    /// The transparency service does not answer.
    SCITT_UNREACHABLE = -32080;
    /// The transparency service refuses the statement.
    SCITT_STATEMENT_REJECTED = -32081;
    /// The receipt does not verify.
    SCITT_RECEIPT_INVALID = -32082;
    /// The login is too old or too weak for this method.
    OIDC_STEP_UP_REQUIRED = -32402;
    /// The ID token does not verify.
    OIDC_TOKEN_INVALID = -32403;
    /// The ID token belongs to another participant.
    OIDC_CNF_MISMATCH = -32404;
    /// The ID token lacks a scope.
    OIDC_SCOPE_MISSING = -32405;
    /// The presentation does not verify.
    VC_PRESENTATION_INVALID = -32410;
    /// The presentation's holder is another.
    VC_HOLDER_BINDING_INVALID = -32411;
    /// The credential is revoked.
    VC_CREDENTIAL_REVOKED = -32412;
    /// The credential's schema is unknown.
    VC_SCHEMA_UNKNOWN = -32413;
    /// No candidate can take the task.
    ROUTING_NO_ELIGIBLE_ASSIGNEE = -32510;
    /// The choice breaks the routing policy.
    ROUTING_POLICY_VIOLATION = -32511;
    /// An automatic escalation was triggered.
    ROUTING_AUTO_ESCALATION = -32512;
    /// No candidates were given.
    ROUTING_CANDIDATES_EMPTY = -32513;
    /// There are no hints to decide a depth by.
    ROUTING_DEPTH_NOT_APPLICABLE = -32514;
    /// The routing policy does not answer.
    ROUTING_POLICY_UNREACHABLE = -32515;
    /// Nobody is there to escalate to.
    ROUTING_ESCALATION_TARGET_UNAVAILABLE = -32516;
}
