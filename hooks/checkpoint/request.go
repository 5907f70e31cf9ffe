package checkpoint

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/criuutil"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/engine"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/core/stages"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// Options is how a dump or restore drives criu.
type Options struct {
	// Path is the criu to run. If it is empty, criu is looked up in PATH and where root's programs lie.
	Path string
	// RPC are the options by criu's own names. Dump and Restore set what they decide by themselves (the
	// folders and notifications) in a copy, and LogFile in RPC itself if it is nil.
	RPC *rpc.CriuOpts
	// ConfigFile holds options that have no place in RPC, in the form of criu's configuration files. It
	// is empty if there are none.
	ConfigFile string
	// WorkDir is where criu's log and statistics go. If it is empty, they go to a folder in the run
	// directory.
	WorkDir string
	// LeaveStopped is criu's -s.
	LeaveStopped bool
	// ByHand says that only the options in RPC count: a dump does not look for those that the tree
	// needs, and a restore not for those that the image was made with.
	ByHand bool
	// Output is what a restored job gets in place of pipes into which it wrote for processes outside of
	// the image; nil for our standard output or, for a pipe that was the job's standard error alone, our
	// standard error. If that is itself a pipe, the job gets it only if it becomes our child
	// (RstSibling), else /dev/null.
	Output *os.File
	// NoTerminal says that the tree has no terminal open, and that of its session is not its own.
	NoTerminal bool
	// Inherit are files that a restored job gets in place of what was outside of the image.
	Inherit []Inherited
	// CloseOutside has TCP connections whose other end is not in the image restored as closed.
	CloseOutside bool

	// AtStandstill, if it is set, is called on a dump once criu has written its images into dir. No
	// process of the tree runs then. If it returns an error, the dump fails.
	AtStandstill func(ctx context.Context, dir string) error
	// BeforeResume, if it is set, is called on a restore once all processes are there and before any of them runs. They do
	// not have their GPU state yet. If it returns an error, criu undoes the restore.
	BeforeResume func(ctx context.Context) error

	// Written, if it is set, is told of the files of the GPU state as they grow: see
	// [pages.Writer].
	Written func(f *os.File, offset, size int64)

	// Compare has a dump note what a later one can be compared with. Base is such an earlier image of the same job, which
	// stays where it is: what has not changed since is left out of the new image, which is then complete only
	// together with Base. VerifyUnchanged copies that all the same, and the dump fails if it has changed. Only
	// the memory that the library in a job moves is compared.
	Compare         bool
	Base            string
	VerifyUnchanged bool

	// NoChecksums leaves criu's files without checksums: whoever has the dump made makes their own, or uses it
	// up at once.
	NoChecksums bool
	// Supervised says that who restores has the lease of the long job in whose directory the image is. Any other
	// restore of such an image is refused, because its job could run twice.
	Supervised bool
	// CheckImage, if it is set, checks an image while criu restores it, in place of the checksums that Dump
	// has made. If it returns an error, the restore fails.
	CheckImage func(context.Context) error

	// Probe has a dump try whether its image can be restored, before criu lets go of the job. If it
	// cannot, the dump fails and the job keeps running. ProbeCommand is what calls [ProbeInside].
	Probe        bool
	ProbeCommand []string

	// Hold, if it is set, keeps the job held once criu is through.
	Hold *Hold
}

// Inherited is a file that criu gives to a restored job.
type Inherited struct {
	Name string // criu's, for what it takes the place of
	File *os.File
}

// Result says how a dump or restore went.
type Result struct {
	// Session is the status of the session; nil if no process uses CUDA.
	Session   *Status `json:"session,omitempty"`
	RootPID   int     `json:"root_pid"` // as criu's caller sees it
	ImagesDir string  `json:"images_dir"`
	Log       string  `json:"log"` // criu's
	// Needs are the options of criu that a dump has found and set.
	Needs []preflight.Need `json:"needs,omitempty"`
	// Trial is how the trial restore went; nil if none was asked for.
	Trial *image.Trial `json:"trial,omitempty"`
	Bytes int64        `json:"image_bytes"`
	// Unchanged is how much GPU memory, in bytes, was not copied, because Base has it.
	Unchanged uint64        `json:"unchanged_bytes,omitempty"`
	Total     time.Duration `json:"total_ns"`
	// Downtime is how long the job did not run: on a dump from the lock on, on a restore the whole
	// time.
	Downtime time.Duration `json:"downtime_ns"`
}

