package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"cucriu/hooks"
	"cucriu/internal/journal"
	"cucriu/internal/migrate/commit"
)

// Recover tells the destinations of migrations that were cut off what was decided here. The jobs
// must have been recovered before: see [hooks.Hook.Recover]. It returns the migrations that it
// has worked on.
func Recover(ctx context.Context, hook *hooks.Hook) ([]*Record, error) {
	hook = hook.Filled()
	worked := []*Record{}
	var errs []error
	records, err := Records(hook.Config.RunDir)
	errs = append(errs, err)
	stages := []string{defaultStage}
	for _, r := range records {
		free, err := r.take()
		if err != nil {
			errs = append(errs, err)
		}
		if !free || ctx.Err() != nil {
			continue
		}
		stages = append(stages, r.Stage)
		worked = append(worked, r)
		errs = append(errs, recoverOne(hook, r))
		r.letGo()
	}
	for _, stage := range stages {
		removeStale(hook.Config.RunDir, stage)
	}
	errs = append(errs, removeMade(hook))
	return worked, errors.Join(errs...)
}

func recoverOne(hook *hooks.Hook, r *Record) error {
	s := newSource(hook, Options{Host: r.Host, RSH: r.RSH, Remote: r.Remote})
	s.record, s.result.ID, s.result.Host = r, r.ID, r.Host
	defer s.departure.close()
	s.addressBackIfStaying()
	if err := s.on(commit.Recover); err != nil {
		return fmt.Errorf("migration %s: %w", r.ID, err)
	}
	return nil
}

// Settle decides at a destination that has promised, in place of a source that cannot be asked:
// take lets the job run here, otherwise its copy here is ended. It relies on what the user knows:
// see [commit.WhenToTake] and [commit.WhenToDrop].
func Settle(ctx context.Context, hook *hooks.Hook, id string, take bool) (hooks.Status, error) {
	hook = hook.Filled()
	if err := checkID(id); err != nil {
		return hooks.Status{}, err
	}
	state, known, err := destinationState(hook, id)
	if err != nil {
		return hooks.Status{}, err
	}
	if s, heldErr := hook.Held(id); !known || heldErr == nil && s.Kind != journal.KindRestore {
		return hooks.Status{}, fmt.Errorf("migration %s has no copy on this host: %w", id, os.ErrNotExist)
	}
	e, decision := commit.Drop, journal.DecisionEnd
	if take {
		e, decision = commit.Take, journal.DecisionGo
	}
	if _, _, err := (commit.Destination{State: state}).On(e); err != nil {
		return hooks.Status{}, fmt.Errorf("migration %s: %w", id, err)
	}
	status, err := hook.Decide(ctx, id, decision)
	return status, errors.Join(err, removeMade(hook))
}

// A source that gives a migration up may say so before its job is known here. What it has given
// up is never promised.

func droppedPath(hook *hooks.Hook, id string) string {
	return filepath.Join(recordsDir(hook.Config.RunDir), id+".dropped")
}

func noteDropped(hook *hooks.Hook, id string) error {
	if err := os.MkdirAll(recordsDir(hook.Config.RunDir), 0o700); err != nil {
		return fmt.Errorf("run directory: %w", err)
	}
	old, _ := filepath.Glob(droppedPath(hook, "*"))
	for _, path := range old {
		if info, err := os.Lstat(path); err == nil && time.Since(info.ModTime()) > 24*time.Hour {
			_ = os.Remove(path)
		}
	}
	return os.WriteFile(droppedPath(hook, id), nil, 0o600)
}

func isDropped(hook *hooks.Hook, id string) bool {
	_, err := os.Lstat(droppedPath(hook, id))
	return err == nil
}
