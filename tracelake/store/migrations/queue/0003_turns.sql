-- Groups of messages take turns.
--
-- A message that is ready when it is published gets a turn, a number, and messages are received in the order of their
-- turns. The publisher gives the turns (`adapters/queue_pg_turns.py`): a group that publishes many messages gets turns far
-- apart, so that another group's next message comes before most of them. All other messages (delayed, in flight, released)
-- have no turn and are received when their time has come, before those with a turn. Each message is in one of two indexes.
-- Messages of before this migration have no turn.

ALTER TABLE pgqueue.messages ADD COLUMN turn bigint;
COMMENT ON COLUMN pgqueue.messages.turn IS
    'Its place among the messages that are ready, in microseconds since 1970 or as far behind the front as its group has '
    'messages before it. NULL: delayed, delivered or released before; it is received when visible_at has passed.';

DROP INDEX pgqueue.messages_due;
CREATE INDEX messages_due ON pgqueue.messages (queue, visible_at) WHERE turn IS NULL;
CREATE INDEX messages_turn ON pgqueue.messages (queue, turn) WHERE turn IS NOT NULL;

CREATE OR REPLACE FUNCTION pgqueue.publish(the_queue text, bodies bytea[], delays interval[])
RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
    -- What was accepted must survive a crash of the server, whatever the session would put up with.
    SELECT set_config('synchronous_commit', 'on', true);

    INSERT INTO pgqueue.messages (visible_at, sent_at, queue, body, turn)
    SELECT statement_timestamp() + coalesce(delay, interval '0'), statement_timestamp(), the_queue, body,
        CASE WHEN coalesce(delay, interval '0') = interval '0'
            THEN (extract(epoch FROM statement_timestamp()) * 1000000)::bigint END
    FROM unnest(bodies, delays) AS outgoing (body, delay);

    SELECT pg_notify('pgqueue', the_queue);
$$;

COMMENT ON FUNCTION pgqueue.publish(text, bytea[], interval[]) IS
    'Adds messages to a queue, each after its delay (NULL: none), in the order of time. Durable when it returns.';

CREATE FUNCTION pgqueue.publish_in_turn(
    the_queue text, bodies bytea[], delays interval[], bases bigint[], offsets bigint[], from_turn bigint
)
RETURNS bigint
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
DECLARE
    front bigint;
BEGIN
    PERFORM set_config('synchronous_commit', 'on', true);
    SELECT m.turn INTO front
    FROM pgqueue.messages AS m
    WHERE m.queue = the_queue AND m.turn >= from_turn
    ORDER BY m.turn
    LIMIT 1;
    front := coalesce(front, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint);

    INSERT INTO pgqueue.messages (visible_at, sent_at, queue, body, turn)
    SELECT statement_timestamp() + o.delay, statement_timestamp(), the_queue, o.body,
        CASE WHEN o.delay = interval '0' THEN greatest(front, o.base) + o.further END
    FROM unnest(bodies, delays, bases, offsets) AS o (body, delay, base, further);

    PERFORM pg_notify('pgqueue', the_queue);
    RETURN front;
END
$$;

COMMENT ON FUNCTION pgqueue.publish_in_turn(text, bytea[], interval[], bigint[], bigint[], bigint) IS
    'Adds messages to a queue, each at its turn: its offset behind its base, or behind the front of the queue if that is '
    'later. Returns the front: the lowest turn from from_turn on, or the time if there is none. Durable when it returns.';

DROP FUNCTION pgqueue.receive(text, integer, interval, integer, timestamptz);

