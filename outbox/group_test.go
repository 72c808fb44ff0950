package outbox

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
)

// Whoever comes first goes at once and alone; those who come meanwhile go together, as
// many as fit, in their order; other keys do not wait.
func TestGroup(t *testing.T) {
	t.Parallel()
	started, proceed := make(chan []int), make(chan struct{})
	g := group[string, int]{
		atOnce: 1,
		fits:   func(together []int, _ int) bool { return len(together) < 3 },
		write: func(_ string, _ []int, stay func() []int) error {
			together := stay()
			started <- together
			<-proceed
			return nil
		},
	}
	add := func(key string, number int) { g.add(key, &waiter[int]{thing: number, done: make(chan error, 1)}) }
	want := func(numbers ...int) {
		t.Helper()
		if got := <-started; !slices.Equal(got, numbers) {
			t.Errorf("%v go together, want %v", got, numbers)
		}
	}
	add("a", 1)
	want(1)
	for i := 2; i <= 6; i++ {
		add("a", i)
	}
	add("b", 7)
	want(7)
	close(proceed)
	want(2, 3, 4)
	want(5, 6)
	add("a", 8)
	want(8)
}

// Nothing is lost or written twice, no more writers are at work than may be, what is
// refused is written alone, and other errors are everybody's.
func TestGroupWritesEachOnce(t *testing.T) {
	t.Parallel()
	const things, writers = 2000, 2
	refused, broken := &pgconn.PgError{Code: "23514"}, errors.New("broken")
	var mu sync.Mutex
	written, atWork := map[int]int{}, 0
	note := func(n int) error {
		mu.Lock()
		defer mu.Unlock()
		written[n]++
		if n%100 == 0 {
			return refused
		}
		return nil
	}
	g := group[bool, int]{atOnce: writers, fits: func(together []int, _ int) bool { return len(together) < 50 }}
	g.write = func(_ bool, _ []int, stay func() []int) error {
		together := stay()
		mu.Lock()
		defer mu.Unlock()
		if atWork++; atWork > 2*writers { // of either key
			t.Errorf("%d writers are at work", atWork)
		}
		mu.Unlock()
		runtime.Gosched()
		mu.Lock()
		atWork--
		if slices.Contains(together, 7) {
			return broken
		}
		if slices.ContainsFunc(together, func(n int) bool { return n%100 == 0 }) {
			return refused
		}
		for _, n := range together {
			written[n]++
		}
		return nil
	}
	g.alone = func(_ bool, n int) error { return note(n) }
	var all sync.WaitGroup
	for i := range things {
		all.Go(func() {
			err := g.do(t.Context(), i%2 == 0, i)
			if bad := i%100 == 0; bad != errors.Is(err, refused) || err != nil && !bad && !errors.Is(err, broken) {
				t.Errorf("%d: error %v", i, err)
			}
			mu.Lock()
			defer mu.Unlock()
			if want := map[bool]int{true: 0, false: 1}[errors.Is(err, broken)]; written[i] != want {
				t.Errorf("%d was written %d times, want %d", i, written[i], want)
			}
		})
	}
	all.Wait()
}
