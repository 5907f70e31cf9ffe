package migrate

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"cucriu/hooks/timeline"
	"cucriu/internal/migrate/prepare"
)

// Options say how a job migrates.
type Options struct {
	Host string // as ssh knows it
	// RSH is the command that reaches the host, ssh by default; the host and the remote command
	// are appended to it.
	RSH []string
	// Remote is how cucriu is run there, "cucriu" by default.
	Remote string
	Criu   string // the criu to run here; empty for the system's
	// Stage is a directory for the image, in memory by default.
	Stage string
	// DryRun ends the migration before anything is touched.
	DryRun bool
	// Precopy says whether the job's memory is sent once while it runs on.
	Precopy Precopy
	// MaxPause refuses a migration whose predicted pause is longer; 0 is no limit.
	MaxPause time.Duration
	// Streams is the number of connections for data, 0 for a number that fits the host.
	Streams int
	// BytesPerSecond limits the sending; 0 is no limit.
	BytesPerSecond int64
	// Compress says what of the data is compressed on its way.
	Compress Compress
	// Bind are the addresses at which the destination receives the data, all if there are none.
	// Ports are its ports for that, such as 7000-7010; empty means any.
	Bind  []string
	Ports string
	// ViaSSH sends the data over ssh, too.
	ViaSSH bool
	// TCP says what becomes of the job's connections with other programs.
	TCP prepare.TCP
	// MoveAddress is a command that moves the address of the job, for connections that are kept. It
	// is run here, with one more argument: "there" once the job is paused, before it is restored
	// at the destination, and "back" if it stays here after that, or may have.
	MoveAddress []string
	// Copy says which of its files move with it.
	Copy prepare.Copy
	// Start is the command that starts the supervisor of a long job at the destination; by default
	// it is started as here.
	Start string
	// Progress, if set, is told of each phase as it begins.
	Progress func(Progress)
}

// Precopy says whether the memory of a job is sent once while it runs on, so that less is to be
// sent while it is paused. For that, it is paused once more: see package predict.
type Precopy string

// The choices.
const (
	PrecopyAuto   Precopy = "" // if it is predicted to pay
	PrecopyNever  Precopy = "never"
	PrecopyAlways Precopy = "always"
)

// Compress says what of the data is compressed on its way.
type Compress string

// The ways to compress.
const (
	CompressAuto   Compress = ""       // what is sooner at the destination then, by samples and the speed of the link
	CompressNever  Compress = "never"  // nothing
	CompressAlways Compress = "always" // all that gets smaller
)

// Progress says how far a migration is.
type Progress struct {
	Phase string `json:"phase"`
	// Done is how many of the Total bytes of the phase are done; nil if it has none.
	Done  func() int64 `json:"-"`
	Total int64        `json:"-"`
}

// Result says how a migration went.
type Result struct {
	ID     string          `json:"id"`
	Host   string          `json:"host"`
	PID    int             `json:"pid"` // of the job's root at the destination, as seen there
	Report *prepare.Report `json:"report,omitempty"`
	// Precopied says that the job's memory is sent ahead.
	Precopied bool `json:"precopy"`
	// Predicted is the pause that was expected, Pause the one that came: from the lock here to
	// the first instruction there. With pre-copy, Predicted is the longest that comes if all of the
	// job's memory changes meanwhile, and Least if none of it does.
	Predicted time.Duration `json:"predicted_pause_ns"`
	Least     time.Duration `json:"predicted_least_ns"`
	Pause     time.Duration `json:"pause_ns"`
	// Before is how long the job was paused for the pre-copy.
	Before time.Duration `json:"precopy_pause_ns,omitempty"`
	// PrecopyPaysFrom is the share of memory that has to stay the same for pre-copy to pay, 1 or
	// more if it cannot.
	PrecopyPaysFrom float64 `json:"precopy_pays_from"`
	// Bandwidth is what the way to the destination takes, in bytes per second.
	Bandwidth float64 `json:"bytes_per_second"`
	// RoundTrip is how long a question and its answer take over the control connection, MTU the size
	// in bytes of the packets that the way for data takes, 0 if that goes through ssh.
	RoundTrip time.Duration `json:"round_trip_ns"`
	MTU       int           `json:"mtu,omitempty"`
	Total     time.Duration `json:"total_ns"`
	Phases    []Phase       `json:"phases"`
	// Timeline shows what both hosts did and when, on the source's clock. The clocks are compared
	// beforehand, and "clock_error" says by how much that may be wrong.
	Timeline timeline.Trace `json:"-"`
	// Bytes is what was sent while the job was paused, Ahead what was sent before.
	Bytes int64 `json:"bytes"`
	Ahead int64 `json:"ahead_bytes"`
	// Unchanged is how much GPU memory had not changed since it was sent ahead, and was not copied again.
	Unchanged uint64 `json:"unchanged_bytes,omitempty"`
	// Link is what of both went over the link: zeros are left out, and the rest may be compressed.
	Link int64 `json:"link_bytes"`
}

// Phase is a part of a migration.
type Phase struct {
	Name    string        `json:"name"`
	Begin   time.Duration `json:"begin_ns"` // since the begin of the migration
	Took    time.Duration `json:"took_ns"`
	Running bool          `json:"running"` // the job ran meanwhile
}

const defaultStage = "/dev/shm"

func (o *Options) fill() error {
	if o.Host == "" || strings.HasPrefix(o.Host, "-") {
		return errors.New("name the host to which the job should move")
	}
	if len(o.RSH) == 0 {
		o.RSH = []string{"ssh"}
	}
	if len(o.MoveAddress) > 0 && o.TCP != prepare.TCPKeep {
		return errors.New("--move-address requires --tcp keep: an address is only moved for connections that are kept")
	}
	if o.Remote == "" {
		o.Remote = "cucriu"
	}
	if o.Stage == "" {
		o.Stage = defaultStage
	}
	if err := o.checkListening(); err != nil {
		return err
	}
	return checkStage(o.Stage)
}

// checkStage refuses a directory in which somebody else could put files of his own.
func checkStage(dir string) error {
	info, err := os.Stat(dir)
	if err != nil {
		return fmt.Errorf("directory for the image: %w", err)
	}
	if !info.IsDir() || !filepath.IsAbs(dir) {
		return fmt.Errorf("directory for the image: %s is not the absolute path of a directory", dir)
	}
	if info.Mode().Perm()&0o022 != 0 && info.Mode()&os.ModeSticky == 0 {
		return fmt.Errorf("directory for the image: others may write to %s: name one that only root can write to", dir)
	}
	return nil
}