// criuSession is one request to a criu that we started.
type criuSession struct {
	env         *session.Env
	kind        journal.Kind
	options     Options
	path        string // of criu
	workDir     string
	working     *os.File // workDir, locked as long as it is in use; nil if the user has named it
	output      *os.File // gets what criu prints beside its log
	swrk        *criuutil.Swrk
	criu        *criuutil.Criu
	stage       stages.Stage // what all stages have in common
	begun       time.Time
	seized      time.Time // when criu was about to seize the processes of a dump
	cause       string    // why criu failed, for the journal; empty if it did not, or it is not known
	staged      bool      // criu has announced a stage; before that it touches nothing
	probe       func(context.Context) error
	checked     func() error // waits for what a restore's check of the image has found; nil before it begins
	outcomeSaid bool         // the error says already what became of the job
}

// start starts criu for a request about an image directory.
func start(env *session.Env, kind journal.Kind, options Options, imagesDir string) (_ *criuSession, err error) {
	d := &criuSession{env: env, kind: kind, options: options, begun: time.Now()}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	path, err := criuutil.LookCriu(options.Path)
	if err != nil {
		return nil, preflight.Findings{preflight.Found(preflight.FindingCriuMissing, err)}.Err()
	}
	d.path = path
	if err := d.prepareWorkDir(); err != nil {
		return nil, err
	}
	self, err := proc.IdentOf(os.Getpid())
	if err != nil {
		return nil, err
	}
	hold, err := options.Hold.record()
	if err != nil {
		return nil, err
	}
	d.stage = stages.Stage{
		ImageDir: imagesDir, Client: &self, Checked: true, Hold: hold, Written: options.Written,
		Compare: options.Compare, Base: options.Base, CopyAll: options.VerifyUnchanged,
		Supervised: options.Supervised,
	}
	empty, err := rundir.Make(env.Config.RunDir, noPlugins)
	if err != nil {
		return nil, err
	}
	// criu's own CUDA plugin would do our work once more, without the map.
	if err := d.startSwrk(path, append(os.Environ(), "CRIU_LIBS_DIR="+empty)); err != nil {
		return nil, err
	}
	if d.criu, err = criuutil.OpenCriu(d.swrk.PID); err != nil {
		if errors.Is(err, proc.ErrGone) {
			err = d.noCriu(criuutil.ErrNoAnswer)
		}
		return nil, errors.Join(err, d.swrk.Close(), d.output.Close())
	}
	asked := proto.Clone(options.RPC).(*rpc.CriuOpts)
	if options.ConfigFile != "" {
		asked.ConfigFile = proto.String(options.ConfigFile)
	}
	err = d.criu.SetOptions(asked)
	if err == nil && kind == journal.KindDump && d.criu.PagesElsewhere {
		err = preflight.AsRefusal(fault.New("criu is configured not to write all pages into the image (lazy-pages, page-server, prev-images-dir or stream), and this dump makes a complete one",
			"leave the option out, or use criu dump with cucriu-hook"))
	}
	if err != nil {
		return nil, errors.Join(err, d.criu.Close(), d.swrk.Close(), d.output.Close())
	}
	if options.LeaveStopped {
		d.criu.LeaveStopped = true
	} else if options.RPC.GetLeaveRunning() { // see configFile
		d.criu.LeaveRunning, d.criu.LeaveStopped = true, false
	}
	if !d.criu.LibDirGiven {
		d.criu.LibDir = empty
	}
	if options.RPC.GetRstSibling() {
		d.criu.RootParent = (*criuutil.Ident)(&self)
	}
	return d, nil
}

// startSwrk starts criu. What criu prints beside its log would end up in the middle of our own lines,
// so it goes to a file, which [criuSession.said] reads.
func (d *criuSession) startSwrk(path string, env []string) (err error) {
	if d.output, err = os.CreateTemp(d.workDir, string(d.kind)+"-*.out"); err != nil {
		return fmt.Errorf("directory for criu's log: %w", err)
	}
	if err = os.Remove(d.output.Name()); err == nil {
		d.swrk, err = criuutil.StartSwrk(path, env, d.output, d.options.inherited()...)
	}
	if errors.Is(err, criuutil.ErrNoAnswer) { // it has ended at once
		err = cmp.Or(d.unusable(), d.noCriu(err))
	}
	if err != nil {
		return errors.Join(err, d.output.Close())
	}
	return nil
}

