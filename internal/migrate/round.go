package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/hooks/preflight"
	"cucriu/internal/criuimage"
	"cucriu/internal/migrate/wire"
	"cucriu/internal/proc"
)

const (
	maxRounds = 16
	maxProbes = 64
	maxFiles  = 1 << 16
)

// listen makes ready for the data of a round.
func (d *destination) listen(ctx context.Context, m wire.Message) error {
	var r round
	if err := m.Decode(&r); err != nil {
		return err
	}
	if d.probes++; d.job == nil || d.giveUp != nil || r.Number > maxRounds || d.probes > maxProbes || !r.Probe && r.Number != d.last+1 {
		return fmt.Errorf("round %d cannot begin now", r.Number)
	}
	if d.receiver != nil {
		if err := d.endRound(); err != nil {
			return fmt.Errorf("round %d: %w", d.last, err)
		}
	}
	if err := errors.Join(d.openStage(), d.dropProbe()); err != nil {
		return err
	}
	dir := d.stage.round(r.Number)
	if r.Probe {
		d.probing = fmt.Sprintf("probe-%d", d.probes)
		dir = filepath.Join(d.stage.dir, d.probing)
	} else {
		d.last = r.Number
	}
	if err := d.beginRound(ctx, dir); err != nil {
		return err
	}
	return reach(ctx, "receive.listening")
}

// openStage makes the directory for the images.
func (d *destination) openStage() (err error) {
	if d.stage != nil {
		return nil
	}
	d.stage, err = newStage(d.hook.Config.RunDir, d.options.Stage, d.peer.ID, "destination")
	return err
}

// dropProbe removes what was received to show how fast the way is.
func (d *destination) dropProbe() error {
	if d.probing == "" {
		return nil
	}
	err := os.RemoveAll(filepath.Join(d.stage.dir, d.probing))
	d.probing = ""
	return err
}

// beginRound makes a directory, and listens for what the pinned source sends into it.
func (d *destination) beginRound(ctx context.Context, dir string) (err error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if d.root, err = os.OpenRoot(dir); err != nil {
		return err
	}
	room, err := free(dir)
	if err != nil {
		return err
	}
	config, err := d.identity.ServerConfig(d.peer.Fingerprint)
	if err != nil {
		return err
	}
	d.receiver, err = wire.Receive(ctx, wire.ListenOptions{Bind: d.options.Bind, Ports: d.options.Ports, Config: config, Log: d.hook.Log},
		wire.ReceiveOptions{Dir: d.root, MaxBytes: room, MaxFiles: maxFiles})
	if err != nil {
		return err
	}
	return d.Send(sayListening, listening{Addresses: d.receiver.Addresses()})
}

// endRound ends the receiving. It is an error if not everything has come.
func (d *destination) endRound() error {
	if d.receiver == nil {
		return errors.New("nothing was sent")
	}
	if err := errors.Join(d.receiver.Finish(), d.root.Close()); err != nil {
		return err
	}
	d.receiver, d.root = nil, nil
	return nil
}

// free returns how much may be written into a directory, in bytes.
func free(dir string) (int64, error) {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return 0, fmt.Errorf("%s: %w", dir, err)
	}
	room := int64(fs.Bavail) * fs.Bsize
	if !preflight.KeepsInMemory(int64(fs.Type)) {
		return room, nil
	}
	memory, err := (proc.System{}).AvailableMemory()
	return min(room, int64(memory)), err
}

// linkEarlier gives the last round the files that it has in common with earlier ones.
func (d *destination) linkEarlier(links []link) error {
	if len(links) > maxFiles {
		return errors.New("too many files of earlier rounds are named")
	}
	root, err := os.OpenRoot(d.stage.dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, l := range links {
		if l.Round < 1 || l.Round >= d.last || l.Name != filepath.Base(l.Name) || strings.HasPrefix(l.Name, ".") {
			return fmt.Errorf("%.80q of round %d is no file of an earlier round", l.Name, l.Round)
		}
		from, to := filepath.Base(d.stage.round(l.Round)), filepath.Base(d.stage.round(d.last))
		if l.Parent {
			to = filepath.Join(to, criuimage.ParentName)
			if err := root.Mkdir(to, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
				return err
			}
		}
		if err := root.Link(filepath.Join(from, l.Name), filepath.Join(to, l.Name)); err != nil {
			return err
		}
	}
	return nil
}
