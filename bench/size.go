package main

import "context"

// bytesPerEmail is what a delivered email takes in the database once that is in use: of
// the second of two rounds. After each comes what happens within an hour anyway: River
// removes the jobs that are done, and autovacuum makes room of what is dead.
func (d *database) bytesPerEmail(ctx context.Context) (float64, error) {
	var sizes [2]int64
	for round := range sizes {
		if _, err := d.fillAndDrain(ctx, (*database).startWorker); err != nil {
			return 0, err
		}
		if err := exec1(ctx, d.url, "DELETE FROM outbox.river_job WHERE state = 'completed'"); err != nil {
			return 0, err
		}
		if err := d.settle(ctx); err != nil {
			return 0, err
		}
		if err := queryRow(ctx, d.url, "SELECT pg_database_size(current_database())", &sizes[round]); err != nil {
			return 0, err
		}
	}
	return float64(sizes[1]-sizes[0]) / float64(d.lab.deliveries), nil
}

// sizes are what an email leaves, and what the programs have used at all these loads.
func sizes(ctx context.Context, b *lab) ([]Result, error) {
	bytes, err := anew(ctx, b, func(db *database) (float64, error) { return db.bytesPerEmail(ctx) })()
	if err != nil {
		return nil, err
	}
	return []Result{
		{
			Figure: "bytes in the database per delivered email of 1 kB", Unit: "bytes", Ours: bytes,
			Must: float64(len(body)) + 2000, Aim: float64(len(body)) + 1000, LessIsBetter: true,
		},
		{Figure: "memory of the API", Unit: "MB", Ours: b.memory["api"], Must: 150, Aim: 80, LessIsBetter: true},
		{Figure: "memory of the worker", Unit: "MB", Ours: b.memory["worker"], Must: 150, Aim: 80, LessIsBetter: true},
	}, nil
}
