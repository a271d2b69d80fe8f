-- The control plane's tables (choir §23.1). Forward only: a change is a new file with the next number.
--
-- Times are the database's own clock. Foreign text (a user's message, an answer) may contain U+0000, which `text`
-- cannot hold, so columns named *_json hold a JSON text of it; events are kept as the exact canonical JSON that was
-- hashed, which `jsonb` would rewrite.

-- Milliseconds since 1970, as every Choir message carries time.
CREATE FUNCTION choir_control.to_ms(at timestamptz) RETURNS bigint
    LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
    RETURN (extract(epoch FROM at) * 1000)::bigint;

CREATE TABLE choir_control.agents (
    agent_id    text PRIMARY KEY CHECK (agent_id ~ '^[a-z0-9][a-z0-9_-]{0,62}$'),
    desired     text NOT NULL DEFAULT 'stopped' CHECK (desired IN ('running', 'stopped')),
    created_at  timestamptz NOT NULL DEFAULT now(),
    updated_at  timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE choir_control.sessions (
    session_id        text PRIMARY KEY,
    agent_id          text NOT NULL REFERENCES choir_control.agents,
    lease_id          text NOT NULL UNIQUE,
    generation        bigint NOT NULL CHECK (generation >= 1),
    status            text NOT NULL CHECK (status IN ('active', 'stopped', 'crashed', 'ended')),
    head_rev          bigint NOT NULL DEFAULT 0 CHECK (head_rev >= 0),
    head_hash         text NOT NULL DEFAULT repeat('0', 64) CHECK (char_length(head_hash) = 64),
    resource_bindings jsonb NOT NULL DEFAULT '[]',
    started_at        timestamptz NOT NULL DEFAULT now(),
    ended_at          timestamptz,
    CHECK ((status = 'active') = (ended_at IS NULL))
);
-- Invariant 11: at most one active session an agent.
CREATE UNIQUE INDEX sessions_one_active ON choir_control.sessions (agent_id) WHERE status = 'active';
CREATE INDEX sessions_by_agent ON choir_control.sessions (agent_id, session_id DESC);

CREATE TABLE choir_control.session_events (
    session_id  text NOT NULL REFERENCES choir_control.sessions,
    rev         bigint NOT NULL CHECK (rev >= 1),
    event_type  text NOT NULL,
    lane        text NOT NULL,
    canonical   text NOT NULL,
    hash        text NOT NULL CHECK (char_length(hash) = 64),
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_id, rev)
);

CREATE TABLE choir_control.session_snapshots (
    session_id  text NOT NULL REFERENCES choir_control.sessions,
    rev         bigint NOT NULL CHECK (rev >= 1),
    hash        text NOT NULL CHECK (char_length(hash) = 64),
    view_json   text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (session_id, rev)
);

-- Exclusive resources in use (choir §6.4). A row exists exactly while the lease is held.
CREATE TABLE choir_control.leases (
    kind        text NOT NULL,
    name        text NOT NULL,
    agent_id    text NOT NULL REFERENCES choir_control.agents,
    session_id  text NOT NULL REFERENCES choir_control.sessions,
    lease_id    text NOT NULL,
    granted_at  timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (kind, name)
);
CREATE INDEX leases_by_session ON choir_control.leases (session_id);

-- Users' messages, each stored before it is confirmed to its source; each ends in exactly one outcome.
CREATE TABLE choir_control.inbox (
    message_id        text PRIMARY KEY,
    seq               bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    agent_id          text NOT NULL REFERENCES choir_control.agents,
    source            text NOT NULL,
    text_json         text NOT NULL,
    received_at       timestamptz NOT NULL DEFAULT now(),
    recorded_session  text REFERENCES choir_control.sessions,
    recorded_rev      bigint,
    outcome           text CHECK (outcome IN ('answered', 'refused', 'failed', 'expired')),
    closed_rev        bigint,
    closed_at         timestamptz,
    CHECK ((recorded_session IS NULL) = (recorded_rev IS NULL)),
    CHECK ((outcome IS NULL) = (closed_at IS NULL)),
    CHECK (closed_rev IS NULL OR closed_at IS NOT NULL)
);
CREATE INDEX inbox_open ON choir_control.inbox (agent_id, seq) WHERE closed_at IS NULL;
CREATE INDEX inbox_by_agent ON choir_control.inbox (agent_id, seq DESC);

-- Messages to users, each born in the transaction of what it says.
CREATE TABLE choir_control.outbox (
    outbound_id  text PRIMARY KEY,
    seq          bigint GENERATED ALWAYS AS IDENTITY UNIQUE,
    message_id   text NOT NULL REFERENCES choir_control.inbox,
    agent_id     text NOT NULL REFERENCES choir_control.agents,
    kind         text NOT NULL CHECK (kind IN ('answer', 'notice')),
    text_json    text NOT NULL,
    state        text NOT NULL DEFAULT 'prepared'
                 CHECK (state IN ('prepared', 'sending', 'delivered', 'ambiguous', 'expired')),
    -- Whether an earlier attempt may have arrived: then it can never again be sent as if it were the first time.
    uncertain    boolean NOT NULL DEFAULT false,
    attempts     integer NOT NULL DEFAULT 0,
    created_at   timestamptz NOT NULL DEFAULT now(),
    updated_at   timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX outbox_one_answer ON choir_control.outbox (message_id) WHERE kind = 'answer';
CREATE INDEX outbox_unfinished ON choir_control.outbox (agent_id, seq)
    WHERE state IN ('prepared', 'sending', 'ambiguous');
CREATE INDEX outbox_by_agent ON choir_control.outbox (agent_id, seq DESC);

-- Tool calls that were committed, by the id under which a repeat is recognised (choir §13.3).
CREATE TABLE choir_control.invocations (
    session_id     text NOT NULL REFERENCES choir_control.sessions,
    invocation_id  text NOT NULL,
    tool           text NOT NULL,
    side_effect    text NOT NULL CHECK (side_effect IN ('read', 'write', 'external')),
    committed_rev  bigint NOT NULL,
    status         text NOT NULL DEFAULT 'committed'
                   CHECK (status IN ('committed', 'success', 'error', 'refused', 'cancelled', 'outcome_unknown')),
    result_rev     bigint,
    PRIMARY KEY (session_id, invocation_id),
    CHECK ((status = 'committed') = (result_rev IS NULL))
);

CREATE TABLE choir_control.pending_approvals (
    approval_id   text PRIMARY KEY,
    session_id    text NOT NULL REFERENCES choir_control.sessions,
    agent_id      text NOT NULL REFERENCES choir_control.agents,
    request_type  text NOT NULL,
    payload       text NOT NULL,
    payload_hash  text NOT NULL CHECK (char_length(payload_hash) = 64),
    status        text NOT NULL DEFAULT 'pending' CHECK (status IN ('pending', 'approved', 'rejected')),
    used_at       timestamptz,
    created_at    timestamptz NOT NULL DEFAULT now(),
    resolved_at   timestamptz,
    CHECK ((status = 'pending') = (resolved_at IS NULL)),
    CHECK (used_at IS NULL OR status = 'approved')
);
CREATE UNIQUE INDEX approvals_one_pending ON choir_control.pending_approvals (session_id, request_type, payload_hash)
    WHERE status = 'pending';
