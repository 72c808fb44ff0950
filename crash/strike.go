package main

import (
	"context"
	"errors"
	"fmt"
	"syscall"
)

// strike lets the fault of the cell hit the delivery that stands at its
// boundary, and brings in whoever is to take over.
func (x *experiment) strike(ctx context.Context) error {
	if x.cell.byProvider() {
		return nil // it has, by being reached
	}
	switch x.cell.Fault {
	case Kill, Ahead, Behind:
		return x.killWithSuccessor(ctx)
	case Restart:
		x.first.kill()
		return errors.Join(x.releaseProvider(), x.another(ctx))
	case Pause:
		return x.pause(ctx)
	case Term:
		return x.terminateProcess(ctx)
	case Panic:
		return x.release("panic")
	case Terminate:
		return errors.Join(x.db.endSessions(ctx), x.release("go"))
	case Crash:
		// While Postgres is away, the delivery goes on as far as it can.
		return errors.Join(x.db.server.crash(), x.release("go"), x.db.server.start(ctx))
	case Partition:
		return x.partition(ctx)
	case Early:
		return errors.Join(x.report(ctx), x.killWithSuccessor(ctx))
	case Late:
		return x.release("go")
	case Copies:
		return errors.Join(x.reportCopies(ctx), x.release("go"))
	}
	return fmt.Errorf("unknown fault %s", x.cell.Fault)
}

func (x *experiment) killWithSuccessor(ctx context.Context) error {
	if x.cell.At == NotFetched {
		// A second worker would fetch the job at once.
		x.first.kill()
		return x.another(ctx)
	}
	if err := x.another(ctx); err != nil {
		return err
	}
	x.first.kill()
	return x.releaseProvider()
}

// pause stops the worker. Its reply, if there is one, is in the socket when it
// wakes.
func (x *experiment) pause(ctx context.Context) error {
	if err := x.first.pause(ctx); err != nil {
		return err
	}
	return errors.Join(x.releaseProvider(), x.another(ctx))
}

// releaseProvider lets the provider go on without the worker, where that makes
// no difference to what it accepts, or where its search must not run ahead of
// what it will accept. At B6 all other kinds accept late, if at all: after
// somebody else has taken over.
func (x *experiment) releaseProvider() error {
	if x.cell.At == Accepted || (x.cell.At == Written && x.cell.Kind == Search) {
		x.provider.proceed()
	}
	return nil
}

// terminateProcess is an orderly stop with a short grace, as by an
// orchestrator.
func (x *experiment) terminateProcess(ctx context.Context) error {
	if x.cell.At != NotFetched {
		if err := x.another(ctx); err != nil {
			return err
		}
	}
	if err := errors.Join(x.first.signal(syscall.SIGTERM), x.release("go")); err != nil {
		return err
	}
	if !x.first.wait(grace) {
		x.first.kill()
	}
	if x.cell.At == NotFetched {
		return x.another(ctx)
	}
	return nil
}

// partition parts the worker from the database, whose end of the connections
// ends after a few seconds of silence: here at once. The provider stays within
// reach.
func (x *experiment) partition(ctx context.Context) error {
	x.proxy.Blackhole()
	return errors.Join(x.db.endSessions(ctx), x.release("go"), x.another(ctx))
}

// heal ends the fault, for those that end, and lets the worker that comes back
// do what it does: it is asked to stop, which ends when its last job has.
func (x *experiment) heal() error {
	var err error
	if x.cell.Fault == Pause {
		err = x.first.signal(syscall.SIGCONT)
	}
	x.proxy.Heal()
	if err := errors.Join(err, x.release("go")); err != nil {
		return err
	}
	if x.cell.Fault != Pause && x.cell.Fault != Partition {
		return nil
	}
	if err := x.first.signal(syscall.SIGTERM); err != nil {
		return err
	}
	if !x.first.wait(patience) {
		return errors.New("the worker that came back does not stop")
	}
	return nil
}
