-- Takes the guard of a state change, and fails unless the caller's epoch leads. Its caller needs no answer.

CREATE FUNCTION check_epoch(guard bigint, ours bigint) RETURNS void LANGUAGE plpgsql VOLATILE AS $$
DECLARE
    newest bigint := guarded_epoch(guard);
BEGIN
    IF newest <> ours THEN
        RAISE EXCEPTION USING
            ERRCODE = 'TS001',
            MESSAGE = format('the epoch %s does not lead', ours),
            DETAIL = newest::text;
    END IF;
END
$$;
