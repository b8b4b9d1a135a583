-- A name that 0010 left. Changes the catalogue only: the trigger follows its function.

ALTER FUNCTION alerts.tell_of_deliveries() RENAME TO notify_deliveries;
