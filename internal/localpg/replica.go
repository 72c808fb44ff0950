package localpg

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
)

// Replicate copies the server's data into a new data folder. A server that is
// started there follows this one as a streaming replica, with the same password,
// until it is promoted. Without PostgreSQL's program for it the error is
// [ErrNotFound].
func (s *Server) Replicate(ctx context.Context, dataDir string) (err error) {
	c := s.cluster
	if !isProgram(c.program("pg_basebackup")) {
		return fmt.Errorf("pg_basebackup: %w", ErrNotFound)
	}
	if c.folder, err = openFolder(ctx, Options{DataDir: dataDir}, c.folder.as); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.folder.close()) }()

	primary, err := url.Parse(s.superuserURL)
	if err != nil {
		return err
	}
	password, _ := primary.User.Password()
	if err := c.keepPassword(password); err != nil {
		return err
	}
	target := c.folder.file(unfinished)
	if err := os.RemoveAll(target); err != nil {
		return err
	}
	// What the replica is to follow goes into its data: --write-recovery-conf.
	if err := c.run(ctx, "pg_basebackup", "--dbname", s.superuserURL, "--pgdata", target,
		"--write-recovery-conf", "--checkpoint", "fast", "--no-sync"); err != nil {
		return err
	}
	return os.Rename(target, c.folder.file(clusterName))
}
