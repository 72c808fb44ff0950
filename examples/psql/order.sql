-- An order and its receipt in one transaction: afterwards both are there, or
-- neither is. Prints the id of the email.
\set ON_ERROR_STOP on

BEGIN;
SELECT outbox.enqueue_email(
    org => :'org',
    message => jsonb_build_object(
        'from', 'Shop <shop@example.com>',
        'to', 'jane@example.org',
        'subject', 'Your order ' || :'order',
        'text', 'Thank you. You paid ' || :'total' || ' EUR.'),
    idempotency_key => 'receipt-' || :'order'); -- placed again, it is the same email
-- If the table refuses the order, its receipt is gone as well.
INSERT INTO orders VALUES (:'order', :'total') ON CONFLICT DO NOTHING;
COMMIT;
