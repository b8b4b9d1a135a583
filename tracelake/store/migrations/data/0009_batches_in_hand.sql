-- Batches that a sink reads at this moment: what is left of it says which ones a sink died over.

CREATE TABLE trace_meta.batches_in_hand (
    publish_id uuid PRIMARY KEY,
    tries integer NOT NULL DEFAULT 1,
    since timestamptz NOT NULL DEFAULT now(),
    CONSTRAINT batches_in_hand_tries_from_one CHECK (tries >= 1)
);
COMMENT ON TABLE trace_meta.batches_in_hand IS
    'Batches that a sink has begun to read and has not finished with; a row that is there when a batch comes again was left by a sink that died.';
COMMENT ON COLUMN trace_meta.batches_in_hand.tries IS 'How many sinks have begun to read it and did not finish.';
