-- Comments in ordinary technical English. Changes the catalogue only.

COMMENT ON SCHEMA pgqueue IS
    'The queue of the Lite profile, used only through its functions. Delivery is at least once, in no guaranteed order.';
COMMENT ON TABLE pgqueue.messages IS 'Messages that were published and are not yet acknowledged.';
COMMENT ON COLUMN pgqueue.messages.visible_at IS
    'When it may be received: a past time means ready, a future time means delayed or in flight.';
COMMENT ON COLUMN pgqueue.messages.id IS 'The same at every delivery and as a dead letter.';
COMMENT ON COLUMN pgqueue.messages.receives IS 'How many times it was delivered.';
COMMENT ON COLUMN pgqueue.messages.receipt IS
    'Identifies its latest delivery, new each time. NULL: never delivered, or released.';
COMMENT ON COLUMN pgqueue.messages.queue IS 'The name of its queue. A queue exists while it has a message.';
COMMENT ON COLUMN pgqueue.messages.body IS 'The bytes as they were published.';
COMMENT ON TABLE pgqueue.dead_letters IS
    'Messages that were delivered as often as is allowed and never acknowledged, until they are redriven.';
COMMENT ON COLUMN pgqueue.dead_letters.queue IS 'The name of the queue that it was in.';
COMMENT ON COLUMN pgqueue.dead_letters.id IS 'The id of the message.';
COMMENT ON COLUMN pgqueue.dead_letters.died_at IS 'When a receiver found that it had no delivery left.';
COMMENT ON COLUMN pgqueue.dead_letters.receives IS 'How many times it was delivered.';
COMMENT ON COLUMN pgqueue.dead_letters.reason IS 'Why it became a dead letter, for display.';
COMMENT ON COLUMN pgqueue.dead_letters.body IS 'The bytes as they were published.';
COMMENT ON FUNCTION pgqueue.publish(text, bytea[], interval[]) IS
    'Adds messages to a queue, each after its delay (NULL: none), and notifies waiting receivers. Durable on return.';
COMMENT ON FUNCTION pgqueue.receive(text, integer, interval, integer, timestamptz) IS
    'Delivers up to at_most ready messages, each under a new receipt, and hides them from other receivers for hold_for. A message that already had max_receives deliveries becomes a dead letter, and is returned as a row without a receipt. Reads only messages due since starting_at; -infinity reads all.';
COMMENT ON FUNCTION pgqueue.extend(text, uuid[], interval) IS
    'Hides messages for an interval from now on. Returns the receipts that were still valid.';
COMMENT ON FUNCTION pgqueue.ack(text, uuid[]) IS
    'Deletes messages. Returns the receipts that were still valid: a receipt is valid until its message is delivered again.';
COMMENT ON FUNCTION pgqueue.release(text, uuid[], interval) IS
    'Makes messages ready again after the delay. Returns the receipts that were still valid.';
COMMENT ON FUNCTION pgqueue.next_due(text, timestamptz) IS
    'How long until the next message is ready: negative when one is ready now, NULL when there is none. Reads only messages due since starting_at.';
COMMENT ON FUNCTION pgqueue.depth(text) IS
    'Counts ready, in-flight, delayed and dead messages of a queue, and the age of its oldest ready message in seconds. Reads every entry of the queue: for display and metrics, not for a hot path.';
COMMENT ON FUNCTION pgqueue.list_dead_letters(text, integer) IS 'The dead letters of a queue, oldest first.';
COMMENT ON FUNCTION pgqueue.redrive(text, bigint[]) IS
    'Returns dead letters (NULL: all) to their queue as if never delivered. Returns how many.';