// said returns what criu has printed beside its log.
func (d *criuSession) said() string {
	text, err := io.ReadAll(io.NewSectionReader(d.output, 0, 1<<16))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}

// noPlugins is the folder for criu's plugins in the run directory, which holds none.
const noPlugins = "no-plugins"

const keepLogs = 32 // folders of criu's logs in the run directory

// prepareWorkDir makes a folder for criu's log if the user has named none, and drops the oldest of
// these folders.
func (d *criuSession) prepareWorkDir() error {
	if d.options.WorkDir != "" {
		d.workDir = d.options.WorkDir
		if info, err := os.Stat(d.workDir); err != nil {
			return fmt.Errorf("directory for criu's log (--work-dir): %w: create it first", err)
		} else if !info.IsDir() {
			return fmt.Errorf("directory for criu's log: %s is not a directory", d.workDir)
		}
		return nil
	}
	logs, err := rundir.Make(d.env.Config.RunDir, "logs")
	if err != nil {
		return err
	}
	// The names sort by time, as long as nobody sets the clock back.
	d.workDir = filepath.Join(logs, fmt.Sprintf("%s-%s-%d", d.begun.UTC().Format("20060102T150405.000"), d.kind, os.Getpid()))
	if err := os.MkdirAll(d.workDir, 0o700); err != nil {
		return fmt.Errorf("directory for criu's log: %w", err)
	}
	if d.working, err = lockLogs(d.workDir); err != nil && !errors.Is(err, unix.EWOULDBLOCK) { // another request of this millisecond
		return fmt.Errorf("directory for criu's log: %w", err)
	}
	if err := removeOldLogs(logs); err != nil {
		return fmt.Errorf("remove an old log: %w", err)
	}
	return nil
}

// lockLogs locks a folder of logs, which is not removed as long as it is locked.
func lockLogs(dir string) (*os.File, error) {
	f, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "lock", Path: dir, Err: err}
	}
	return f, nil
}

