package api_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/outboxd/outboxd/api"
	"github.com/outboxd/outboxd/providers"
)

// hooksOnly needs no database: its hook takes nobody for the provider.
func hooksOnly(maxBody int64) http.Handler {
	return api.New(api.Config{Hooks: map[string]providers.Hook{"lab": labHook{}}, MaxBody: maxBody})
}

// postHook sends a body to it, of a length that is said (or -1), and returns the
// answer's status.
func postHook(ctx context.Context, handler http.Handler, w http.ResponseWriter, body io.Reader, length int64) {
	req := httptest.NewRequestWithContext(ctx, http.MethodPost, "/hooks/lab", body)
	req.Header.Set("X-Lab", "unverified")
	req.ContentLength = length
	handler.ServeHTTP(w, req)
}

// A body of exactly the limit is read; one byte more is not, said or not.
func TestBodyLimit(t *testing.T) {
	t.Parallel()
	for _, limit := range []int64{8, api.FreeBody - 1, api.FreeBody, api.FreeBody + 1, 100_000, api.MaxHookBody} {
		handler := hooksOnly(limit)
		for _, extra := range []int64{-1, 0, 1} {
			for _, said := range []bool{true, false} {
				length := limit + extra
				read := &countingReader{Reader: bytes.NewReader(make([]byte, length))}
				if !said {
					length = -1
				}
				rec := httptest.NewRecorder()
				postHook(t.Context(), handler, rec, read, length)
				want := http.StatusUnauthorized // it was read, and is from nobody
				if extra > 0 {
					want = http.StatusRequestEntityTooLarge
				}
				if rec.Code != want {
					t.Errorf("%d+%d bytes, said %v: answer %d, want %d", limit, extra, said, rec.Code, want)
				}
				if extra > 0 && said && read.bytes > 0 {
					t.Errorf("%d bytes were read of a body that says it is too large", read.bytes)
				}
			}
		}
	}
}

// deadlines are what a connection is told.
type deadlines struct {
	*httptest.ResponseRecorder
	read  []time.Duration // from the start; negative: none
	write time.Duration
	start time.Time
}

func (d *deadlines) SetReadDeadline(at time.Time) error {
	d.read = append(d.read, at.Sub(d.start))
	if at.IsZero() {
		d.read[len(d.read)-1] = -1
	}
	return nil
}

func (d *deadlines) SetWriteDeadline(at time.Time) error {
	d.write = at.Sub(d.start)
	return nil
}

// The time for a body grows with what has come of it; when all has come, the
// client has its time to read the answer, and nothing cuts off the work.
func TestSlowBody(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const seconds = 60
		d := &deadlines{ResponseRecorder: httptest.NewRecorder(), start: time.Now()}
		body, client := io.Pipe()
		go func() {
			for range seconds {
				<-time.After(time.Second) // of the bubble's clock
				_, _ = client.Write(make([]byte, api.BodyRate))
			}
			_ = client.Close()
		}()
		postHook(t.Context(), hooksOnly(10<<20), d, body, seconds*api.BodyRate)
		if d.Code != http.StatusUnauthorized {
			t.Fatalf("answer %d %s", d.Code, d.Body)
		}
		last := len(d.read) - 1
		for i, deadline := range d.read[:last] {
			if deadline < api.BodyGrace || deadline > api.BodyGrace+(seconds+1)*time.Second {
				t.Errorf("deadline %d is after %v", i, deadline)
			}
			if i > 0 && deadline < d.read[i-1] {
				t.Errorf("deadline %d is earlier than the one before", i)
			}
		}
		if d.read[0] != api.BodyGrace || d.read[last-1] < (seconds-1)*time.Second || d.read[last] != -1 || d.write < (seconds+30)*time.Second {
			t.Errorf("read deadlines %v, write deadline %v", d.read, d.write)
		}
	})
}

// A client that sends nothing is cut after the grace, whatever length it says.
func TestBodyThatNeverComes(t *testing.T) {
	t.Parallel()
	d := &deadlines{ResponseRecorder: httptest.NewRecorder(), start: time.Now()}
	late := iotest.ErrReader(os.ErrDeadlineExceeded)
	postHook(t.Context(), hooksOnly(10<<20), d, late, 4<<20)
	if d.Code != http.StatusBadRequest || len(d.read) == 0 {
		t.Errorf("answer %d %s, deadlines %v", d.Code, d.Body, d.read)
	}
	for _, deadline := range d.read {
		if deadline > api.BodyGrace+time.Second {
			t.Errorf("deadline after %v for a body of which nothing came", deadline)
		}
	}
}

