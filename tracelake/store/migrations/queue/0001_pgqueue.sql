-- The Lite queue: messages, dead letters, and the functions that are the only way to either.
--
-- How it stays quick while messages come and go:
--   * A message is one row and at most two index entries: where it stands in its queue, and who holds it. A ready
--     message has only the first. There is no primary key: nothing ever looks a message up by its id.
--   * Acknowledged rows leave dead entries at the front of the index. Vacuum comes every thousand of them, and does
--     not stop to shorten the file, for which it would lock readers out. While an old snapshot (a backup, a forgotten
--     transaction) keeps them from going, a receiver steps over them by saying where its last delivery stood.
--   * No update here could be a heap-only one, since every one moves the message in its queue: so pages are filled.
--   * Plans must not depend on statistics, which are those of an empty table at one moment and of a full one at the
--     next: each function leaves the planner nothing but the right index. Where a receipt is given, the queue is
--     asked for with IS TRUE, which no index serves.

CREATE SCHEMA pgqueue;

COMMENT ON SCHEMA pgqueue IS
    'The queue of the Lite profile. Reached only through its functions: at-least-once delivery, no order promised.';

CREATE TABLE pgqueue.messages (
    visible_at timestamptz NOT NULL,
    sent_at timestamptz NOT NULL,
    id bigint GENERATED ALWAYS AS IDENTITY,
    receives integer NOT NULL DEFAULT 0,
    receipt uuid,
    queue text COLLATE "C" NOT NULL CHECK (queue ~ '^[A-Za-z0-9_-]{1,64}$'),
    body bytea NOT NULL CHECK (octet_length(body) BETWEEN 1 AND 262143)
) WITH (
    autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_threshold = 100000,
    autovacuum_analyze_scale_factor = 0,
    vacuum_index_cleanup = on,
    vacuum_truncate = off,
    toast.autovacuum_vacuum_threshold = 1000,
    toast.autovacuum_vacuum_scale_factor = 0,
    toast.autovacuum_vacuum_cost_delay = 0,
    toast.vacuum_truncate = off
);

CREATE INDEX messages_due ON pgqueue.messages (queue, visible_at);

CREATE UNIQUE INDEX messages_held ON pgqueue.messages (receipt) WHERE receipt IS NOT NULL;

COMMENT ON TABLE pgqueue.messages IS
    'Messages that were published and not yet acknowledged. One row each, for as long as it lives.';
COMMENT ON COLUMN pgqueue.messages.visible_at IS
    'From then on it may be received: in the past, it is ready; in the future, it is delayed or held.';
COMMENT ON COLUMN pgqueue.messages.sent_at IS 'When it was published.';
COMMENT ON COLUMN pgqueue.messages.id IS 'Its name, the same at every delivery and as a dead letter.';
COMMENT ON COLUMN pgqueue.messages.receives IS 'How often it was delivered.';
COMMENT ON COLUMN pgqueue.messages.receipt IS
    'Proof of its latest delivery, new each time. NULL: never delivered, or given back.';
COMMENT ON COLUMN pgqueue.messages.queue IS 'The queue it is in. A queue exists as long as it has a message.';
COMMENT ON COLUMN pgqueue.messages.body IS 'What was published, byte for byte.';

CREATE TABLE pgqueue.dead_letters (
    queue text COLLATE "C" NOT NULL,
    id bigint NOT NULL,
    sent_at timestamptz NOT NULL,
    died_at timestamptz NOT NULL,
    receives integer NOT NULL,
    reason text NOT NULL,
    body bytea NOT NULL,
    PRIMARY KEY (queue, id)
);

COMMENT ON TABLE pgqueue.dead_letters IS
    'Messages that were delivered as often as is allowed and never acknowledged. They stay until somebody redrives them.';
COMMENT ON COLUMN pgqueue.dead_letters.queue IS 'The queue it was in.';
COMMENT ON COLUMN pgqueue.dead_letters.id IS 'The id it had as a message.';
COMMENT ON COLUMN pgqueue.dead_letters.sent_at IS 'When it was published.';
COMMENT ON COLUMN pgqueue.dead_letters.died_at IS 'When it was found to have no delivery left.';
COMMENT ON COLUMN pgqueue.dead_letters.receives IS 'How often it was delivered.';
COMMENT ON COLUMN pgqueue.dead_letters.reason IS 'Why it is here, in words.';
COMMENT ON COLUMN pgqueue.dead_letters.body IS 'What was published, byte for byte.';

