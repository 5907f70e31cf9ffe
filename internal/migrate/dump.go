package migrate

import (
	"context"
	"os"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks/checkpoint"
	"cucriu/internal/journal"
	"cucriu/internal/migrate/prepare"
)

// criuLogLevel is warnings and errors.
const criuLogLevel = 2

// dump dumps the job into dir and holds it. It tells written of the GPU state.
func (s *source) dump(ctx context.Context, root int, hold *journal.Hold, dir string, written func(*os.File, int64, int64)) error {
	options := s.dumpOptions(root)
	options.Hold, options.Written = hold, written
	options.AtStandstill = func(ctx context.Context, dir string) error {
		if err := s.later(ctx); err != nil {
			return err
		}
		return s.saveFiles(ctx, dir)
	}
	noting := *s.hook
	noting.Progress = func(r *journal.Record, step string) {
		if step == string(journal.StepLock) && s.halted.IsZero() {
			s.halted = time.Now()
			s.limit.begin()
		}
		s.tell(Progress{Phase: step})
	}
	return s.phase("dump", func() error {
		_, err := checkpoint.Dump(ctx, &noting, dir, options)
		return err
	})
}

// dumpRunning dumps the job into dir, and lets it run on.
func (s *source) dumpRunning(ctx context.Context, root int, dir string) error {
	options := s.dumpOptions(root)
	options.RPC.LeaveRunning = proto.Bool(true)
	noting := *s.hook
	noting.Progress = func(_ *journal.Record, step string) {
		if step == string(journal.StepLock) {
			s.limit.begin()
		}
		s.tell(Progress{Phase: step})
	}
	return s.phase("dump ahead", func() error {
		result, err := checkpoint.Dump(ctx, &noting, dir, options)
		s.limit.end()
		s.result.Before = result.Downtime
		return err
	})
}

func (s *source) dumpOptions(root int) checkpoint.Options {
	var lock *rpc.CriuNetworkLockMethod
	if s.options.TCP == prepare.TCPClose { // there are no packets to hold back
		lock = rpc.CriuNetworkLockMethod_SKIP.Enum()
	}
	return checkpoint.Options{
		Path: s.options.Criu, Output: os.Stderr,
		RPC: &rpc.CriuOpts{
			Pid: proto.Int32(int32(root)), LogLevel: proto.Int32(criuLogLevel),
			TcpClose: proto.Bool(s.options.TCP == prepare.TCPClose), TcpEstablished: proto.Bool(s.options.TCP == prepare.TCPKeep),
			NetworkLock: lock,
		},
	}
}
