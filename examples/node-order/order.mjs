// Places an order and submits its receipt in one transaction: afterwards both
// are there, or neither is. Prints the id of the email.
import pg from 'pg';

const [org, order, total] = process.argv.slice(2);
const receipt = {
  from: 'Shop <shop@example.com>',
  to: 'jane@example.org',
  subject: `Your order ${order}`,
  text: `Thank you. You paid ${total} EUR.`,
};

const db = new pg.Client({ connectionString: process.env.DATABASE_URL });
await db.connect();
try {
  await db.query('BEGIN');
  const { rows: [email] } = await db.query(
    'SELECT outbox.enqueue_email(org => $1, message => $2, idempotency_key => $3) AS id',
    [org, receipt, `receipt-${order}`], // placed again, it is the same email
  );
  // If the table refuses the order, its receipt is gone as well.
  await db.query('INSERT INTO orders VALUES ($1, $2) ON CONFLICT DO NOTHING', [order, total]);
  await db.query('COMMIT');
  console.log(email.id);
} catch (error) {
  await db.query('ROLLBACK');
  console.error(error.message, error.detail ?? '');
  process.exitCode = 1;
} finally {
  await db.end();
}
