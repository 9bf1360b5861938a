-- What orders a job among others, as it was submitted. Every query that needs it calls this function, so
-- that another field of the rank is added in one place.
CREATE FUNCTION queue_rank(spec json) RETURNS json LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT json_build_object('priority', spec -> 'priority', 'nice', COALESCE(spec -> 'nice', '0')) $$;
