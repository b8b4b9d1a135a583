-- A task that has failed for good may raise an alert of its organisation: an outbox entry, for the sink and then delivery.

ALTER TYPE outbox_kind ADD VALUE 'notify_failure';
