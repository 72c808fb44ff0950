package outbox_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"go.opentelemetry.io/otel/trace"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// partOf is a context inside a span of a trace.
func partOf(t *testing.T, flags trace.TraceFlags) context.Context {
	t.Helper()
	state, err := trace.ParseTraceState("vendor=jane")
	if err != nil {
		t.Fatal(err)
	}
	return trace.ContextWithSpanContext(t.Context(), trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{15: 1}, SpanID: trace.SpanID{7: 2}, TraceFlags: flags, TraceState: state,
	}))
}

// The job of a submission carries its trace, sampled or not, and nothing else; the
// job of one that is part of no trace is as it was before there were any.
func TestJobsCarryTraces(t *testing.T) {
	t.Parallel()
	tx := testdb.Tx(t)
	client, org := newClient(t, nil), uuid.New()
	for name, test := range map[string]struct {
		ctx      context.Context
		metadata string
	}{
		"no trace":    {t.Context(), `{}`},
		"sampled":     {partOf(t, trace.FlagsSampled), `{"traceparent": "00-00000000000000000000000000000001-0000000000000002-01"}`},
		"not sampled": {partOf(t, 0), `{"traceparent": "00-00000000000000000000000000000001-0000000000000002-00"}`},
	} {
		one, err := client.EnqueueTx(test.ctx, tx, submission(org, ""))
		if err != nil {
			t.Fatal(err)
		}
		many, err := client.EnqueueManyTx(test.ctx, tx, []outbox.Submission{submission(org, "")})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range append(one.IDs, many[0].IDs...) {
			rows, err := tx.Query(t.Context(), `SELECT metadata::text FROM outbox.river_job WHERE args ->> 'email_id' = $1::text`, id)
			if err != nil {
				t.Fatal(err)
			}
			metadata, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[string])
			if err != nil || metadata != test.metadata {
				t.Errorf("%s: metadata %s, error %v; want %s", name, metadata, err, test.metadata)
			}
		}
	}
}
