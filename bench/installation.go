package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
)

// installation is an API and two workers on a database, of which workers are killed.
type installation struct {
	db      *database
	api     *program
	client  *client
	workers map[string]*program // by the name that the provider knows it by
	started int                 // workers, those that were killed among them
}

func (d *database) startInstallation(ctx context.Context) (*installation, error) {
	api, err := d.startAPI(ctx)
	if err != nil {
		return nil, err
	}
	in := &installation{db: d, api: api, client: newClient(api, d.token), workers: map[string]*program{}}
	for range 2 {
		if err := in.startWorker(ctx); err != nil {
			return nil, errors.Join(err, in.stop())
		}
	}
	return in, nil
}

func (in *installation) startWorker(ctx context.Context) error {
	in.started++
	name := fmt.Sprint("worker-", in.started)
	path := filepath.Join(in.db.lab.dir, "worker")
	w, err := in.db.start(ctx, "worker", path, nil, "RESEND_BASE_URL="+in.db.lab.provider.url+"/"+name)
	if err == nil {
		in.workers[name] = w
	}
	return err
}

func (in *installation) killWorker(name string) error {
	w := in.workers[name]
	delete(in.workers, name)
	return w.kill()
}

func (in *installation) stop() error {
	err := in.api.stop()
	for _, w := range in.workers {
		err = errors.Join(err, w.stop())
	}
	return err
}
