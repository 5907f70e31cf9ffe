package stages

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/criuutil"
	"cucriu/hooks/preflight"
	"cucriu/hooks/timeline"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// Stage is what criu tells an action script through its environment.
type Stage struct {
	Action   string // CRTOOLS_SCRIPT_ACTION
	ImageDir string // CRTOOLS_IMAGE_DIR: /proc/PID/fd/N of criu itself; with a Client, a path of its own for it
	// ImagePath is the image directory's name, if a Client reaches it by another path.
	ImagePath string
	InitPID   string // CRTOOLS_INIT_PID: the root task, a pid that criu's caller sees

	// Supervised says that who restores has the lease of the long job that the image was made of.
	Supervised bool `json:"-"`

	// Stopped is called at pre-dump once no process of the tree runs or, if none uses CUDA, before criu stops them. It is
	// nil if there is nothing to do. If it returns an error, the dump fails.
	Stopped func() error `json:"-"`
	// Publish gives a complete image its final form at post-dump, before criu ends the processes. It is
	// nil if there is nothing to do. An error keeps the job alive.
	Publish func(context.Context) error `json:"-"`
	// Checked says that the client makes the image's checksums, or compares the image with them.
	Checked bool `json:"-"`
	// PublishedDir is where the image is after Publish; empty if that is still ImageDir.
	PublishedDir string
	// Compare has a dump note what a later one can be compared with, and Base is an earlier image of the same job
	// with which it is compared itself; empty if there is none. What has not changed is left out of the new image, unless CopyAll says
	// that it is copied to see whether it really has not. Then the image is complete only together with Base.
	Compare bool   `json:"-"`
	Base    string `json:"-"`
	CopyAll bool   `json:"-"`
	// Written is told of the files of the GPU state as they grow: see [pages.Writer].
	Written func(f *os.File, offset, size int64) `json:"-"`
	// Hold, if it is set, keeps the processes held after criu has done its part, until somebody
	// decides.
	Hold  *journal.Hold `json:"-"`
	Claim *os.File      `json:"-"` // locks the directory until the dump itself does; nil for an action script
	// Client is the process that serves criu's notifications over RPC; nil for an action script.
	Client *proc.Ident
	// Prefetched is what was asked about the tree before criu was started; nil if nothing was.
	Prefetched *inspect.Prefetched `json:"-"`
}

// StageFrom reads the stage from an environment.
func StageFrom(getenv func(string) string) Stage {
	return Stage{
		Action:   getenv("CRTOOLS_SCRIPT_ACTION"),
		ImageDir: getenv("CRTOOLS_IMAGE_DIR"),
		InitPID:  getenv("CRTOOLS_INIT_PID"),
	}
}

// imagePath returns the path of the image directory, for messages and the journal.
func (s Stage) imagePath() (string, error) {
	if s.Client != nil {
		return cmp.Or(s.ImagePath, s.ImageDir), nil
	}
	path, err := os.Readlink(s.ImageDir)
	if err != nil {
		return "", fmt.Errorf("image directory: %w", err)
	}
	return path, nil
}

// named returns an error whose text has the name of the image directory in place of a descriptor's.
func (c *call) named(err error) error {
	path, pathErr := c.stage.imagePath()
	if err == nil || pathErr != nil || path == c.stage.ImageDir {
		return err
	}
	return &namedError{err, c.stage.ImageDir, path}
}

type namedError struct {
	error
	dir, path string
}

func (e *namedError) Unwrap() error { return e.error }

func (e *namedError) Error() string {
	return strings.NewReplacer(e.dir+"/", e.path+"/", e.dir+":", e.path+":").Replace(e.error.Error())
}

func (s Stage) root() (int, error) {
	pid, err := strconv.Atoi(s.InitPID)
	if err != nil || pid <= 0 {
		return 0, fmt.Errorf("CRTOOLS_INIT_PID is %q at stage %s, and criu sets it to the pid of the root task", s.InitPID, s.Action)
	}
	return pid, nil
}

// call is one stage of a criu at work.
type call struct {
	*session.Env
	criu  *criuutil.Criu
	stage Stage
	begun time.Duration // since boot
}

// handlers do the stages. The others need nothing of us.
var handlers = map[string]func(*call, context.Context) error{
	criuutil.StagePreDump:             (*call).preDump,
	criuutil.StagePostDump:            (*call).postDump,
	criuutil.StageNetworkUnlock:       (*call).networkUnlock,
	criuutil.StagePreRestore:          (*call).preRestore,
	criuutil.StageSetupNamespaces:     (*call).rootNamed,
	criuutil.StagePostSetupNamespaces: (*call).rootNamed,
	criuutil.StagePostRestore:         (*call).rootNamed,
	criuutil.StagePreResume:           (*call).preResume,
	criuutil.StagePostResume:          (*call).postResume,
}

