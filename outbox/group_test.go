package outbox

import (
	"slices"
	"sync"
	"testing"
)

// Whoever comes first goes at once and alone; those who come meanwhile go together, as
// many as fit, in their order; other keys do not wait.
func TestGroup(t *testing.T) {
	t.Parallel()
	started, proceed := make(chan []int), make(chan struct{})
	g := group[string, int]{
		atOnce: 1,
		fits:   func(together []int, _ int) bool { return len(together) < 3 },
		write: func(_ string, together []int) {
			started <- together
			<-proceed
		},
	}
	want := func(numbers ...int) {
		t.Helper()
		if got := <-started; !slices.Equal(got, numbers) {
			t.Errorf("%v go together, want %v", got, numbers)
		}
	}
	g.add("a", 1)
	want(1)
	for i := 2; i <= 6; i++ {
		g.add("a", i)
	}
	g.add("b", 7)
	want(7)
	close(proceed)
	want(2, 3, 4)
	want(5, 6)
	g.add("a", 8)
	want(8)
}

// Nothing is lost or written twice, no more writers are at work than may be, and none
// is left when all is written.
func TestGroupWritesEachOnce(t *testing.T) {
	t.Parallel()
	const things, writers = 2000, 2
	var all sync.WaitGroup
	all.Add(things)
	var mu sync.Mutex
	written, atWork := map[int]int{}, 0
	g := group[bool, int]{atOnce: writers}
	g.write = func(_ bool, together []int) {
		mu.Lock()
		if atWork++; atWork > 2*writers { // of either key
			t.Errorf("%d writers are at work", atWork)
		}
		mu.Unlock()
		for _, n := range together {
			mu.Lock()
			written[n]++
			mu.Unlock()
			all.Done()
		}
		mu.Lock()
		atWork--
		mu.Unlock()
	}
	for i := range things {
		go g.add(i%2 == 0, i)
	}
	all.Wait()
	for i := range things {
		if written[i] != 1 {
			t.Errorf("%d was written %d times", i, written[i])
		}
	}
}
