package main

import (
	"context"
	"fmt"
	"net/http"
	"time"
)

type healthcheckCmd struct {
	URL     string        `arg:"" help:"What to ask, such as http://127.0.0.1:8080/readyz."`
	Timeout time.Duration `default:"2s" help:"How long to wait for the answer."`
}

func (c healthcheckCmd) Run(e environment) error {
	ctx, cancel := context.WithTimeout(e.ctx, c.Timeout)
	defer cancel()
	return checkHealth(ctx, c.URL)
}

func checkHealth(ctx context.Context, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	_ = resp.Body.Close()
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return fmt.Errorf("%s answers %d", url, resp.StatusCode)
	}
	return nil
}
