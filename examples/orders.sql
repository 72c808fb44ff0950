-- The application's own table, in its own schema: what the examples sell.
CREATE TABLE IF NOT EXISTS orders (
    id    text PRIMARY KEY,
    total numeric NOT NULL CHECK (total > 0)
);
