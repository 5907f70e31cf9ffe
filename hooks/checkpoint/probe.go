package checkpoint

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"cucriu/criuutil"
	"cucriu/hooks"
	"cucriu/hooks/image"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/criuimage"
	"cucriu/internal/kit/imagedir"
	"cucriu/internal/kit/netns"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/rundir"
)

// CommandProbe is cucriu's hidden command that is the first process of a trial's sandbox. It reads a
// request from its standard input, and ends with it.
const CommandProbe = "probe-sandbox"

// probeLimit is how long a trial restore may take.
const probeLimit = 5 * time.Minute

const (
	probeImages = 3       // descriptor of the image directory in the sandbox
	mostWritten = 1 << 30 // bytes that a trial may write into its sandbox
	leastRoom   = 64 << 20
	ourThreads  = 100
)

// ProbeOptions say how an image is tried.
type ProbeOptions struct {
	Command  []string       // as [Options.ProbeCommand]
	Criu     string         // as [Options.Path]
	Recorded *image.Options // nil are those in the image
	Before   string         // there is no trial of an image whose Kinds are these
}

// probeRequest is what the sandbox is to do.
type probeRequest struct {
	Base    string        `json:"base"` // an empty directory
	Size    int64         `json:"size"`
	Criu    string        `json:"criu"`
	Options image.Options `json:"options"`
	Paths   []string      `json:"paths"`
	Locked  bool          `json:"locked"`
}

// Probe tries whether an image can be restored, beside the job that was dumped, which may run. criu
// restores it up to the last stage at which a script can make it fail: all processes are made, and none
// has run an instruction of its own. All of it happens in new namespaces and over overlays, and without
// the GPUs.
func Probe(ctx context.Context, hook *hooks.Hook, dir string, o ProbeOptions) image.Trial {
	env := session.Of(hook)
	trial := image.Trial{At: time.Now().UTC(), Outcome: image.TrialNone}
	uses, err := criuimage.ReadUses(dir)
	if err == nil {
		sum := sha256.Sum256([]byte(strings.Join(uses.Kinds, "\n")))
		trial.Kinds = hex.EncodeToString(sum[:8])
		if trial.Kinds == o.Before {
			return trial
		}
		var t image.Trial
		if t, err = probe(ctx, env, dir, o, uses); err == nil {
			trial.Outcome, trial.Why = t.Outcome, t.Why
		}
	}
	if err != nil {
		trial.Why = err.Error()
	}
	return trial
}

// try tries the image of a dump before it is complete.
func (o *Options) try(ctx context.Context, env *session.Env, dir string, recorded *image.Options) *image.Trial {
	trial := image.Trial{At: time.Now().UTC(), Outcome: image.TrialNone, Why: "criu options were given by hand, which a trial restore does not use"}
	if !o.ByHand && o.ConfigFile == "" && o.RPC.GetRoot() == "" && len(o.RPC.GetExternal()) == 0 {
		trial = Probe(ctx, &env.Hook, dir, ProbeOptions{Command: o.ProbeCommand, Criu: o.Path, Recorded: recorded})
	}
	if trial.Outcome == image.TrialNone {
		env.Log.Warn("no conclusive trial restore: it is not known whether the image can be restored", "why", trial.Why)
	}
	return &trial
}