CREATE FUNCTION pgqueue.publish(the_queue text, bodies bytea[], delays interval[])
RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- What was accepted must survive a crash of the server, whatever the session would put up with.
    SELECT set_config('synchronous_commit', 'on', true);

    INSERT INTO pgqueue.messages (visible_at, sent_at, queue, body)
    SELECT statement_timestamp() + coalesce(delay, interval '0'), statement_timestamp(), the_queue, body
    FROM unnest(bodies, delays) AS outgoing (body, delay);

    SELECT pg_notify('pgqueue', the_queue);
$$;

COMMENT ON FUNCTION pgqueue.publish(text, bytea[], interval[]) IS
    'Adds messages to a queue, each after its delay (NULL: none), and wakes those who wait. Durable when it returns.';

CREATE FUNCTION pgqueue.receive(
    the_queue text, at_most integer, hold_for interval, max_receives integer, starting_at timestamptz
)
RETURNS TABLE (
    id bigint, receipt uuid, receives integer, sent_at timestamptz, due_at timestamptz, body bytea
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
    WITH due AS MATERIALIZED (
        SELECT m.ctid AS place, m.receives
        FROM pgqueue.messages AS m
        WHERE m.queue = the_queue AND m.visible_at <= statement_timestamp() AND m.visible_at >= starting_at
        ORDER BY m.visible_at
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    -- The row lock keeps every place where it is until this transaction ends.
    delivered AS (
        UPDATE pgqueue.messages AS m
        SET visible_at = statement_timestamp() + hold_for, receives = m.receives + 1, receipt = uuidv7()
        FROM due
        WHERE m.ctid = due.place AND due.receives < max_receives
        RETURNING m.id, m.receipt, m.receives, m.sent_at, old.visible_at AS due_at, m.body
    ),
    spent AS (
        DELETE FROM pgqueue.messages AS m
        USING due
        WHERE m.ctid = due.place AND due.receives >= max_receives
        RETURNING m.queue, m.id, m.sent_at, m.receives, m.visible_at, m.body
    ),
    buried AS (
        INSERT INTO pgqueue.dead_letters AS d (queue, id, sent_at, died_at, receives, reason, body)
        SELECT s.queue, s.id, s.sent_at, statement_timestamp(), s.receives,
            format('received %s times and never acknowledged', s.receives), s.body
        FROM spent AS s
        RETURNING d.id, d.receives, d.sent_at
    )
    SELECT d.id, d.receipt, d.receives, d.sent_at, d.due_at, d.body FROM delivered AS d
    UNION ALL
    SELECT b.id, NULL, b.receives, b.sent_at, NULL, NULL FROM buried AS b;
$$;

COMMENT ON FUNCTION pgqueue.receive(text, integer, interval, integer, timestamptz) IS
    'Delivers up to at_most ready messages, each under a new receipt, and hides them from others for a while. A message '
    'that already had max_receives deliveries becomes a dead letter instead and is told by a row without receipt. '
    'Looks only at messages due since starting_at: -infinity finds all.';

CREATE FUNCTION pgqueue.extend(the_queue text, receipts uuid[], hold_for interval)
RETURNS SETOF uuid
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    UPDATE pgqueue.messages
    SET visible_at = statement_timestamp() + hold_for
    WHERE receipt = ANY (receipts) AND (queue = the_queue) IS TRUE AND visible_at > statement_timestamp()
    RETURNING receipt;
$$;

COMMENT ON FUNCTION pgqueue.extend(text, uuid[], interval) IS
    'Hides messages for a while from now on, and returns the receipts that still held one.';

CREATE FUNCTION pgqueue.ack(the_queue text, receipts uuid[])
RETURNS SETOF uuid
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    DELETE FROM pgqueue.messages
    WHERE receipt = ANY (receipts) AND (queue = the_queue) IS TRUE
    RETURNING receipt;
$$;

COMMENT ON FUNCTION pgqueue.ack(text, uuid[]) IS
    'Ends messages for good, and returns the receipts that did. A receipt counts until its message is delivered again.';

CREATE FUNCTION pgqueue.release(the_queue text, receipts uuid[], delay interval)
RETURNS SETOF uuid
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
    SELECT pg_notify('pgqueue', the_queue);

    UPDATE pgqueue.messages
    SET visible_at = statement_timestamp() + delay, receipt = NULL
    WHERE receipt = ANY (receipts) AND (queue = the_queue) IS TRUE AND visible_at > statement_timestamp()
    RETURNING old.receipt;
$$;

COMMENT ON FUNCTION pgqueue.release(text, uuid[], interval) IS
    'Gives messages back, to be received again after the delay, and returns the receipts that still held one.';

CREATE FUNCTION pgqueue.next_due(the_queue text, starting_at timestamptz)
RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
    SELECT visible_at - statement_timestamp()
    FROM pgqueue.messages
    WHERE queue = the_queue AND visible_at >= starting_at
    ORDER BY visible_at
    LIMIT 1;
$$;

COMMENT ON FUNCTION pgqueue.next_due(text, timestamptz) IS
    'How long until the next message may be received if nothing happens before: negative when one is ready, NULL when '
    'there is none. Looks only at messages due since starting_at.';

CREATE FUNCTION pgqueue.depth(the_queue text)
RETURNS TABLE (ready bigint, in_flight bigint, delayed bigint, dead bigint, oldest_age_seconds double precision)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT
        count(*) FILTER (WHERE visible_at <= statement_timestamp()),
        count(*) FILTER (WHERE visible_at > statement_timestamp() AND receipt IS NOT NULL),
        count(*) FILTER (WHERE visible_at > statement_timestamp() AND receipt IS NULL),
        (SELECT count(*) FROM pgqueue.dead_letters WHERE queue = the_queue),
        greatest(coalesce(extract(epoch FROM statement_timestamp() - min(visible_at)), 0), 0)::double precision
    FROM pgqueue.messages
    WHERE queue = the_queue;
$$;

COMMENT ON FUNCTION pgqueue.depth(text) IS
    'Counts a queue: ready, held, delayed, dead, and how many seconds the longest waiting ready message has waited. '
    'Reads every entry of the queue: for people and metrics, not for a hot path.';

CREATE FUNCTION pgqueue.list_dead_letters(the_queue text, at_most integer)
RETURNS SETOF pgqueue.dead_letters
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
    SELECT * FROM pgqueue.dead_letters WHERE queue = the_queue ORDER BY id LIMIT at_most;
$$;

COMMENT ON FUNCTION pgqueue.list_dead_letters(text, integer) IS 'The dead letters of a queue, the longest ago sent first.';

CREATE FUNCTION pgqueue.redrive(the_queue text, ids bigint[])
RETURNS bigint
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off
AS $$
    SELECT set_config('synchronous_commit', 'on', true);

    SELECT pg_notify('pgqueue', the_queue);

    WITH risen AS (
        DELETE FROM pgqueue.dead_letters
        WHERE queue = the_queue AND (ids IS NULL OR id = ANY (ids))
        RETURNING id, sent_at, queue, body
    ),
    again AS (
        INSERT INTO pgqueue.messages (visible_at, sent_at, id, queue, body)
        OVERRIDING SYSTEM VALUE
        SELECT statement_timestamp(), sent_at, id, queue, body FROM risen
        RETURNING 1
    )
    SELECT count(*) FROM again;
$$;

COMMENT ON FUNCTION pgqueue.redrive(text, bigint[]) IS
    'Puts dead letters back into their queue with all deliveries before them (NULL: every one), and returns how many.';

REVOKE ALL ON SCHEMA pgqueue FROM PUBLIC;
REVOKE ALL ON ALL TABLES IN SCHEMA pgqueue FROM PUBLIC;
REVOKE ALL ON ALL SEQUENCES IN SCHEMA pgqueue FROM PUBLIC;
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgqueue FROM PUBLIC;
