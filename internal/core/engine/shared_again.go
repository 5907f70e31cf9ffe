package engine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"cucriu/internal/core/agent"
	"cucriu/internal/core/session"
)

// Each owner gives descriptors of its memory once, this program holds them, and each other process takes what all have
// given at once. So the time grows with the number of processes, and not with that of their pairs.

const (
	// atOnce processes give or take: the kernel counts what is on its way between processes against the limits of a user.
	atOnce       = 8
	mostOnTheWay = 256 // descriptors to one process
	mostHeld     = 512 // descriptors, or a message of each owner; with more, there is a second round
)

// gift is a message of an owner, with descriptors of parts of its memory.
type gift struct {
	owner   *Target
	message []byte
	parts   []int
}

// exchange has each owner give what it has, and hands it to all who take. give is told how many parts it has given.
func exchange(
	owners, takers []*Target, give func(owner *Target, from uint64) (gift, error), take func(to *Target, gifts []gift) error,
) error {
	if len(takers) == 0 {
		return nil
	}
	from, done := make([]uint64, len(owners)), make([]bool, len(owners))
	for slices.Contains(done, false) {
		given := make([][]gift, len(owners))
		err := ParallelUpTo(atOnce, len(owners), func(i int) error {
			for !done[i] && len(given[i]) < max(1, mostHeld/agent.Batch/len(owners)) {
				g, err := give(owners[i], from[i])
				if done[i] = err != nil || len(g.parts) == 0; done[i] {
					return err
				}
				from[i] += uint64(len(g.parts))
				given[i] = append(given[i], g)
			}
			return nil
		})
		gifts := slices.Concat(given...)
		if err == nil && len(gifts) > 0 {
			err = ParallelUpTo(atOnce, len(takers), func(i int) error {
				to := takers[i]
				return take(to, slices.DeleteFunc(slices.Clone(gifts), func(g gift) bool { return g.owner == to }))
			})
		}
		for _, g := range gifts {
			session.CloseRights(g.parts)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// withLibraries is withLibrary for several processes at once. do is told which of them have not ended.
func (b *wayBack) withLibraries(ctx context.Context, targets []*Target, do func(running []*Target) error) error {
	var begun, over sync.WaitGroup
	release := make(chan struct{})
	runs, errs := make([]bool, len(targets)), make([]error, len(targets))
	begun.Add(len(targets))
	for i, t := range targets {
		over.Go(func() {
			arrive := sync.OnceFunc(begun.Done)
			defer arrive()
			err := b.withLibrary(ctx, t, func() error {
				runs[i] = true
				arrive()
				<-release
				return nil
			})
			if !b.hasEnded(t) {
				errs[i] = err
			}
		})
	}
	begun.Wait()
	var running []*Target
	var failed error
	for i, t := range targets {
		if runs[i] {
			running = append(running, t)
		} else { // what the others write is not there yet
			failed = errors.Join(failed, errs[i])
		}
	}
	if failed == nil {
		failed = do(running)
	}
	close(release)
	over.Wait()
	for i, err := range errs {
		if runs[i] {
			failed = errors.Join(failed, err)
		}
	}
	return failed
}

// give has an owner put descriptors of what others have of it into a message, from a part on. Without parts, there are
// no more.
func (b *wayBack) give(ctx context.Context, owner *Target, from uint64) (g gift, err error) {
	if from > agent.MostShared {
		return g, errors.New("its library gives without end")
	}
	if err := owner.obey(ctx, b.Session, agent.Prepare); err != nil {
		return g, err
	}
	if err := owner.agent.GiveFrom(from); err != nil {
		return g, err
	}
	if err := owner.obey(ctx, b.Session, agent.Give); err != nil {
		return g, err
	}
	status, err := owner.agent.Status()
	if err != nil {
		return g, err
	}
	socket, err := owner.ShareSocket(status.Descriptor)
	if err != nil {
		return g, err
	}
	defer socket.Close()
	if err := owner.agent.Do(ctx, agent.LetGo); err != nil || status.Given == 0 {
		return g, err
	}
	g = gift{owner: owner, message: make([]byte, agent.MessageBytes)}
	n, parts, err := session.ReceiveRights(socket, g.message, agent.Batch)
	if err == nil && (n != len(g.message) || uint64(len(parts)) != status.Given) {
		session.CloseRights(parts)
		err = fmt.Errorf("its library gives %d descriptors in %d bytes, and not the %d that it names", len(parts), n, status.Given)
	}
	if err == nil {
		g.parts = parts
	}
	return g, err
}

// take has a process put up what it waits for of what others have given.
func (b *wayBack) take(ctx context.Context, to *Target, gifts []gift) error {
	for len(gifts) > 0 {
		err := b.within(ctx, func(ctx context.Context) error {
			n, err := b.takeSome(ctx, to, gifts)
			gifts = gifts[n:]
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// takeSome has a process take as much as its library takes at once, and reports how many messages that were.
func (b *wayBack) takeSome(ctx context.Context, to *Target, gifts []gift) (n int, err error) {
	most, err := to.agent.MostTaken()
	if err != nil {
		return 0, err
	}
	ours, theirs, err := session.SocketPair("shared memory")
	if err != nil {
		return 0, err
	}
	defer theirs.Close()
	for parts := 0; n < min(most, len(gifts)); n++ {
		g := gifts[n]
		if parts += len(g.parts); n > 0 && parts > mostOnTheWay {
			break
		}
		err := session.SendRights(ours, g.message, g.parts...)
		if n > 0 && errors.Is(err, unix.EAGAIN) { // the socket is full
			break
		}
		if err != nil {
			ours.Close()
			return 0, os.NewSyscallError("sendmsg", err)
		}
	}
	ours.Close()
	if err := to.agent.SetTakes(n); err != nil {
		return 0, err
	}
	if err := to.hand(ctx, theirs); err != nil {
		return 0, err
	}
	if err := b.Failpoint(ctx, string(b.Kind)+".back.share"); err != nil {
		return 0, err
	}
	return n, to.obey(ctx, b.Session, agent.Take)
}