// removeOldLogs removes the oldest folders of logs, but none in which a criu works.
func removeOldLogs(logs string) error {
	entries, err := os.ReadDir(logs)
	if err != nil {
		return err
	}
	for _, entry := range entries[:max(0, len(entries)-keepLogs)] {
		dir := filepath.Join(logs, entry.Name())
		unused, err := lockLogs(dir)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err == nil {
			err = errors.Join(os.RemoveAll(dir), unused.Close())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// close lets go of the folder of logs.
func (d *criuSession) close() {
	if d.working != nil {
		d.working.Close()
	}
}

// do makes the request and serves criu's stages, until criu has ended.
func (d *criuSession) do(ctx context.Context) (_ *rpc.CriuResp, err error) {
	defer d.criu.Close() // its identity stays known
	defer d.output.Close()
	defer func() {
		if !d.staged {
			err = preflight.AsRefusal(err)
		}
	}()
	if d.options.RPC.LogFile == nil {
		d.options.RPC.LogFile = proto.String(string(d.kind) + ".log")
	}
	opts := proto.Clone(d.options.RPC).(*rpc.CriuOpts)
	if opts.Timeout == nil {
		opts.Timeout = proto.Uint32(30) // seconds for seizing the tree: threads that wait for a slow disk take longer than criu's 10
	}
	config, err := d.configFile()
	if config != "" {
		opts.ConfigFile = proto.String(config)
	}
	imagesDir, removeLinks, changeErr := d.changedImages()
	defer removeLinks()
	if err = errors.Join(err, changeErr); err == nil {
		var closeDirs func()
		closeDirs, err = d.options.addFiles(opts, imagesDir, d.workDir)
		defer closeDirs()
	}
	if err != nil {
		return nil, errors.Join(err, d.swrk.Close())
	}
	request := rpc.CriuReqType_DUMP
	if d.kind == journal.KindRestore {
		request = rpc.CriuReqType_RESTORE
	}
	response, err := d.swrk.Do(ctx, request, opts, d.notified)
	if closeErr := d.swrk.Close(); err == nil {
		err = closeErr
	} else if closeErr != nil && errors.Is(err, criuutil.ErrNoAnswer) {
		err = fmt.Errorf("%w: %w", err, closeErr)
	}
	said := d.said()
	if said != "" && err == nil {
		d.env.Log.Info("criu printed", "text", said)
	}
	return response, d.withCriuLog(err, said)
}

// addFiles adds to a request the directories, and the files that the job inherits. The directories must
// be closed once it is done.
func (o *Options) addFiles(opts *rpc.CriuOpts, imagesDir, workDir string) (closeDirs func(), err error) {
	images, err := os.Open(imagesDir)
	if err != nil {
		return func() {}, fmt.Errorf("image directory: %w", err)
	}
	work, err := os.Open(workDir)
	if err != nil {
		images.Close()
		return func() {}, fmt.Errorf("directory for criu's log: %w", err)
	}
	opts.ImagesDirFd, opts.WorkDirFd = proto.Int32(int32(images.Fd())), proto.Int32(int32(work.Fd()))
	for n, i := range o.Inherit {
		opts.InheritFd = append(opts.InheritFd, &rpc.InheritFd{Key: proto.String(i.Name), Fd: proto.Int32(int32(criuutil.FirstInherited + n))})
	}
	return func() { images.Close(); work.Close() }, nil
}

// inherited returns the files that the job inherits, for criu's descriptors from
// [criuutil.FirstInherited] on.
func (o *Options) inherited() (files []*os.File) {
	for _, i := range o.Inherit {
		files = append(files, i.File)
	}
	return files
}

// configFile names a configuration file for criu: the user's, with what has no place in RPC, or has one
// only in the newest criu, which an older one would pass over in silence; and with -R, which the file would override.
func (d *criuSession) configFile() (string, error) {
	text := "leave-stopped\n"
	if !d.options.LeaveStopped {
		if d.options.ConfigFile == "" || !d.options.RPC.GetLeaveRunning() {
			return d.options.ConfigFile, nil
		}
		text = "leave-running\n"
	}
	if d.options.ConfigFile != "" {
		user, err := os.ReadFile(d.options.ConfigFile)
		if err != nil {
			return "", fmt.Errorf("--criu-config: %w", err)
		}
		text = string(user) + "\n" + text
	}
	path := filepath.Join(d.workDir, "criu.conf")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("criu's configuration: %w", err)
	}
	return path, nil
}

// notified does a stage. Once the caller has given up, the next stage that can still abort does so.
// Everything is then undone, in criu and here.
func (d *criuSession) notified(ctx context.Context, action string, pid int) error {
	d.staged = true
	if action == criuutil.StagePreDump {
		d.seized = time.Now()
	}
	abortable := []string{criuutil.StagePreDump, criuutil.StageNetworkLock, criuutil.StagePostDump, criuutil.StagePreRestore, criuutil.StageSetupNamespaces, criuutil.StagePostSetupNamespaces, criuutil.StagePostRestore}
	if slices.Contains(abortable, action) && ctx.Err() != nil {
		return fmt.Errorf("%w: cancelled at criu's stage %s", context.Cause(ctx), action)
	}
	if !slices.Contains(abortable, action) {
		ctx = context.WithoutCancel(ctx)
	}
	stage := d.stage
	stage.Action = action
	if pid == 0 && action == criuutil.StagePreDump {
		pid = int(d.options.RPC.GetPid())
	}
	if pid > 0 {
		stage.InitPID = strconv.Itoa(pid)
		d.stage.InitPID = stage.InitPID // not every stage names it
	}
	if action == criuutil.StagePostDump && d.options.AtStandstill != nil {
		if err := d.options.AtStandstill(ctx, d.stage.ImageDir); err != nil {
			return err
		}
	}
	if action == criuutil.StagePostDump && d.probe != nil {
		if err := criuimage.Settle(d.stage.ImageDir); err != nil { // as what will be restored
			return err
		}
		if err := d.probe(ctx); err != nil {
			return err
		}
	}
	if action == criuutil.StagePreResume {
		// The hook does so for trees that use CUDA; others have no session.
		if root, err := strconv.Atoi(d.stage.InitPID); err == nil {
			tree, _ := proc.Tree(root) // it may have ended
			engine.RearmTimers(d.env.Log, tree...)
		}
	}
	err := stages.Serve(ctx, d.env, d.criu, stage)
	if action == criuutil.StagePreRestore { // nothing is undone yet of which the error would tell
		err = preflight.AsRefusal(session.GivenUp(ctx, err))
	}
	if d.kind == journal.KindRestore && err == nil {
		if err := d.checkImage(ctx, action); err != nil {
			return err
		}
		if action == criuutil.StagePostRestore && d.options.BeforeResume != nil {
			if err := d.options.BeforeResume(ctx); err != nil {
				return err
			}
		}
	}
	d.outcomeSaid = d.outcomeSaid || err != nil && (action == criuutil.StagePreDump || d.kind == journal.KindRestore)
	return err
}

// withOutcome adds to the error what became of the job, if it does not say so already.
func (d *criuSession) withOutcome(err error, outcome string) error {
	switch {
	case !d.staged || d.outcomeSaid || outcome == "":
		return err
	case strings.Contains(err.Error(), "\n"):
		return fmt.Errorf("%w\n%s", err, outcome)
	}
	return fmt.Errorf("%w; %s", err, outcome)
}

func (d *criuSession) logPath() string { return filepath.Join(d.workDir, d.options.RPC.GetLogFile()) }

// noCriu explains that what was run as criu does not answer.
func (d *criuSession) noCriu(err error) error {
	return fmt.Errorf("%w: is %s CRIU 4.0 or newer (%s --version)?", err, d.path, d.path)
}

// unusable refuses a criu that failed before it had come to its first stage, if it is too old or cannot read its
// configuration: then what it has logged explains nothing.
func (d *criuSession) unusable() error {
	ctx, cancel := context.WithTimeout(context.Background(), d.env.Config.Lock.Timeout)
	defer cancel()
	version, err := criuutil.CriuVersion(ctx, d.path)
	if errors.As(err, new(*fault.Explained)) {
		return preflight.Findings{preflight.Found(preflight.FindingCriuMissing, err)}.Err()
	}
	if err != nil {
		return nil // what is known already says more
	}
	return d.env.Judge(inspect.CriuVersionFindings(version)).Err()
}

// rejectedOption finds in what criu has printed that it does not know an option of its configuration.
var rejectedOption = regexp.MustCompile(`(?:unrecognized|ambiguous) option '[^']+'`)

// withCriuLog adds to the error of a request what criu has logged and said: the cause comes first, then
// what to do about it.
func (d *criuSession) withCriuLog(err error, said string) error {
	failed := new(criuutil.CriuError)
	answered := errors.As(err, &failed)
	if !answered && !errors.Is(err, criuutil.ErrNoAnswer) {
		return err
	}
	if rejected := rejectedOption.FindString(said); rejected != "" && !d.staged {
		return fmt.Errorf("criu, in %s: %s", cmp.Or(d.options.ConfigFile, "its default configuration files"), rejected)
	}
	if !d.staged {
		if unusable := d.unusable(); unusable != nil {
			return unusable
		}
		if !answered {
			err = d.noCriu(err)
		}
	}
	log, readErr := os.ReadFile(d.logPath())
	failure := criuutil.ReadFailure(bytes.NewReader(log))
	switch {
	case failure.Cause == "":
	case answered:
		failed.Message = failure.Cause // criu answers with its first error, even a harmless one
	default:
		err = fmt.Errorf("%w: %s", err, failure.Cause)
	}
	var more strings.Builder
	if failure.Remedy != "" {
		more.WriteString("\nwhat to do: " + failure.Remedy)
	}
	if len(failure.Further) > 0 {
		more.WriteString("\ncriu's further errors:\n  " + strings.Join(failure.Further, "\n  "))
	}
	if said != "" {
		more.WriteString("\ncriu says: " + strings.ReplaceAll(said, "\n", "\n  "))
	}
	if readErr == nil {
		more.WriteString("\nits log: " + d.logPath())
	}
	if failure.Cause != "" {
		d.cause = fmt.Sprintf("%s (criu's log: %s)", failure.Cause, d.logPath())
	}
	return fmt.Errorf("%w%s", err, more.String())
}

func (d *criuSession) result(s *journal.Session, root int, dir string) Result {
	r := Result{Session: statusIf(s), RootPID: root, ImagesDir: dir, Log: d.logPath(), Total: time.Since(d.begun)}
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && info.Mode().IsRegular() {
			r.Bytes += info.Size()
		}
	}
	return r
}

func statusIf(s *journal.Session) *Status {
	if s == nil {
		return nil
	}
	status := statusOf(s)
	return &status
}
