package migrate

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"time"

	"cucriu/hooks"
	"cucriu/internal/migrate/wire"
	"cucriu/internal/timeline"
)

// departure is what the sources of both kinds have in common: the connection with the destination,
// and what they report.
type departure struct {
	hook     *hooks.Hook
	options  Options
	manner   manner
	identity *wire.Identity
	remote   *remote // nil before there is one, and after it was lost
	begun    time.Time
	halted   time.Time       // when the job came to a halt
	failure  error           // what the destination has last said of a decision that it could not carry out
	there    timeline.Phases // what the destination did, on its clock
	result   Result
}

// newID returns a name that nothing else has.
func newID() string {
	random := make([]byte, 8)
	rand.Read(random)
	return hex.EncodeToString(random)
}

// connect starts cucriu at the destination.
func (d *departure) connect(ctx context.Context) (err error) {
	if d.identity == nil {
		if d.identity, err = wire.NewIdentity(); err != nil {
			return err
		}
	}
	args := append(d.options.receiveArgs(), d.manner.args...)
	d.remote, err = connect(ctx, &d.options, d.result.ID, d.identity.Fingerprint(), args...)
	return err
}

// hangUp ends the connection, if there is one.
func (d *departure) hangUp() {
	if d.remote != nil {
		d.remote.Close()
		d.remote = nil
	}
}

func (d *departure) close() {
	if r := d.remote; r != nil {
		d.hangUp()
		<-r.ended
	}
}

// phase does a part of the migration and notes how long it took.
func (d *departure) phase(name string, do func() error) error {
	d.tell(Progress{Phase: name})
	begin := time.Now()
	err := do()
	d.result.Phases = append(d.result.Phases, Phase{Name: name, Begin: begin.Sub(d.begun), Took: time.Since(begin), Running: d.halted.IsZero()})
	return err
}

func (d *departure) tell(p Progress) {
	if d.options.Progress != nil {
		d.options.Progress(p)
	}
}
