package main

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/cmd/internal/app"
)

type keyCmd struct {
	Create keyCreateCmd `cmd:"" help:"Create an API key. It is printed once, alone on the last line."`
	List   keyListCmd   `cmd:"" help:"List API keys, with when each was last used. The keys themselves are not known."`
	Rotate keyRotateCmd `cmd:"" help:"Make a new API key with the rights of an old one, which works on for a while. It is printed once, alone on the last line."`
	Revoke keyRevokeCmd `cmd:"" help:"Make an API key void, everywhere within 5 seconds."`
}

type keyCreateCmd struct {
	Org                   string    `required:"" help:"The org's name." placeholder:"NAME"`
	Name                  string    `help:"What the key is for." placeholder:"NAME"`
	Scopes                []string  `help:"Of send, read and admin, separated by commas." default:"send,read" placeholder:"SCOPES"`
	FromDomain            []string  `help:"A domain that the key may send from; repeatable. Without one: the org's." placeholder:"DOMAIN"`
	Expires               time.Time `help:"When the key stops working, in RFC 3339." placeholder:"TIME"`
	RequireIdempotencyKey bool      `help:"Refuse submissions without an idempotency key."`
	JSON                  bool      `help:"Print JSON."`
}

func (c keyCreateCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		token, err := api.CreateKey(e.ctx, pool, api.Key{
			Org: c.Org, Name: c.Name, Scopes: c.Scopes, FromDomains: c.FromDomain,
			ExpiresAt: c.Expires, RequireIdempotencyKey: c.RequireIdempotencyKey,
		})
		if err != nil {
			return err
		}
		return e.print(c.JSON, map[string]string{"org": c.Org, "name": c.Name, "key": token},
			shownOnce+token+"\n")
	})
}

// shownOnce comes before a key.
const shownOnce = "The key is shown this once; only a hash of it is stored.\n"

type keyListCmd struct {
	Org  string `help:"The org's name. Without one: all orgs." placeholder:"NAME"`
	JSON bool   `help:"Print JSON."`
}

func (c keyListCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		keys, err := api.Keys(e.ctx, pool, c.Org)
		if err != nil {
			return err
		}
		return e.print(c.JSON, keys, keyTable(keys))
	})
}

func keyTable(keys []api.KeyDetail) string {
	if len(keys) == 0 {
		return "There is no API key yet: create one with `outboxctl key create`.\n"
	}
	var text strings.Builder
	table := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	_, _ = fmt.Fprintln(table, "ID\tORG\tNAME\tSTATE\tSCOPES\tFROM DOMAINS\tCREATED\tEXPIRES\tLAST USED")
	for _, k := range keys {
		state := string(k.State)
		if k.State == api.KeyRotating {
			state += " until " + timeText(k.ExpiresAt) + ", replaced by " + *k.ReplacedBy
		}
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", k.ID, k.Org, cmp.Or(k.Name, "-"), state,
			strings.Join(k.Scopes, ","), cmp.Or(strings.Join(k.FromDomains, " "), "the org's"),
			timeText(&k.CreatedAt), timeText(k.ExpiresAt), timeText(k.LastUsedAt))
	}
	_ = table.Flush()
	return text.String()
}

func timeText(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

// keyArg is the argument of all that is about one API key.
type keyArg struct {
	ID string `arg:"" help:"The key's id: what stands between ob_ and the next _ in it."`
}

type keyRotateCmd struct {
	keyArg
	Overlap app.Duration `help:"How long the old key works on, such as 30m or 7d; 0s: no longer. Default: 24h." default:"24h" placeholder:"DURATION"`
	JSON    bool         `help:"Print JSON."`
}

func (c keyRotateCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		rotated, err := api.RotateKey(e.ctx, pool, c.ID, c.Overlap.D())
		if err != nil {
			return err
		}
		text := fmt.Sprintf("API key %s works until %s.\n", rotated.Replaces, timeText(&rotated.Until))
		if c.Overlap == 0 {
			text = fmt.Sprintf("API key %s is revoked.\n", rotated.Replaces)
		}
		return e.print(c.JSON, rotated, text+shownOnce+rotated.Key+"\n")
	})
}

type keyRevokeCmd struct {
	keyArg
	JSON bool `help:"Print JSON."`
}

func (c keyRevokeCmd) Run(e environment) error {
	return e.withPool(func(pool *pgxpool.Pool) error {
		key, err := api.RevokeKey(e.ctx, pool, c.ID)
		if err != nil {
			return err
		}
		return e.print(c.JSON, key, fmt.Sprintf("API key %s is void since %s, and used nowhere after 5 seconds.\n",
			key.ID, timeText(&key.RevokedAt)))
	})
}