// held is a large body on its way: its memory is taken, and it comes no further
// until it is let go.
type held struct {
	sent chan struct{} // closed: its beginning was read
	rest chan struct{}
	done chan int // its status
}

func hold(t *testing.T, handler http.Handler, length int64) *held {
	t.Helper()
	h := &held{sent: make(chan struct{}), rest: make(chan struct{}), done: make(chan int, 1)}
	body, client := io.Pipe()
	go func() {
		_, _ = client.Write(make([]byte, api.FreeBody+1))
		close(h.sent)
		<-h.rest
		_ = client.Close()
	}()
	go func() {
		rec := httptest.NewRecorder()
		postHook(t.Context(), handler, rec, body, length)
		h.done <- rec.Code
	}()
	return h
}

// Large bodies share a memory. When it is full the next one waits a while and is
// sent away; small ones come through; and what was held comes back.
func TestBodiesShareMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := hooksOnly(10 << 20)
		var holders []*held
		for range api.HookMemory / api.MaxHookBody {
			h := hold(t, handler, api.MaxHookBody)
			<-h.sent
			holders = append(holders, h)
		}
		send := func(length int) *httptest.ResponseRecorder {
			rec := httptest.NewRecorder()
			postHook(t.Context(), handler, rec, bytes.NewReader(make([]byte, length)), int64(length))
			return rec
		}
		if rec := send(api.FreeBody - 1); rec.Code != http.StatusUnauthorized {
			t.Errorf("a small body: answer %d %s", rec.Code, rec.Body)
		}
		began := time.Now()
		rec := send(api.FreeBody + 1)
		if rec.Code != http.StatusServiceUnavailable || rec.Header().Get("Retry-After") == "" || !strings.Contains(rec.Body.String(), "service_unavailable") {
			t.Errorf("a large body: answer %d %s", rec.Code, rec.Body)
		}
		if waited := time.Since(began); waited < time.Second || waited > 10*time.Second {
			t.Errorf("it waited %v", waited)
		}
		for _, h := range holders {
			close(h.rest)
			<-h.done
		}
		if rec := send(api.MaxHookBody); rec.Code != http.StatusUnauthorized {
			t.Errorf("once the memory is free: answer %d %s", rec.Code, rec.Body)
		}
	})
}

// What waits is read as soon as there is room.
func TestBodyWaitsForMemory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		handler := hooksOnly(10 << 20)
		holder := hold(t, handler, api.MaxHookBody)
		<-holder.sent
		waiting := make(chan int, 1)
		go func() {
			for range api.HookMemory/api.MaxHookBody - 1 {
				hold := hold(t, handler, api.MaxHookBody)
				<-hold.sent
				defer close(hold.rest)
			}
			rec := httptest.NewRecorder()
			postHook(t.Context(), handler, rec, bytes.NewReader(make([]byte, api.MaxHookBody)), api.MaxHookBody)
			waiting <- rec.Code
		}()
		synctest.Wait()
		close(holder.rest)
		if code := <-waiting; code != http.StatusUnauthorized {
			t.Errorf("answer %d", code)
		}
		synctest.Wait()
	})
}

// Lists and objects are read no further than their bound, however many elements a
// body has: they could take a hundred times its size.
func TestElementsAreBounded(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"attachments", "tags", "to", "cc", "headers", "metadata"} {
		value := map[string]string{
			"attachments": many(api.MaxElements+1, "{}"), "tags": many(api.MaxElements+1, "{}"),
			"headers": "{" + members(api.MaxElements+1) + "}", "metadata": "{" + members(api.MaxElements+1) + "}",
		}[field]
		if value == "" {
			value = many(api.MaxElements+1, `"a@example.com"`)
		}
		_, err := api.DecodeEmail([]byte(changedTo(field, value)))
		if err == nil {
			t.Errorf("%s: accepted", field)
			continue
		}
		if e := api.ErrorOf(err); e.StatusCode != http.StatusUnprocessableEntity || len(e.Errors) != 1 ||
			!strings.HasPrefix(e.Errors[0].Field, field) || !strings.Contains(e.Message, fmt.Sprint(api.MaxElements)) {
			t.Errorf("%s: %v", field, e)
		}
	}
}
