package redact

import (
	"context"
	"fmt"
	"log/slog"
)

// Logger returns a logger that writes what it is given without addresses and other
// values. One that does so already is returned as it is.
func Logger(log *slog.Logger) *slog.Logger {
	if _, done := log.Handler().(handler); done {
		return log
	}
	return slog.New(handler{log.Handler()})
}

// handler cleans records on their way to another handler.
type handler struct{ slog.Handler }

// Handle implements [slog.Handler].
func (h handler) Handle(ctx context.Context, r slog.Record) error {
	dirty := false
	attrs := make([]slog.Attr, 0, r.NumAttrs())
	r.Attrs(func(a slog.Attr) bool {
		cleaned, changed := clean(a)
		attrs, dirty = append(attrs, cleaned), dirty || changed
		return true
	})
	if message := Text(r.Message); dirty || message != r.Message {
		cleaned := slog.NewRecord(r.Time, r.Level, message, r.PC)
		cleaned.AddAttrs(attrs...)
		r = cleaned
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs implements [slog.Handler].
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	cleaned := make([]slog.Attr, len(attrs))
	for i, a := range attrs {
		cleaned[i], _ = clean(a)
	}
	return handler{h.Handler.WithAttrs(cleaned)}
}

// WithGroup implements [slog.Handler].
func (h handler) WithGroup(name string) slog.Handler { return handler{h.Handler.WithGroup(name)} }

// clean reports whether it changed the attribute.
func clean(a slog.Attr) (slog.Attr, bool) {
	value := a.Value.Resolve()
	switch value.Kind() {
	case slog.KindString:
		text := Text(value.String())
		return slog.String(a.Key, text), text != value.String()
	case slog.KindGroup:
		group, changed := value.Group(), false
		cleaned := make([]slog.Attr, len(group))
		for i, member := range group {
			var c bool
			cleaned[i], c = clean(member)
			changed = changed || c
		}
		return slog.Attr{Key: a.Key, Value: slog.GroupValue(cleaned...)}, changed
	case slog.KindAny:
		if err, ok := value.Any().(error); ok {
			return slog.String(a.Key, Error(err)), true
		}
		// Whatever it is, what it looks like is what may not be there.
		if text := fmt.Sprintf("%+v", value.Any()); Text(text) != text {
			return slog.String(a.Key, Text(text)), true
		}
	}
	return a, false
}
