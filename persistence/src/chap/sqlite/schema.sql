-- What a Coordinator keeps in a file of its own: the tables of the migrations 0002 to 0004, as SQLite has them.
--
-- A column `name` holds a stranger's name as it is where it is short and harmless, and otherwise a digest of it; then
-- `name_json` holds the name itself. Names are ordered by their bytes. Times are the Coordinator's clock, in milliseconds
-- since 1970.

CREATE TABLE workspaces (
    ws         INTEGER PRIMARY KEY,
    name       TEXT NOT NULL UNIQUE,
    name_json  TEXT,
    version    INTEGER NOT NULL,
    -- Entries in its log: the next one's seq.
    entries    INTEGER NOT NULL,
    meta       TEXT NOT NULL
) STRICT;

CREATE TABLE objects (
    ws         INTEGER NOT NULL,
    kind       TEXT NOT NULL,
    name       TEXT NOT NULL,
    name_json  TEXT,
    body       TEXT NOT NULL,
    open       INTEGER NOT NULL CHECK (open IN (0, 1)),
    due        INTEGER,
    PRIMARY KEY (ws, kind, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX objects_open ON objects (ws, kind, name) WHERE open;
CREATE INDEX objects_due ON objects (due) WHERE due IS NOT NULL;

CREATE TABLE entries (
    ws           INTEGER NOT NULL,
    seq          INTEGER NOT NULL,
    arrived      INTEGER NOT NULL,
    refused      INTEGER,
    method       TEXT NOT NULL,
    sender       TEXT,
    sender_json  TEXT,
    -- The tasks' own names, as a JSON list; NULL for none.
    tasks_json   TEXT,
    record       TEXT NOT NULL,
    prev_hash    TEXT,
    PRIMARY KEY (ws, seq)
) STRICT, WITHOUT ROWID;
CREATE INDEX entries_by_method ON entries (ws, method, seq);
CREATE INDEX entries_by_sender ON entries (ws, sender, seq);
CREATE INDEX entries_refused ON entries (ws, seq) WHERE refused IS NOT NULL;

-- Which entries are about a task.
CREATE TABLE entry_tasks (
    ws    INTEGER NOT NULL,
    task  TEXT NOT NULL,
    seq   INTEGER NOT NULL,
    PRIMARY KEY (ws, task, seq)
) STRICT, WITHOUT ROWID;

CREATE TABLE notices (
    ws         INTEGER NOT NULL,
    recipient  TEXT NOT NULL,
    number     INTEGER NOT NULL,
    body       TEXT NOT NULL,
    PRIMARY KEY (ws, recipient, number)
) STRICT, WITHOUT ROWID;

-- How far the tables are with the journal: the newest record that is in, the key that makes its records its own, and
-- whether it still has the text of something that was erased.
CREATE TABLE journal (
    id       INTEGER PRIMARY KEY CHECK (id = 1),
    key      BLOB NOT NULL CHECK (length(key) = 32),
    applied  INTEGER NOT NULL CHECK (applied >= 0),
    to_wipe  INTEGER NOT NULL CHECK (to_wipe IN (0, 1))
) STRICT;
INSERT INTO journal (id, key, applied, to_wipe) VALUES (1, randomblob(32), 0, 0);
