-- Nodes' certificates: who may join under which name, what was issued, and what was revoked.

-- Only the hash of an invitation's token is kept. It is used once: by the key that used it first.
CREATE TABLE node_invitations (
    id          text PRIMARY KEY CHECK (id ~ '^[0-9a-z]{8}$'),
    node        uuid NOT NULL,
    node_name   text NOT NULL,
    secret_hash bytea NOT NULL CHECK (octet_length(secret_hash) = 32),
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    expires_at  timestamptz NOT NULL,
    used_at     timestamptz,
    used_key    bytea CHECK (octet_length(used_key) = 32),
    CHECK ((used_at IS NULL) = (used_key IS NULL))
);
CREATE INDEX node_invitations_by_end ON node_invitations (expires_at);

CREATE TABLE node_certificates (
    -- In hexadecimal digits.
    serial     text PRIMARY KEY CHECK (serial ~ '^[0-9a-f]{2,80}$'),
    node       uuid NOT NULL,
    node_name  text NOT NULL,
    -- By its name, as it stands in the certificate.
    issuer     text NOT NULL,
    issued_at  timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz,
    revoked_by text,
    CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
CREATE INDEX node_certificates_of_node ON node_certificates (node);
CREATE INDEX node_certificates_by_end ON node_certificates (expires_at);

-- A node that was ever revoked is accepted only with a certificate of the table above: one that was made by
-- hand and never seen must not get around the revocation.
CREATE TABLE node_revocations (
    node       uuid PRIMARY KEY,
    revoked_at timestamptz NOT NULL DEFAULT now(),
    revoked_by text NOT NULL
);

-- Every controller on this database learns at once of a revocation, also of one that was made by hand, and of
-- the first certificate after it.
CREATE FUNCTION notify_node_certificates() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('tessera_node_certificates', '');
    RETURN NULL;
END
$$;
CREATE TRIGGER node_certificates_changed
    AFTER INSERT OR DELETE OR UPDATE ON node_certificates
    FOR EACH STATEMENT EXECUTE FUNCTION notify_node_certificates();
CREATE TRIGGER node_revocations_changed
    AFTER INSERT OR DELETE OR UPDATE ON node_revocations
    FOR EACH STATEMENT EXECUTE FUNCTION notify_node_certificates();
