// Uses the official Resend SDK for Node as an application does, and prints what
// it returned, by step, as one JSON document. The SDK itself reads
// RESEND_BASE_URL and RESEND_API_KEY.
import { Resend } from 'resend';
import { Resend as OldResend } from 'resend-6.0.0';

const { RESEND_BASE_URL: baseUrl, RESEND_API_KEY: apiKey, READ_ONLY_KEY: readOnlyKey } = process.env;
const [scheduledAt, movedTo] = process.argv.slice(2);

const resend = new Resend();
const results = {};
const step = async (name, call) => (results[name] = await call);

const everyByte = Buffer.from(Array.from({ length: 256 }, (_, value) => value));
const email = {
  from: 'Shop <shop@example.com>',
  to: 'jane@example.org',
  cc: ['joe@example.org'],
  bcc: 'ann@example.org',
  replyTo: 'help@example.com',
  subject: 'Order 7 from Node',
  html: '<p>Thank you ✓</p>',
  text: 'Thank you ✓',
  headers: { 'X-Order': '7' },
  tags: [{ name: 'kind', value: 'receipt' }],
  attachments: [
    { filename: 'base64.bin', content: everyByte.toString('base64'), contentType: 'application/octet-stream' },
    { filename: 'array.bin', content: [...everyByte], contentType: 'application/octet-stream' },
    { filename: 'buffer.bin', content: everyByte, contentType: 'application/octet-stream' },
  ],
};
const small = (subject) => ({ from: email.from, to: email.to, subject, text: 'Hello.' });
const bad = { ...small('Bad'), to: 'nobody' };

const sent = await step('send', resend.emails.send(email, { idempotencyKey: 'order-7' }));
await step('replay', resend.emails.send(email, { idempotencyKey: 'order-7' }));
await step('reuse', resend.emails.send(small('Another order'), { idempotencyKey: 'order-7' }));
await step('get', resend.emails.get(sent.data.id));
// The newer SDK makes base64 of a Buffer; this one sends {"type":"Buffer","data":[...]}.
await step('oldSend', new OldResend(apiKey).emails.send({ ...email, subject: 'Order 7 from old Node' }));

const scheduled = await step('schedule', resend.emails.send({ ...small('Later'), scheduledAt }));
await step('update', resend.emails.update({ id: scheduled.data.id, scheduledAt: movedTo }));
await step('getUpdated', resend.emails.get(scheduled.data.id));
await step('cancel', resend.emails.cancel(scheduled.data.id));
await step('getCanceled', resend.emails.get(scheduled.data.id));

await step('strict', resend.batch.send([small('Strict 1'), small('Strict 2')], { idempotencyKey: 'strict' }));
await step('strictBad', resend.batch.send([small('Never'), bad]));
const batch = [small('Permissive 1'), bad, small('Permissive 2')];
const permissive = { batchValidation: 'permissive', idempotencyKey: 'permissive' };
await step('permissive', resend.batch.send(batch, permissive));
await step('permissiveReplay', resend.batch.send(batch, permissive));

await step('list', resend.emails.list());
const page = await step('page', resend.emails.list({ limit: 2 }));
const next = await step('nextPage', resend.emails.list({ limit: 2, after: page.data.data.at(-1).id }));
await step('pageBefore', resend.emails.list({ limit: 2, before: next.data.data[0].id }));

const hook = { endpoint: 'https://example.com/webhooks', events: ['email.sent', 'email.bounced'] };
const webhook = (await step('createWebhook', resend.webhooks.create(hook))).data.id;
await step('updateWebhook', resend.webhooks.update(webhook, { status: 'disabled' }));
await step('getWebhook', resend.webhooks.get(webhook));
await step('listWebhooks', resend.webhooks.list({ limit: 1 }));
await step('rotateWebhook', resend.webhooks.rotateSigningSecret(webhook));
await step('listWebhookEvents', resend.webhooks.events.list({ webhookId: webhook, limit: 1 }));
const eventId = '019a0000-0000-7000-8000-000000000000';
await step('getWebhookEvent', resend.webhooks.events.get({ webhookId: webhook, eventId }));
await step('replayWebhookEvent', resend.webhooks.events.replay({ webhookId: webhook, eventId }));
await step('removeWebhook', resend.webhooks.remove(webhook));

await step('invalid', resend.emails.send(bad));
await step('unknownId', resend.emails.get('019a0000-0000-7000-8000-000000000000'));
await step('noKey', new Resend(' ').emails.send(small('No key'))); // the header arrives as a bare "Bearer"
await step('wrongKey', new Resend('re_123').emails.send(small('Wrong key')));
await step('readOnlyKey', new Resend(readOnlyKey).emails.send(small('Read only')));
await step('tooLarge', resend.emails.send({ ...small('Too large'), text: 'x'.repeat(10 << 20) }));

for (const suffix of ['/', '/v1', '/v1/', '/api/v1']) {
  const client = new Resend(apiKey, { baseUrl: baseUrl + suffix });
  await step(`base ${suffix}`, client.emails.get(sent.data.id));
}

console.log(JSON.stringify(results));
