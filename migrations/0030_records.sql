-- Jobs that ended in a period, for accounting and for lists of recent jobs. They end nearly in the order
-- of the table, so that an index of ranges is enough; it costs next to nothing to keep.
CREATE INDEX jobs_ended ON jobs USING brin (ended_at) WITH (pages_per_range = 16);

-- A time span in whole milliseconds, rounded down, as accounts add it up.
CREATE FUNCTION ms(span interval) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
AS $$ SELECT floor(extract(epoch FROM span) * 1000)::bigint $$;
