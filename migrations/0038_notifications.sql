-- Mail and webhooks about jobs. What is to leave the cluster is committed with the state change that it is about, and
-- removed once it was delivered: nothing is lost if the controller ends in between.
ALTER TABLE submissions
    -- Whether its user requests mail; NULL for the others, so that they cost nothing.
    ADD COLUMN mails  boolean,
    -- The events that are mailed once for all its tasks, and were.
    ADD COLUMN mailed text[];

CREATE TABLE notifications (
    notification uuid PRIMARY KEY DEFAULT gen_random_uuid(),
    -- The order in which they were written.
    sequence     bigint GENERATED ALWAYS AS IDENTITY,
    channel      text NOT NULL CHECK (channel IN ('mail', 'webhook')),
    job          bigint NOT NULL,
    -- The attempt that has to run when it leaves, if it is about a part of a time limit.
    attempt      uuid,
    event        text NOT NULL,
    -- control::notifications::NotificationBody.
    body         jsonb NOT NULL,
    -- When it was due first: its age counts from then on.
    created_at   timestamptz NOT NULL DEFAULT now(),
    due_at       timestamptz NOT NULL DEFAULT now(),
    tries        integer NOT NULL DEFAULT 0 CHECK (tries >= 0),
    -- Whether the leader is delivering it; a new leader takes this back.
    claimed      boolean NOT NULL DEFAULT false,
    -- Why the last try failed.
    problem      text
);
CREATE INDEX notifications_due ON notifications (channel, due_at, sequence);
CREATE INDEX notifications_marks ON notifications (job) WHERE attempt IS NOT NULL;
