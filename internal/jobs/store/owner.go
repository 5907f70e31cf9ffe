package store

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/records"
)

// Owner says who owns a store.
type Owner struct {
	Host    string `json:"host"`
	Machine string `json:"machine,omitempty"` // an id of the hardware or of the installation
	BootID  string `json:"boot_id"`
	proc.Ident
	Generation uint64    `json:"generation"` // of the store: each owner's is higher than the last one's
	Token      string    `json:"token"`      // tells two owners that took the same generation
	Since      time.Time `json:"since"`
	Released   bool      `json:"released"` // it has given the store back
}

// ownerKind is in place on a full disk: a job that is to be restored needs the store.
var ownerKind = records.Kind[Owner]{
	Name: ownerName, Remedy: "restore it from a backup", Version: 1, Limit: 64 << 10, InPlace: true,
	Check: func(o *Owner) error {
		if o.Generation == 0 || o.Token == "" || o.BootID == "" {
			return errors.New("it names no owner")
		}
		return nil
	},
}

// thisOwner returns what this process would write as the owner.
func thisOwner() (Owner, error) {
	o := Owner{Machine: machine(), Token: rand.Text(), Since: time.Now().UTC().Truncate(time.Second)}
	var err error
	if o.Host, err = os.Hostname(); err != nil {
		return o, err
	}
	if o.BootID, err = proc.BootID(); err != nil {
		return o, err
	}
	self, err := proc.Open(os.Getpid())
	if err != nil {
		return o, err
	}
	o.Ident = self.Ident
	return o, self.Close()
}

// machine returns an id that stays the same when this host boots again, or "" if there is
// none. Containers see that of the hardware, too. Copied installations may share machine-id,
// which is why the host name is compared as well.
func machine() string {
	for _, path := range []string{"/sys/class/dmi/id/product_uuid", "/etc/machine-id"} {
		data, err := os.ReadFile(path)
		if id := strings.ToLower(strings.TrimSpace(string(data))); err == nil && id != "" && len(id) <= 64 {
			return proc.Printable(id)
		}
	}
	return ""
}

// onHostOf reports whether two owners are of the same host. The lock of the store then tells
// whether the other one lives.
func (o Owner) onHostOf(other Owner) bool {
	return o.BootID == other.BootID || o.Host == other.Host && o.Machine == other.Machine && o.Machine != ""
}

// isElsewhere reports whether the owner is on another host than self, and has not released the store.
func (o Owner) isElsewhere(self Owner) bool { return !o.Released && !o.onHostOf(self) }

// String names the owner as a person would.
func (o Owner) String() string {
	return fmt.Sprintf("%s on host %s, since %s", o.Ident, proc.Printable(o.Host), o.Since.Format(time.RFC3339))
}

// readOwner reads the owner of a store. A store that nobody has owned has the zero one.
func readOwner(dir string) (Owner, error) {
	return ownerKind.ReadOr(dir, Owner{Released: true})
}

// Owner returns the record of who owns the store now, or owned it last. It is the zero Owner
// if nobody has.
func (s *Store) Owner() (Owner, error) { return readOwner(s.dir) }

// OwnerOf returns the record of who owns the store in a directory. It is the zero Owner if nobody has.
func OwnerOf(dir string) (Owner, error) { return readOwner(dir) }

// IsHere reports whether the owner is a process of this host that lives, and has not released the store.
func (o Owner) IsHere() bool { return !o.Released && o.IsOfThisBoot() && o.lives() }

// Previous returns who owned the store before this one. It is the zero Owner if nobody did, or if
// that is not known.
func (s *Store) Previous() Owner { return s.before }

// IsOfThisBoot reports whether the owner is, or was, a process of this host since it was booted.
func (o Owner) IsOfThisBoot() bool {
	boot, err := proc.BootID()
	return err == nil && o.BootID == boot
}

const bringBack = "bring the directory back as it was"

// away explains that a job's directory is not where it was.
func away(dir string, cause error) error {
	return fault.Because(cause, fmt.Sprintf("job directory %s was moved or removed", dir), bringBack)
}

// Fenced fails with [ErrFenced] if somebody else has become the owner.
func (s *Store) Fenced() error {
	if s.lock == nil {
		return nil
	}
	now, err := readOwner(s.dir)
	switch {
	case err != nil:
		return fmt.Errorf("job directory %s: cannot tell who owns it: %w", s.dir, err)
	case now.Generation == 0:
		if _, err := os.Stat(s.dir); errors.Is(err, fs.ErrNotExist) {
			return away(s.dir, nil)
		}
		return fault.New(fmt.Sprintf("job directory %s: %s was removed", s.dir, ownerName), bringBack)
	case now.Generation < s.owner.Generation && (now.Released || now.onHostOf(s.owner)):
		return fmt.Errorf("job directory %s: it was replaced by an earlier copy (%s has generation %d, not %d): restore the right one", s.dir, ownerName, now.Generation, s.owner.Generation)
	case now.Generation != s.owner.Generation || now.Token != s.owner.Token:
		return fmt.Errorf("job directory %s: %w: it was taken over by %v", s.dir, ErrFenced, now)
	}
	return nil
}

// Renew makes this process the owner once more, as a new one would be: with the next generation.
func (s *Store) Renew() error {
	if err := s.mayChange(); err != nil {
		return err
	}
	// A takeover breaks the lock before it writes who the owner is, which is not to be undone.
	if !isCurrent(s.lock) {
		return fmt.Errorf("job directory %s: its lock was removed or replaced: another host may be taking the job over", s.dir)
	}
	next := s.owner
	next.Generation++
	if err := ownerKind.Write(s.dir, next); err != nil {
		return err
	}
	s.owner = next
	return s.Fenced() // by a takeover that has written since
}

// mayChange fails if this store must not change anything.
func (s *Store) mayChange() error {
	if s.lock == nil || s.closed.Load() {
		return fmt.Errorf("job directory %s: %w", s.dir, ErrReadOnly)
	}
	return s.Fenced()
}