CREATE FUNCTION pgqueue.receive(
    the_queue text, at_most integer, hold_for interval, max_receives integer, from_turn bigint, starting_at timestamptz
)
RETURNS TABLE (
    id bigint, receipt uuid, receives integer, sent_at timestamptz, due_at timestamptz, turn bigint, body bytea
)
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
    WITH timed AS MATERIALIZED (
        SELECT m.ctid AS place, m.receives
        FROM pgqueue.messages AS m
        WHERE m.queue = the_queue AND m.turn IS NULL
            AND m.visible_at <= statement_timestamp() AND m.visible_at >= starting_at
        ORDER BY m.visible_at
        LIMIT at_most
        FOR UPDATE SKIP LOCKED
    ),
    in_turn AS MATERIALIZED (
        SELECT m.ctid AS place, m.receives
        FROM pgqueue.messages AS m
        WHERE m.queue = the_queue AND m.turn >= from_turn
        ORDER BY m.turn
        LIMIT at_most - (SELECT count(*) FROM timed)
        FOR UPDATE SKIP LOCKED
    ),
    due AS MATERIALIZED (SELECT * FROM timed UNION ALL SELECT * FROM in_turn),
    -- The row lock keeps every place where it is until this transaction ends.
    delivered AS (
        UPDATE pgqueue.messages AS m
        SET visible_at = statement_timestamp() + hold_for, receives = m.receives + 1, receipt = uuidv7(), turn = NULL
        FROM due
        WHERE m.ctid = due.place AND due.receives < max_receives
        RETURNING m.id, m.receipt, m.receives, m.sent_at, old.visible_at AS due_at, old.turn, m.body
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
    SELECT d.id, d.receipt, d.receives, d.sent_at, d.due_at, d.turn, d.body FROM delivered AS d
    UNION ALL
    SELECT b.id, NULL, b.receives, b.sent_at, NULL, NULL, NULL FROM buried AS b;
$$;

COMMENT ON FUNCTION pgqueue.receive(text, integer, interval, integer, bigint, timestamptz) IS
    'Delivers up to at_most ready messages, each under a new receipt, and hides them from others for a while. A message '
    'that already had max_receives deliveries becomes a dead letter instead, reported by a row without receipt. Looks only '
    'at messages with a turn from from_turn on, and at those without one that are due since starting_at.';

DROP FUNCTION pgqueue.next_due(text, timestamptz);

CREATE FUNCTION pgqueue.next_due(the_queue text, from_turn bigint, starting_at timestamptz)
RETURNS interval
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
    SELECT least(
        (SELECT interval '0' FROM pgqueue.messages WHERE queue = the_queue AND turn >= from_turn ORDER BY turn LIMIT 1),
        (
            SELECT visible_at - statement_timestamp()
            FROM pgqueue.messages
            WHERE queue = the_queue AND turn IS NULL AND visible_at >= starting_at
            ORDER BY visible_at
            LIMIT 1
        )
    );
$$;

COMMENT ON FUNCTION pgqueue.next_due(text, bigint, timestamptz) IS
    'How long until the next message may be received if nothing happens before: not positive when one is ready, NULL when '
    'there is none. Looks only at messages with a turn from from_turn on, and at those without one due since starting_at.';

CREATE FUNCTION pgqueue.receive_any(
    queues text[], at_most integer[], in_all integer, hold_for interval, max_receives integer, from_turns bigint[],
    starting_at timestamptz[]
)
RETURNS TABLE (
    queue text, id bigint, receipt uuid, receives integer, sent_at timestamptz, due_at timestamptz, turn bigint, body bytea,
    looked_at timestamptz, next_due interval
)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
    room integer := in_all;
    taken integer;
BEGIN
    FOR n IN 1 .. cardinality(queues) LOOP
        RETURN QUERY
        SELECT queues[n], r.id, r.receipt, r.receives, r.sent_at, r.due_at, r.turn, r.body, statement_timestamp(),
            NULL::interval
        FROM pgqueue.receive(
            queues[n], least(at_most[n], room), hold_for, max_receives, from_turns[n], starting_at[n]) AS r;
        GET DIAGNOSTICS taken = ROW_COUNT;
        room := room - taken;
        EXIT WHEN room <= 0;
    END LOOP;
    IF room = in_all THEN
        RETURN QUERY
        SELECT NULL::text, NULL::bigint, NULL::uuid, NULL::integer, NULL::timestamptz, NULL::timestamptz, NULL::bigint,
            NULL::bytea, statement_timestamp(), min(pgqueue.next_due(q.queue, q.from_turn, q.starting_at))
        FROM unnest(queues, from_turns, starting_at) AS q (queue, from_turn, starting_at);
    END IF;
END
$$;

COMMENT ON FUNCTION pgqueue.receive_any(text[], integer[], integer, interval, integer, bigint[], timestamptz[]) IS
    'Receives from several queues in the order in which they are given, up to at_most of each and in_all together. If there '
    'is nothing, one row without an id says how long until there may be.';

CREATE OR REPLACE FUNCTION pgqueue.depth(the_queue text)
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
    FROM (
        SELECT visible_at, receipt FROM pgqueue.messages WHERE queue = the_queue AND turn IS NULL
        UNION ALL
        SELECT visible_at, receipt FROM pgqueue.messages WHERE queue = the_queue AND turn IS NOT NULL
    ) AS messages;
$$;

REVOKE ALL ON ALL FUNCTIONS IN SCHEMA pgqueue FROM PUBLIC;
