// Submits a mail with the official Resend SDK, which reads RESEND_BASE_URL and
// RESEND_API_KEY itself. Prints the id of the email.
import { Resend } from 'resend';

const [name] = process.argv.slice(2);
const mail = {
  from: 'Shop <shop@example.com>',
  to: 'jane@example.org',
  subject: `Welcome, ${name}`,
  text: 'It works.',
};

const { data, error } = await new Resend().emails.send(mail, { idempotencyKey: `welcome-${name}` });
if (error) {
  console.error(`${error.name}: ${error.message}`);
  process.exitCode = 1;
} else {
  console.log(data.id);
}
