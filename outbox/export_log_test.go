package outbox

// RedactJob runs a job as a worker does.
var RedactJob = redactJob