// probe makes the sandbox. Its error says why there was no trial.
func probe(ctx context.Context, env *session.Env, dir string, o ProbeOptions, uses criuimage.Uses) (t image.Trial, err error) {
	if uses.Unsafe != "" {
		return t, errors.New(uses.Unsafe)
	}
	if len(o.Command) == 0 {
		return t, errors.New("no command was given for the sandbox (checkpoint.Options.ProbeCommand)")
	}
	r := probeRequest{Paths: uses.Paths, Locked: uses.Locked}
	if r.Size, err = probeRoom(uses); err != nil {
		return t, err
	}
	if r.Criu, err = criuutil.LookCriu(o.Criu); err != nil {
		return t, err
	}
	if o.Recorded != nil {
		r.Options = *o.Recorded
	} else if r.Options, err = image.ReadOptions(dir); err != nil {
		return t, err
	}
	if r.Base, err = rundir.Make(env.Config.RunDir, noPlugins); err != nil {
		return t, err
	}
	open, err := os.Open(dir)
	if err != nil {
		return t, err
	}
	defer open.Close()
	request, err := json.Marshal(r)
	if err != nil {
		return t, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, probeLimit, fmt.Errorf("it took longer than %v", probeLimit))
	defer cancel()
	cmd := exec.CommandContext(ctx, o.Command[0], o.Command[1:]...)
	cmd.ExtraFiles = []*os.File{open}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWPID | unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS,
	}
	var said bytes.Buffer
	cmd.Stderr = &said
	in, err := cmd.StdinPipe() // if we are killed, it ends, and all in the sandbox with it
	if err != nil {
		return t, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return t, err
	}
	if err := cmd.Start(); err != nil {
		return t, fmt.Errorf("make a sandbox: %w", err)
	}
	type end struct {
		image.Trial
		err error
	}
	ended := make(chan end, 1)
	go func() {
		var t image.Trial
		_, err := in.Write(request)
		if err == nil {
			err = json.NewDecoder(out).Decode(&t)
		}
		in.Close()
		if waitErr := cmd.Wait(); err != nil {
			err = fmt.Errorf("the sandbox has ended: %w: %s", errors.Join(err, waitErr), strings.TrimSpace(said.String()))
		}
		ended <- end{t, err}
	}()
	select {
	case e := <-ended:
		return e.Trial, e.err
	case <-ctx.Done(): // it is killed, and nobody waits for what hangs in the kernel
		return t, context.Cause(ctx)
	}
}

// probeRoom returns how much a trial may write, in bytes. It takes no more than half of the memory and
// of the threads that are left to the job.
func probeRoom(uses criuimage.Uses) (int64, error) {
	threads, err := proc.System{}.TaskRoom(os.Getpid())
	if err != nil {
		return 0, err
	}
	if uses.Threads+ourThreads > threads/2 {
		return 0, fmt.Errorf("it has %d threads, and %d more are allowed (pids.max, kernel.pid_max), half of them reserved for the job", uses.Threads, threads)
	}
	room, err := proc.System{}.AvailableMemory()
	if err != nil {
		return 0, err
	}
	groups, err := proc.System{}.MemoryGroups(os.Getpid())
	if err != nil {
		return 0, err
	}
	for _, g := range groups {
		room = min(room, g.Room())
	}
	left := int64(room/2) - uses.Bytes
	if left < leastRoom {
		return 0, fmt.Errorf("it takes %d MiB of memory, and %d MiB are available, half of it reserved for the job", (uses.Bytes+leastRoom)>>20, room>>20)
	}
	return min(left, mostWritten), nil
}

// ProbeInside is the first process of the sandbox. putBack makes the files of the job what they were at
// the dump.
func ProbeInside(ctx context.Context, in io.Reader, out io.Writer, putBack func(ctx context.Context, dir string) error) error {
	decoder := json.NewDecoder(in)
	var r probeRequest
	if err := decoder.Decode(&r); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	go func() {
		_, _ = decoder.Token() // there is no more input, so this is its end
		os.Exit(1)
	}()
	if os.Getpid() != 1 {
		return errors.New("this command is only for the first process of a sandbox")
	}
	trial, err := r.try(ctx, putBack)
	if err != nil {
		trial = image.Trial{Outcome: image.TrialNone, Why: err.Error()}
	}
	return json.NewEncoder(out).Encode(trial)
}

func (r *probeRequest) try(ctx context.Context, putBack func(ctx context.Context, dir string) error) (t image.Trial, err error) {
	dir := fmt.Sprintf("/proc/self/fd/%d", probeImages)
	unix.CloseOnExec(probeImages)
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0) // rather than the job
	_ = unix.Setpriority(unix.PRIO_PROCESS, 0, 5)                   // not lower: the job may wait for locks of the kernel that it holds
	s, err := enterSandbox(r.Base, r.Size, r.Locked)
	if err != nil {
		return t, fmt.Errorf("no sandbox: %w", err)
	}
	if err := s.covers(r.Paths); err != nil {
		return t, err
	}
	sockets, err := imagedir.Open(dir).Sockets()
	if err == nil {
		err = netns.AddLoopback(sockets.Local)
	}
	if err != nil {
		return t, err
	}
	if err := putBack(ctx, dir); err != nil {
		return t, fmt.Errorf("the job's files: %w", err)
	}
	const firstPID = 1000
	first, err := criuimage.FreePIDs(dir, firstPID)
	if err == nil {
		err = os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(first-1)), 0)
	}
	if err != nil {
		return t, err
	}
	return r.restore(ctx, dir)
}

