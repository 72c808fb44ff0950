package providers

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"testing/iotest"
)

func TestPayloadReader(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2, heldBack - 1, heldBack, heldBack + 1, 3 * heldBack} {
		payload := bytes.Repeat([]byte{'p'}, size)
		asked := 0
		r := &payloadReader{rest: payload, confirm: func() error { asked++; return nil }}
		if err := iotest.TestReader(r, payload); err != nil {
			t.Errorf("%d bytes: %v", size, err)
		}
		if asked != 1 || !r.seal() {
			t.Errorf("%d bytes: asked %d times, complete %v", size, asked, r.seal())
		}
	}
}

func TestPayloadReaderKeepsTheEndBack(t *testing.T) {
	t.Parallel()
	errFence := errors.New("no longer ours")
	for _, size := range []int{1, heldBack, 3 * heldBack} {
		r := &payloadReader{rest: make([]byte, size), confirm: func() error { return errFence }}
		got, err := io.ReadAll(r)
		if !errors.Is(err, errFence) || len(got) != max(0, size-heldBack) || r.seal() {
			t.Errorf("%d bytes: %d handed out with %v", size, len(got), err)
		}
		if n, err := r.Read(make([]byte, 1)); n != 0 || !errors.Is(err, errFence) {
			t.Errorf("%d bytes: read on after the refusal: %d, %v", size, n, err)
		}
	}
}

func TestPayloadReaderSealed(t *testing.T) {
	t.Parallel()
	r := &payloadReader{rest: make([]byte, 10), confirm: func() error {
		t.Error("asked though it is over")
		return nil
	}}
	if r.seal() {
		t.Error("complete before anything was read")
	}
	if n, err := r.Read(make([]byte, 10)); n != 0 || err == nil {
		t.Errorf("%d bytes handed out, %v", n, err)
	}
}
