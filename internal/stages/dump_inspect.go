package stages

import (
	"context"
	"errors"
	"time"

	"cucriu/hooks/preflight"
	"cucriu/internal/engine"
	"cucriu/internal/failpoint"
	"cucriu/internal/inspect"
	"cucriu/internal/journal"
	"cucriu/internal/proc"
	"cucriu/internal/session"
)

// inspect finds the CUDA processes, and refuses what cannot be dumped. It asks the driver nothing that
// a frozen process would have to answer.
func (d *dump) inspect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, d.PatienceForAll())
	defer cancel()
	if err := failpoint.Hit(ctx, "dump.inspect", 0); err != nil {
		return err
	}
	if err := d.awaitEarlier(ctx); err != nil {
		return err
	}
	imageDir := d.imageDir
	if d.criu.PagesElsewhere {
		imageDir = "" // how much of the image will go there is not known
	}
	ofCriu := make(chan preflight.Findings, 1) // criu is asked for its version meanwhile
	go func() { ofCriu <- inspect.CriuFindings(ctx, d.criu) }()
	seen, err := inspect.Tree(ctx, d.Root, imageDir, d.Config.RunDir, d.stage.Early, d.LoadDriver)
	findings := <-ofCriu
	if err != nil {
		return err
	}
	if inside := inspect.InsideFindings(seen.PIDs, d.criu.PID); len(inside) > 0 {
		if len(seen.Processes) == 0 {
			return nil // criu says so itself
		}
		seen.Findings = inside // the others may be about criu and this hook
	} else if seen.UsesCUDA() {
		seen.Findings = append(seen.Findings, findings...)
	}
	if d.criu.RPC { // these depend on options that cannot be seen under RPC
		seen.Findings = seen.Findings.Soften(preflight.FindingCUDAPlugin, preflight.FindingPluginDir, preflight.FindingDiskSpace)
	}
	if err := d.Refuse(seen.Findings); err != nil || len(seen.Processes) == 0 {
		return err
	}
	d.Members = journal.MembersOf(seen.Processes)
	if d.Targets, err = engine.OpenMembers(d.Driver, d.Members); err != nil {
		return err
	}
	if len(d.Targets) != len(d.Members) {
		return errors.New("a CUDA process of the tree ended while it was inspected: dump again")
	}
	d.countOOMKills()
	return nil
}

// countOOMKills begins to count what the out-of-memory killer ends in the targets' control groups.
func (d *dump) countOOMKills() {
	hierarchies, err := proc.ReadHierarchies()
	for _, t := range d.Targets {
		var counter *proc.OOMCounter
		if err == nil {
			counter, err = hierarchies.CountOOMKills(t.PID)
		}
		if counter != nil {
			d.OOMKills = append(d.OOMKills, counter)
		}
	}
	if err != nil {
		d.Log.Debug("nobody counts what the out-of-memory killer ends", "error", err)
	}
}

// awaitEarlier waits until an earlier dump of the same processes is over: after criu dump -R its
// watcher needs a moment. In no other case is a paused container thawed before it is inspected.
func (d *dump) awaitEarlier(ctx context.Context) error {
	members, err := session.MembersOfTree(d.Root)
	if err != nil || journal.IsForeign(d.Config.RunDir) {
		return err
	}
	for {
		other, err := journal.FindOpen(d.Config.RunDir, d.criu.Ident, members)
		if err != nil || other == nil {
			return err
		}
		if other.Suspended() || other.Criu == d.criu.Ident {
			return other.Conflict()
		}
		// The watcher of that dump waits until the paused container is resumed.
		paused, err := frozen(d.Root)
		if err == nil {
			err = d.thaw(ctx, paused)
		}
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return other.Conflict()
		case <-time.After(20 * time.Millisecond): // there is no event to wait for
		}
	}
}
