-- Who calls: personal tokens, the log of what callers did, and who submitted each job from where.

-- A token's secret is 256 random bits, so that its plain SHA-256 can be kept: there is nothing to guess.
CREATE TABLE api_tokens (
    id           text PRIMARY KEY CHECK (id ~ '^[0-9a-z]{8}$'),
    token_name   text NOT NULL,
    user_name    text NOT NULL,
    role         text NOT NULL CHECK (role IN ('metrics', 'user', 'operator', 'admin')),
    secret_hash  bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    -- Somebody else than its user: an administrator, whose word about the role counts.
    created_by   text NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT now(),
    expires_at   timestamptz NOT NULL,
    last_used_at timestamptz,
    revoked_at   timestamptz,
    revoked_by   text,
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
CREATE INDEX api_tokens_of_user ON api_tokens (user_name);

-- Every controller on this database learns at once of new and revoked tokens, also of those that were
-- revoked by hand.
CREATE FUNCTION notify_tokens() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tessera_tokens', '');
    RETURN NULL;
END
$$;
CREATE TRIGGER api_tokens_changed
    AFTER INSERT OR DELETE OR UPDATE OF revoked_at, expires_at, role ON api_tokens
    FOR EACH STATEMENT EXECUTE FUNCTION notify_tokens();

-- What callers changed, and what was refused to them. An accepted submit is no row here: its submission
-- names the caller.
CREATE TABLE audit_log (
    entry     bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at        timestamptz NOT NULL DEFAULT now(),
    -- NULL for a caller that could not prove a name.
    principal text,
    role      text,
    -- By what the name was proved, and from where.
    origin    text NOT NULL,
    -- Method and route, such as `POST /v1/jobs/{job}/cancel`.
    action    text NOT NULL,
    -- The path that was called.
    object    text NOT NULL,
    status    smallint NOT NULL
);
CREATE INDEX audit_log_of_principal ON audit_log (principal, entry);

-- Who submitted, if that is not the job's user: an operator who acted for the user. And from where.
ALTER TABLE submissions ADD COLUMN principal text, ADD COLUMN origin text;
DROP INDEX submissions_idempotency;
CREATE UNIQUE INDEX submissions_idempotency
    ON submissions (COALESCE(principal, user_name), idempotency_key)
    WHERE idempotency_key IS NOT NULL;
