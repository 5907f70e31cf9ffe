package migrate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"cucriu/hooks/preflight"
	"cucriu/internal/durable"
	"cucriu/internal/failpoint"
	"cucriu/internal/jobs"
	"cucriu/internal/jobs/store"
	"cucriu/internal/migrate/commit"
	"cucriu/internal/migrate/wire"
)

// jobVerifiers is how many threads read a checkpoint that has arrived.
const jobVerifiers = 4

// take makes checkpoints of what has arrived, and verifies them. Those that go ahead are looked at
// as a resume does: what stands in its way is said while the job still runs.
func (d *jobDestination) take(ctx context.Context) error {
	if err := d.endRound(); err != nil {
		return err
	}
	defer os.RemoveAll(d.roundDir())
	manifest, err := d.readManifest()
	if err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, "job.taking", 0); err != nil {
		return err
	}
	for _, c := range manifest.Checkpoints {
		if len(c.Sent) != len(c.Files) {
			return fmt.Errorf("checkpoint %.40q: %d files were announced, and %d sent", c.Name, len(c.Files), len(c.Sent))
		}
		for i, f := range c.Files {
			if f.SameAs == "" && !isSent(c.Sent[i]) {
				return fmt.Errorf("%.80q is no file of this round", c.Sent[i])
			}
		}
		if err := d.store.Import(ctx, c.Listed, func(i int) string { return filepath.Join(d.roundDir(), c.Sent[i]) }); err != nil {
			return err
		}
	}
	for _, f := range manifest.Others {
		if !slices.Contains(jobs.TravelFiles(), f.Name) || !isSent(f.Sent) {
			return fmt.Errorf("%.80q is no file of a job", f.Name)
		}
		if err := d.takeOther(f); err != nil {
			return err
		}
	}
	if err := durable.Sync(d.job.Dir); err != nil {
		return err
	}
	if err := d.verify(ctx); err != nil {
		return err
	}
	return d.Send(sayTaken, nil)
}

// isSent reports whether a name is that of a file of a round.
func isSent(name string) bool {
	return name != "" && filepath.Base(name) == name && name != "." && name != ".." && name != jobManifestName
}

const maxManifestBytes = 256 << 20

func (d *jobDestination) readManifest() (m jobManifest, err error) {
	path := filepath.Join(d.roundDir(), jobManifestName)
	info, err := os.Lstat(path)
	if err == nil && info.Size() > maxManifestBytes {
		err = fmt.Errorf("it has %d bytes", info.Size())
	}
	var data []byte
	if err == nil {
		data, err = os.ReadFile(path)
	}
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil {
		return m, fmt.Errorf("what was sent cannot be told: %w", err)
	}
	return m, nil
}

// takeOther brings a file of the job that is no checkpoint's to its place.
func (d *jobDestination) takeOther(f jobFile) error {
	from := filepath.Join(d.roundDir(), f.Sent)
	if f.Name == jobs.TravelFiles()[0] {
		of, err := jobs.DescribeAs(from)
		if err != nil {
			return err
		}
		if of.Dir != d.job.Dir || !of.Begun.Equal(d.job.Begun) {
			return errors.New("the record that was sent is that of another job")
		}
	}
	if err := durable.Sync(from); err != nil {
		return err
	}
	return os.Rename(from, filepath.Join(d.job.Dir, f.Name))
}

// verify reads what has arrived and was not verified yet.
func (d *jobDestination) verify(ctx context.Context) error {
	all, err := d.store.Checkpoints()
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.Verified {
			continue
		}
		if err := d.store.Verify(ctx, c, jobVerifiers, nil); err != nil {
			return fmt.Errorf("checkpoint %s is not what was sent: %w", c.Name, err)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return d.judge(ctx, all[len(all)-1])
}

// judge finds out whether this host can take a checkpoint.
func (d *jobDestination) judge(ctx context.Context, c store.Checkpoint) error {
	findings, err := jobs.CheckRestore(ctx, d.hook, c.Dir)
	if err != nil {
		return err
	}
	if err := d.hook.Judge(findings).Err(); err != nil {
		return preflight.AsRefusal(fmt.Errorf("the job cannot be resumed here: %w", err))
	}
	return nil
}

// promise holds the job ready until the source has decided.
func (d *jobDestination) promise(ctx context.Context, m wire.Message) error {
	var asked jobPromise
	if err := m.Decode(&asked); err != nil {
		return err
	}
	if d.store == nil || d.receiver != nil {
		return errors.New("nothing was received that could be resumed")
	}
	all, err := d.store.Checkpoints()
	if err != nil {
		return err
	}
	if len(all) == 0 || all[len(all)-1].Name != asked.Newest || !all[len(all)-1].Verified {
		return fmt.Errorf("checkpoint %.40q has not arrived", asked.Newest)
	}
	if of, err := jobs.Describe(d.job.Dir); err != nil {
		return err
	} else if of.Dir != d.job.Dir || !of.Begun.Equal(d.job.Begun) {
		return errors.New("the job's record has not arrived")
	}
	if err := os.RemoveAll(d.dir); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, "job.promise", 0); err != nil {
		return err
	}
	return d.on(commit.Complete)
}
