-- A role for the application. It places orders and submits emails; of outboxd's
-- tables it can read and change nothing. It may submit for every org: to narrow
-- that down, give it a function of your own around this one.
\set ON_ERROR_STOP on

BEGIN;
CREATE ROLE :"role" LOGIN PASSWORD :'password';
GRANT INSERT, SELECT ON orders TO :"role";
GRANT USAGE ON SCHEMA outbox TO :"role";
GRANT EXECUTE ON FUNCTION outbox.enqueue_email TO :"role";
COMMIT;
