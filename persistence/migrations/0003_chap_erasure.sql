-- Redactions erase (specification §10.6). The change that records one carries an object of kind 'erasure', named after the
-- redacted entry; storing it overwrites that entry's record with its SHA-256, in the same statement, so that no moment
-- exists in which the redaction stands on the log and the content does too. What reads like this is
-- `messages::chap::ErasedRecord`.
--
-- The old row version stays in the table's file until the next vacuum; write-ahead logs and backups keep theirs.

CREATE FUNCTION choir_control.chap_erase() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE choir_control.chap_entries
    SET record = '{"erased":{"by_seq":' || (NEW.body::json ->> 'by_seq') || ',"digest":"sha256:'
        || encode(sha256(convert_to(record, 'UTF8')), 'hex') || '"}}'
    WHERE ws = NEW.ws AND seq = NEW.name::bigint;
    RETURN NULL;
END
$$;

CREATE TRIGGER chap_erase AFTER INSERT ON choir_control.chap_objects
    FOR EACH ROW WHEN (NEW.kind = 'erasure') EXECUTE FUNCTION choir_control.chap_erase();