// Run does a stage as criu's action script. criu aborts on an error at pre-dump and pre-restore, and
// ignores one at pre-resume and post-resume, so there Run ends the tree itself. If an engine drives
// criu, the error is a [LateError] then.
func Run(ctx context.Context, env *session.Env, stage Stage) error {
	named := *env
	named.Log = env.Log.With("stage", stage.Action)
	env = &named
	if stage.Action == "" {
		return errors.New("CRTOOLS_SCRIPT_ACTION is not set: this program is an action script of criu (criu dump --action-script cucriu-hook …), not a command")
	}
	if handlers[stage.Action] == nil {
		return nil
	}
	inside, err := proc.IsInInnerPIDNamespace()
	if err != nil {
		return err
	}
	if inside && slices.Contains(insideStages, stage.Action) {
		return runInside(ctx, env, stage)
	}
	criu, err := criuutil.CriuOf(stage.ImageDir)
	if err != nil {
		return err
	}
	defer criu.Close()
	// criu's configuration files may name this hook although a client serves the dump or restore over
	// RPC. criu notifies its client first.
	if served, err := servedByClient(env.Config.RunDir, proc.Ident(criu.Ident)); err != nil || served {
		return err
	}
	return late(criu, stage, once(env, criu, stage, func() error { return Serve(ctx, env, criu, stage) }))
}

// Serve does what a stage asks for, for a criu that is driven over RPC.
func Serve(ctx context.Context, env *session.Env, criu *criuutil.Criu, stage Stage) error {
	do := handlers[stage.Action]
	if do == nil {
		return nil
	}
	c := &call{env, criu, stage, timeline.SinceBoot()}
	err := c.named(do(c, ctx))
	if beginsRequest(stage.Action) && preflight.Refused(err) && ctx.Err() == nil {
		c.keepRefusal(err)
	}
	return err
}

// servedByClient reports whether another process serves a running criu over RPC, as the latest session
// of this criu has it.
func servedByClient(runDir string, criu proc.Ident) (bool, error) {
	if rundir.IsForeign(runDir) {
		return false, nil
	}
	all, err := journal.List(runDir)
	if err != nil {
		return false, err
	}
	for _, s := range slices.Backward(all) {
		if s.Criu == criu {
			return s.Client != nil, nil
		}
	}
	return false, nil
}

// keepRefusal keeps why the stage was refused. criu's own name for the image directory, which ends with
// criu, is not kept.
func (c *call) keepRefusal(err error) {
	r := journal.Refusal{Kind: journal.KindDump, CriuPID: c.criu.PID}
	if c.stage.Action == criuutil.StagePreRestore {
		r.Kind = journal.KindRestore
	}
	r.RootPID, _ = c.stage.root() // a restore has none yet
	dir, pathErr := c.stage.imagePath()
	if pathErr != nil {
		dir = ""
	}
	r.ImageDir = imagedir.FinalName(dir)
	rename := []string{c.stage.ImageDir, r.ImageDir}
	if dir != "" {
		rename = append(rename, dir, r.ImageDir)
	}
	c.KeepRefusal(r, err, rename...)
}

// openSession finds and locks the open session of the criu. It returns nil if there is none: then no
// process of criu's tree uses CUDA, or the session is over.
func (c *call) openSession(kind journal.Kind) (*session.Session, error) {
	s, err := session.LatestSessionOf(c.Env, kind, proc.Ident(c.criu.Ident), c.stage.Action, true)
	if err != nil || s == nil {
		return nil, err
	}
	if s.Outcome != "" {
		s.Unlock()
		return nil, nil
	}
	return s, nil
}

// LateError is the failure of a restore whose tree has been ended, in a stage at which criu ignores
// failures. It would tell the engine that drives it of a success, and the engine might remove the
// image.
type LateError struct {
	Err  error
	criu proc.Ident
}

// Error returns the cause.
func (e *LateError) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *LateError) Unwrap() error { return e.Err }

// EndCriu kills criu, which has nothing left to do but to report a success. Whoever drives it sees that
// the restore has failed. What is to be in criu's log must be written before.
func (e *LateError) EndCriu() error {
	return session.SignalKnown(unix.SIGKILL, e.criu)
}

// late makes the failure of a stage a [LateError] if it is one. Without an engine, the log of criu and
// cucriu status say what became of the job.
func late(criu *criuutil.Criu, stage Stage, err error) error {
	if err == nil || stage.Action != criuutil.StagePostResume || !criu.RPC {
		return err
	}
	pid, rootErr := stage.root()
	if rootErr != nil {
		return err
	}
	root, openErr := proc.Open(pid)
	if openErr == nil {
		defer root.Close()
	}
	if errors.Is(openErr, proc.ErrGone) || openErr == nil && root.Exiting() {
		return &LateError{Err: err, criu: proc.Ident(criu.Ident)}
	}
	return err // such as one that is left for inspection
}
