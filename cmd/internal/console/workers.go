package console

import (
	"context"
	"net/http"
	"slices"
	"time"

	"github.com/outboxd/outboxd/outbox"
)

// workersView is a table of workers.
type workersView struct {
	Workers []outbox.WorkerInfo
	Caption string
	// Past shows what became of those that are not alive any more.
	Past bool
	Now  time.Time
}

func workersOf(workers []outbox.WorkerInfo, caption string, past bool, now time.Time) workersView {
	return workersView{workers, caption, past, now}
}

// workers lists those that are alive, and the last that were.
func (h handler) workers(r *http.Request) (response, error) {
	list, err := outbox.ListWorkers(r.Context(), h.Pool)
	if err != nil {
		return nil, err
	}
	return page{File: "workers.html", Section: "workers", Title: "Workers", Body: list}, nil
}

func (h handler) aliveWorkers(ctx context.Context) ([]outbox.WorkerInfo, error) {
	list, err := outbox.ListWorkers(ctx, h.Pool)
	return slices.DeleteFunc(list, func(w outbox.WorkerInfo) bool { return w.State != outbox.WorkerAlive }), err
}
