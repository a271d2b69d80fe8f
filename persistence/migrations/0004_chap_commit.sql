-- What the Coordinator's committer calls to store a group of commits: one round trip, one transaction. It was one large
-- statement before; the server spent more time on starting the parts of its plan, needed or not, than on the rows.
--
-- The arrays are columns. An `ord` is a commit's place in the group, from 0 and without gaps; every other row names the
-- commit it belongs to. A workspace moves only from the version and the log's end that its commit builds on; of one that
-- does not fit, no row is written, and the others are not touched by that. The places of those that were written come
-- back.
CREATE FUNCTION choir_control.chap_commit(
    head_name text[], head_name_json text[], head_version_before bigint[], head_version_after bigint[],
    head_meta text[], head_entries_before bigint[], head_entries_after bigint[],
    removed_ord bigint[], removed_kind text[], removed_name text[],
    put_ord bigint[], put_kind text[], put_name text[], put_name_json text[], put_body text[], put_open boolean[],
    put_due bigint[],
    entry_ord bigint[], entry_seq bigint[], entry_arrived bigint[], entry_refused bigint[], entry_method text[],
    entry_sender text[], entry_sender_json text[], entry_tasks_json text[], entry_record text[], entry_prev_hash text[],
    about_ord bigint[], about_task text[], about_seq bigint[],
    notice_ord bigint[], notice_recipient text[], notice_number bigint[], notice_body text[]
) RETURNS bigint[] LANGUAGE plpgsql AS $$
DECLARE
    -- The workspaces' numbers by place, from 1; NULL for those that do not fit.
    numbers bigint[] := '{}';
    written bigint[] := '{}';
    found_ws bigint;
BEGIN
    FOR i IN 1 .. cardinality(head_name) LOOP
        found_ws := NULL;
        IF head_version_before[i] <> 0 THEN
            UPDATE choir_control.chap_workspaces w
            SET version = head_version_after[i], meta = head_meta[i],
                entries = COALESCE(head_entries_after[i], w.entries)
            WHERE w.name = head_name[i] AND w.version = head_version_before[i]
                AND w.entries = COALESCE(head_entries_before[i], w.entries)
            RETURNING w.ws INTO found_ws;
        ELSIF COALESCE(head_entries_before[i], 0) = 0 THEN
            INSERT INTO choir_control.chap_workspaces (name, name_json, version, entries, meta)
            VALUES (head_name[i], head_name_json[i], head_version_after[i], COALESCE(head_entries_after[i], 0),
                    head_meta[i])
            ON CONFLICT (name) DO NOTHING RETURNING ws INTO found_ws;
        END IF;
        numbers[i] := found_ws;
        IF found_ws IS NOT NULL THEN
            written := written || (i - 1)::bigint;
        END IF;
    END LOOP;
    -- Entries first: an object may order one of them erased.
    IF cardinality(entry_ord) > 0 THEN
        INSERT INTO choir_control.chap_entries
            (ws, seq, arrived, refused, method, sender, sender_json, tasks_json, record, prev_hash)
        SELECT numbers[e.ord + 1], e.seq, e.arrived, e.refused, e.method, e.sender, e.sender_json, e.tasks_json,
               e.record, e.prev_hash
        FROM UNNEST(entry_ord, entry_seq, entry_arrived, entry_refused, entry_method, entry_sender,
                    entry_sender_json, entry_tasks_json, entry_record, entry_prev_hash)
            AS e (ord, seq, arrived, refused, method, sender, sender_json, tasks_json, record, prev_hash)
        WHERE numbers[e.ord + 1] IS NOT NULL;
    END IF;
    IF cardinality(about_ord) > 0 THEN
        INSERT INTO choir_control.chap_entry_tasks (ws, task, seq)
        SELECT numbers[a.ord + 1], a.task, a.seq
        FROM UNNEST(about_ord, about_task, about_seq) AS a (ord, task, seq)
        WHERE numbers[a.ord + 1] IS NOT NULL;
    END IF;
    IF cardinality(removed_ord) > 0 THEN
        DELETE FROM choir_control.chap_objects o
        USING UNNEST(removed_ord, removed_kind, removed_name) AS r (ord, kind, name)
        WHERE o.ws = numbers[r.ord + 1] AND o.kind = r.kind AND o.name = r.name;
    END IF;
    IF cardinality(put_ord) > 0 THEN
        INSERT INTO choir_control.chap_objects (ws, kind, name, name_json, body, open, due)
        SELECT numbers[p.ord + 1], p.kind, p.name, p.name_json, p.body, p.open, p.due
        FROM UNNEST(put_ord, put_kind, put_name, put_name_json, put_body, put_open, put_due)
            AS p (ord, kind, name, name_json, body, open, due)
        WHERE numbers[p.ord + 1] IS NOT NULL
        ON CONFLICT (ws, kind, name) DO UPDATE SET body = EXCLUDED.body, open = EXCLUDED.open, due = EXCLUDED.due;
    END IF;
    IF cardinality(notice_ord) > 0 THEN
        INSERT INTO choir_control.chap_notices (ws, recipient, number, body)
        SELECT numbers[n.ord + 1], n.recipient, n.number, n.body
        FROM UNNEST(notice_ord, notice_recipient, notice_number, notice_body) AS n (ord, recipient, number, body)
        WHERE numbers[n.ord + 1] IS NOT NULL;
    END IF;
    RETURN written;
END
$$;
