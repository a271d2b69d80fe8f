-- What the CHAP Coordinator keeps: workspaces, their objects, their evidence, and what participants are owed.
--
-- Bodies and records are JSON texts (a record exactly as it was hashed), so U+0000 is escaped in them. Names come from
-- strangers and may be anything: a column `name` holds one as it is where it is short and harmless, and otherwise a
-- digest of it; then `name_json` holds the name itself. "C" collation makes the order of names that of their bytes.
-- Times are the Coordinator's clock, in milliseconds since 1970.
--
-- Rows below a workspace are written only in the statement that moves the workspace itself, so foreign keys would only
-- cost: what they would check is the join that produces the rows.

CREATE TABLE choir_control.chap_workspaces (
    ws         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    name       text COLLATE "C" NOT NULL UNIQUE,
    name_json  text,
    version    bigint NOT NULL CHECK (version >= 1),
    -- Entries in its log: the next one's seq.
    entries    bigint NOT NULL CHECK (entries >= 0),
    meta       text NOT NULL
) WITH (fillfactor = 60);

CREATE TABLE choir_control.chap_objects (
    ws         bigint NOT NULL,
    kind       text COLLATE "C" NOT NULL,
    name       text COLLATE "C" NOT NULL,
    name_json  text,
    body       text NOT NULL,
    open       boolean NOT NULL,
    due        bigint,
    PRIMARY KEY (ws, kind, name)
) WITH (fillfactor = 80);
CREATE INDEX chap_objects_open ON choir_control.chap_objects (ws, kind, name) WHERE open;
CREATE INDEX chap_objects_due ON choir_control.chap_objects (due) WHERE due IS NOT NULL;

CREATE TABLE choir_control.chap_entries (
    ws           bigint NOT NULL,
    seq          bigint NOT NULL CHECK (seq >= 0),
    arrived      bigint NOT NULL,
    refused      bigint,
    method       text COLLATE "C" NOT NULL,
    sender       text COLLATE "C",
    sender_json  text,
    -- The tasks' own names, as a JSON list; NULL for none.
    tasks_json   text,
    record       text NOT NULL,
    prev_hash    text,
    PRIMARY KEY (ws, seq)
);
CREATE INDEX chap_entries_by_method ON choir_control.chap_entries (ws, method, seq);
CREATE INDEX chap_entries_by_sender ON choir_control.chap_entries (ws, sender, seq);
CREATE INDEX chap_entries_refused ON choir_control.chap_entries (ws, seq) WHERE refused IS NOT NULL;

-- Which entries are about a task.
CREATE TABLE choir_control.chap_entry_tasks (
    ws    bigint NOT NULL,
    task  text COLLATE "C" NOT NULL,
    seq   bigint NOT NULL,
    PRIMARY KEY (ws, task, seq)
);

CREATE TABLE choir_control.chap_notices (
    ws         bigint NOT NULL,
    recipient  text COLLATE "C" NOT NULL,
    number     bigint NOT NULL CHECK (number >= 1),
    body       text NOT NULL,
    PRIMARY KEY (ws, recipient, number)
);
