package testdb

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
)

// Example is [New] for an Example function, which has no testing.T: drop takes
// the database away again. Both panic when the database cannot be had, which
// fails the example.
func Example() (pool *pgxpool.Pool, drop func()) {
	ctx := context.Background()
	if err := process.start(); err != nil {
		panic(err)
	}
	name, url, err := process.create(ctx, process.ownPrefix())
	if err != nil {
		panic(err)
	}
	if pool, err = pgxpool.New(ctx, url); err != nil {
		panic(err)
	}
	return pool, func() {
		pool.Close()
		if err := process.drop(ctx, name); err != nil {
			panic(err)
		}
	}
}
