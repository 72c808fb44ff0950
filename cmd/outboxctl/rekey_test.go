package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/internal/testdb"
	"github.com/outboxd/outboxd/outbox"
)

// rekey changes from clear to a key and to the next, says what it would do, and for
// a program says it in JSON. What has no key in the ring makes it fail.
func TestRekeyCommand(t *testing.T) {
	t.Parallel()
	url := testdb.URL(t)
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	client, err := outbox.NewClient(pool, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.Enqueue(context.Background(), outbox.Submission{Org: uuid.New(), Messages: []outbox.Message{{
		From: "a@example.com", To: []string{"b@example.org"}, Subject: "s", Text: "t",
	}}})
	if err != nil {
		t.Fatal(err)
	}
	key := func(id string) string {
		return id + ":" + base64.StdEncoding.EncodeToString(bytes.Repeat([]byte(id), outbox.KeySize)[:outbox.KeySize])
	}
	rekey := func(c rekeyCmd, keys string) (string, error) {
		t.Helper()
		var out, errOut strings.Builder
		err := c.Run(environment{ctx: context.Background(), databaseURL: url, encryptionKeys: keys, out: &out, errOut: &errOut})
		return out.String(), err
	}
	if _, err := rekey(rekeyCmd{}, ""); err == nil || !strings.Contains(err.Error(), "OUTBOXD_ENCRYPTION_KEYS is not set") {
		t.Errorf("without keys: error %v", err)
	}
	if out, err := rekey(rekeyCmd{DryRun: true}, key("k1")); err != nil || !strings.Contains(out, "in clear") {
		t.Errorf("dry run: %s, error %v", out, err)
	}
	if out, err := rekey(rekeyCmd{}, key("k1")); err != nil || !strings.Contains(out, "Sealed 1 under k1.\n") || strings.Contains(out, "in clear") {
		t.Errorf("the first key: %s, error %v", out, err)
	}
	if out, err := rekey(rekeyCmd{}, key("k2")); err == nil || !strings.Contains(out, "stay under k1") {
		t.Errorf("without the old key: %s, error %v", out, err)
	}
	out, err := rekey(rekeyCmd{JSON: true}, key("k2")+","+key("k1"))
	var got rekeyed
	if jsonErr := json.Unmarshal([]byte(out), &got); err != nil || jsonErr != nil || got.Sealed != 1 || len(got.InUse) != 1 || got.InUse["k2"] != 1 {
		t.Errorf("the next key: %s, error %v, %v", out, err, jsonErr)
	}
}
