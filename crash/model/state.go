package model

// The bounds of an exploration. A history that wants a third attempt is cut
// off where it would begin: it repeats what the second one shows, with one
// more mail and one more flag per doubt.
const (
	maxAttempts = 2
	maxRuns     = 3
	workers     = 2
)

// state is everything there is. It is a value without pointers, so that two
// states are the same exactly when they compare equal.
type state struct {
	email    email
	attempts [maxAttempts]attempt
	runs     [maxRuns]run
	sessions [workers]session
	faults   uint8 // how many more may happen
}

// email is the row of outbox.emails.
type email struct {
	status   status
	attempts uint8
	flagged  bool // possible_duplicate
}

type status uint8

const (
	queued status = iota
	sending
	doubtful // shown as unknown
	sent
	failedRefused // definitely not accepted
	failedUnknown // reason outcome_unknown
)

func (s status) String() string {
	return [...]string{"queued", "sending", "unknown", "sent", "failed", "failed(outcome_unknown)"}[s]
}

func (s status) ended() bool { return s >= sent }

// attempt is a row of outbox.attempts, and what the world holds of it.
type attempt struct {
	stage   stage
	owner   owner
	inDoubt bool // in_doubt_at is set
	waited  bool // and that was OUTBOXD_UNKNOWN_WAIT ago
	overdue bool // its deadline and the margin have passed

	accepted  uint8 // mails that the provider made of it
	forgotten bool  // the key window is over
	orphans   uint8 // complete requests on their way that nobody waits for
}

type stage uint8

const (
	unborn stage = iota
	open         // "sending" in the table
	accepted
	rejected
	deferred
	unknown // closed by policy, without evidence
)

func (s stage) String() string {
	return [...]string{"-", "open", "accepted", "rejected", "deferred", "unknown"}[s]
}

// owner is a worker's id on an attempt. An id is never used twice, so what a
// dead worker left belongs to nobody that there is.
type owner uint8

const gone owner = workers

// session is a worker process and its proof of life.
type session struct {
	lost    bool // Postgres has released the lock; the process lives
	noticed bool // and knows it
}

// run is one execution of the delivery job. Run i belongs to worker i modulo 2:
// the third is a second run in the first process, which happens after its
// first one was taken for stuck.
type run struct {
	at     place
	paused bool
	late   bool // its own deadline has passed
	number uint8
	seen   view
	// How it sends: again, under the key of an attempt that somebody began; or,
	// in mutants only, under a key of its own or without a recorded attempt.
	replay, freshKey, unrecorded bool
	result                       result // what it knows, from reading the reply on
}

func worker(run int) owner { return owner(run % workers) }

// view is what a run has read and decides by. It may be out of date.
type view struct {
	open     bool
	owner    owner
	inDoubt  bool
	waited   bool
	overdue  bool
	inWindow bool
	dead     bool // the owner's lock was free
}

// place is where a run stands. A crash or a pause hits it there.
type place uint8

const (
	idle      place = iota
	loaded          // B2: the email is read, nothing is committed
	searching       // has found the owner gone, will ask the provider
	answered        // has the answer to its search
	waiting         // will mark the doubt, and decide if its time is over
	deciding        // will close the attempt by policy
	begun           // B3 to B5: the attempt is committed, not all bytes are out
	confirmed       // has looked for the last time, the last byte is not out
	onWire          // B6: the provider can accept
	replied         // B7: it has answered, the reply is not read
	finishing       // B8: has the result, Finish is not committed
	settling        // Finish found the attempt closed
)

func (p place) String() string {
	return [...]string{
		"idle", "B2 loaded", "searching", "answered", "waiting", "deciding",
		"B4 begun", "B5 confirmed", "B6 on the wire", "B7 accepted", "B8 reply read", "settling",
	}[p]
}

// result is what a run knows of its call. The zero value is doubt.
type result uint8

const (
	inDoubt result = iota
	wasAccepted
	wasRejected
	notAccepted // definitely not, later perhaps
)