// restore has criu restore the image up to the stage post-restore, and makes it fail there.
func (r *probeRequest) restore(ctx context.Context, dir string) (t image.Trial, err error) {
	o := Options{RPC: &rpc.CriuOpts{
		LogLevel: proto.Int32(2), LogFile: proto.String("restore.log"),
		ManageCgroupsMode: rpc.CriuCgMode_IGNORE.Enum(), ManageCgroups: proto.Bool(true),
	}}
	r.Options.GhostLimit, r.Options.NetworkLock = 0, "" // for the dump only
	add(&o, r.Options)
	null, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0)
	if err != nil {
		return t, err
	}
	defer null.Close()
	for _, pipe := range r.Options.Pipes {
		o.Inherit = append(o.Inherit, Inherited{pipe.Name, null})
	}
	workDir, err := os.MkdirTemp("/", ".cucriu-probe-") // it is gone with the sandbox
	if err != nil {
		return t, err
	}
	output, err := os.Create(filepath.Join(workDir, "output"))
	if err != nil {
		return t, err
	}
	// There is nobody outside of a sandbox to be connected to.
	changes := criuimage.FileChanges{CloseOutside: true, NameSocket: func(name string) string { return name }}
	changed, err := withChangedFiles(dir, workDir, fmt.Sprintf("/proc/1/fd/%d", probeImages), changes)
	if err != nil {
		return t, err
	}
	closeDirs, err := o.addFiles(o.RPC, changed, workDir)
	defer closeDirs()
	if err != nil {
		return t, err
	}
	swrk, err := criuutil.StartSwrk(r.Criu, append(os.Environ(), "CRIU_LIBS_DIR="+r.Base), output, o.inherited()...)
	if err != nil {
		return t, err
	}
	reached := false
	enough := errors.New("that is enough")
	_, err = swrk.Do(ctx, rpc.CriuReqType_RESTORE, o.RPC, func(_ context.Context, stage string, _ int) error {
		if stage != criuutil.StagePostRestore {
			return nil
		}
		reached = true
		return enough
	})
	if reached {
		return image.Trial{Outcome: image.TrialRestores}, nil
	}
	log, readErr := os.ReadFile(filepath.Join(workDir, o.RPC.GetLogFile()))
	if readErr != nil { // criu did not begin
		said, _ := os.ReadFile(output.Name())
		return t, fmt.Errorf("%w: %s", err, strings.TrimSpace(string(said)))
	}
	return judgeTrial(criuutil.ReadFailure(bytes.NewReader(log)), err), nil
}

// ofSandbox matches errors of criu that a sandbox, or the running job's changes to its files, may
// cause: by where they are in criu's source, or by what they say.
var ofSandbox = regexp.MustCompile(`^\((?:criu/|soccr/)?(?:sk-|sockets|net|tun|soccr|tty|file-lock|fsnotify|cgroup|mount|lsm|apparmor|autofs|image|protobuf|page|shmem|memfd|hugetlb)[^)]*\)` +
	`|No space left|Cannot allocate memory|Read-only file system|Permission denied|not permitted|Too many open files|quota exceeded|Address already in use|No such device|Resource temporarily unavailable` +
	`|Can't open |Can't link |Can't unlink |bad size|bad mode|[Gg]host|remap|Can't fork for|intersects with|do not match expected`)

// judgeTrial tells from criu's log why a trial failed.
func judgeTrial(failure criuutil.Failure, err error) image.Trial {
	switch {
	case failure.Cause == "":
		return image.Trial{Outcome: image.TrialNone, Why: fmt.Sprintf("criu gave no reason for its failure: %v", err)}
	case ofSandbox.MatchString(failure.Place + ": " + failure.Cause):
		return image.Trial{Outcome: image.TrialNone, Why: "the sandbox may be why criu failed: " + failure.Cause}
	}
	return image.Trial{Outcome: image.TrialFails, Why: "criu failed: " + failure.Cause}
}
