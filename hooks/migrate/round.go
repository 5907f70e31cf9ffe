package migrate

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"cucriu/criuutil/images"
	"cucriu/criuutil/proc"
	"cucriu/hooks/migrate/wire"
	"cucriu/hooks/preflight"
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
	if err := errors.Join(d.openStage(ctx), d.dropProbe()); err != nil {
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

// openStage makes the directory for the images, and listens for the pinned source.
func (d *destination) openStage(ctx context.Context) (err error) {
	if d.stage != nil {
		return nil
	}
	if err := d.listenForSource(ctx); err != nil {
		return err
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

// listenForSource listens for the data connections of the pinned source.
func (d *destination) listenForSource(ctx context.Context) error {
	config, err := d.identity.ServerConfig(d.peer.Fingerprint)
	if err != nil {
		return err
	}
	d.listener, err = wire.Listen(ctx, wire.ListenOptions{Bind: d.options.Bind, Ports: d.options.Ports, Config: config, Log: d.hook.Log})
	return err
}

// beginRound makes a directory, and tells the source where to send what goes into it.
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
	d.receiver = wire.NewReceiver(wire.ReceiveOptions{Dir: d.root, MaxBytes: room, MaxFiles: maxFiles})
	go d.accept(ctx, d.receiver)
	return d.Send(sayListening, listening{Addresses: d.listener.Addresses()})
}

// accept serves the connections of a round.
func (d *destination) accept(ctx context.Context, receiver *wire.Receiver) {
	over, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		_ = receiver.Wait(over)
		cancel()
	}()
	for {
		conn, err := d.listener.Accept(over)
		if err != nil {
			return
		}
		go func() {
			if err := receiver.Serve(ctx, conn); err != nil {
				d.hook.Log.Debug("a data connection has ended", "error", err)
			}
		}()
	}
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
			to = filepath.Join(to, images.ParentName)
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
