package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/internal/kit/self"
	"cucriu/internal/kit/units"
)

func dumpCommand() *cobra.Command {
	var criu criuFlags
	var pid int
	var force []string
	cmd := &cobra.Command{
		Use:   "dump -t PID -D DIR",
		Short: "Dump a process tree with its GPU state, with criu",
		Long: `
The checks of cucriu check -t PID are made first; if one of them finds an error, the
dump is refused before anything is touched.

DIR is complete or absent at any time: it must not exist yet (or be empty), and
appears once the whole image is on disk, before the job is ended. If anything
fails, or the dump is interrupted (Ctrl-C), the job keeps running as before; if it
has ended meanwhile, the message says so.

With --leave-stopped it returns when every thread is stopped and the GPU state is
restored. (After criu dump -s the watcher restores it once criu has ended, and the
threads run for that moment: wait for the outcome "stopped" in cucriu status.)

The criu options that the tree needs are detected and set: --shell-job,
--tcp-established, a --network-lock that works here, --file-locks, a --ghost-limit
and --ext-unix-sk. They are recorded in the image, so a restore needs none of them
by hand. Options given by hand take precedence, and --no-auto detects none. A file
in use under a removed name that also has another name (a named semaphore) is linked
to the name that the kernel reports, "NAME (deleted)", and stays until you remove it.

The options are criu's; those not listed here can be given in a criu configuration
file with --criu-config. criu's default configuration files apply too.`,
		Example: `  cucriu dump -t 4711 -D /var/lib/images/job1
  cucriu dump -t 4711 -D /var/lib/images/job1 --leave-running
  cucriu dump -t 4711 -D /tmp/images -j --tcp-established --json`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pid == 0 {
				return usageError{errors.New("specify the root of the tree with -t")}
			}
			if criu.RPC.GetLeaveRunning() && criu.LeaveStopped {
				return usageError{errors.New("-R and -s cannot be combined")}
			}
			if err := criu.check(); err != nil {
				return err
			}
			criu.RPC.Pid = proto.Int32(int32(pid))
			return drive(cmd, func(ctx context.Context, hook *hooks.Hook) (checkpoint.Result, error) {
				hook.Force = force
				if err := hook.Judge(longJobFindings(hook, pid)).Err(); err != nil {
					return checkpoint.Result{}, err
				}
				return checkpoint.Dump(ctx, hook, criu.images, criu.Options)
			})
		},
	}
	criu.add(cmd)
	criu.addDump(cmd)
	pidFlag(cmd, &pid, "tree", "t", "the root of the process tree (required)")
	forceFlag(cmd, &force)
	jsonFlag(cmd)
	return cmd
}

// drive runs a dump or restore, and shows its progress and its summary.
func drive(cmd *cobra.Command, do func(context.Context, *hooks.Hook) (checkpoint.Result, error)) error {
	hook, err := newHook()
	if err != nil {
		return err
	}
	self.LimitMemory()
	p := newProgress(cmd)
	hook.Progress = p.step
	var result checkpoint.Result
	err = atSignal(cmd, p.say, "cancelling; waiting for a safe point", func() (err error) {
		result, err = do(cmd.Context(), hook)
		return err
	})
	p.stop()
	summary := newSummary(cmd.Name(), result, err)
	return errors.Join(err, warned(show(cmd, summary, func(out io.Writer) {
		if err == nil {
			fmt.Fprint(out, summary)
		}
		if isSet(cmd, "timeline") && result.Session != nil {
			if trace, err := timelineOf("", result.Session.Session); err == nil {
				drawTimeline(out, trace)
			}
		}
	})))
}

// criuFlags are criu's own options, under criu's names.
type criuFlags struct {
	checkpoint.Options
	images string
}

// add defines the flags that dump and restore have in common.
func (f *criuFlags) add(cmd *cobra.Command) {
	flags, opts := cmd.Flags(), &rpc.CriuOpts{}
	f.RPC = opts
	flags.Bool("timeline", false, "show at the end what took how long")
	criuFlag(cmd, &f.Path, "path of the criu to run")
	folderFlag(cmd, &f.images, "images-dir", "D", "the image directory (required)")
	folderFlag(cmd, &f.WorkDir, "work-dir", "W", "where criu's log and statistics go (default: a folder in the run directory)")
	flags.VarP(text(&opts.LogFile), "log-file", "o", "name of criu's log file in the work directory (default: "+cmd.Name()+".log)")
	opts.LogLevel = proto.Int32(2)
	flags.VarP(&value{kind: "0-4", text: "2", set: func(text string) error {
		if strings.Trim(text, "v") == "" && text != "" { // as criu has it: -vvvv, and never less than -v
			text = strconv.Itoa(max(3, len(text)+1))
		}
		level, err := strconv.ParseUint(text, 10, 31)
		if err != nil || level > 4 {
			return errors.New("must be a number from 0 to 4")
		}
		opts.LogLevel = proto.Int32(int32(level))
		return nil
	}}, "verbosity", "v", "how much criu logs: -v0 to -v4, -v is -v3; the phases are listed too")
	flags.StringVar(&f.ConfigFile, "criu-config", "", "a criu configuration file, for criu options that are not listed here")
	flags.BoolVarP(&f.LeaveStopped, "leave-stopped", "s", false, "leave the processes stopped afterwards, with their GPU state restored")
	flags.BoolVarP(is(&opts.ShellJob), "shell-job", "j", false, "the job belongs to a shell's session and terminal")
	flags.BoolVar(is(&opts.TcpEstablished), "tcp-established", false, "with established TCP connections")
	flags.BoolVar(is(&opts.TcpClose), "tcp-close", false, "restore established TCP connections as closed")
	flags.BoolVarP(is(&opts.FileLocks), "file-locks", "l", false, "with file locks")
	flags.BoolVar(is(&opts.ExtUnixSk), "ext-unix-sk", false, "with UNIX sockets whose other end is outside the tree")
	flags.BoolVar(is(&opts.LinkRemap), "link-remap", false, "link unlinked files back where that is possible")
	flags.StringArrayVar(&opts.External, "external", nil, "an external resource, as criu knows them; may be repeated")
	const modes, methods = "none, props, soft, full, strict or ignore", "iptables, nftables or skip"
	flags.Var(&value{kind: "word", set: func(text string) error {
		name := strings.ToUpper(text)
		if name == "NONE" {
			name = rpc.CriuCgMode_CG_NONE.String()
		}
		mode, known := rpc.CriuCgMode_value[name]
		if !known {
			return errors.New("want one of " + modes)
		}
		opts.ManageCgroups, opts.ManageCgroupsMode = proto.Bool(true), rpc.CriuCgMode(mode).Enum()
		return nil
	}}, "manage-cgroups", "control groups: "+modes)
	flags.Lookup("manage-cgroups").NoOptDefVal = "soft"
	flags.Var(&value{kind: "stringArray", set: func(text string) error {
		controller, path, both := strings.Cut(text, ":")
		if !both {
			controller, path = "", text
		}
		opts.CgRoot = append(opts.CgRoot, &rpc.CgroupRoot{Ctrl: proto.String(controller), Path: proto.String(path)})
		return nil
	}}, "cgroup-root", "[CONTROLLER:]/ROOT: another root of the control groups; may be repeated")
	flags.Var(&value{kind: "word", set: func(text string) error {
		method, known := rpc.CriuNetworkLockMethod_value[strings.ToUpper(text)]
		if !known {
			return errors.New("want one of " + methods)
		}
		opts.NetworkLock = rpc.CriuNetworkLockMethod(method).Enum()
		return nil
	}}, "network-lock", methods)
	flags.BoolVar(&f.ByHand, "no-auto", false, "use only the options given here: detect none (dump), ignore those recorded in the image (restore)")
	flags.VarP(text(&opts.Root), "root", "r", "another root file system, for a tree in a mount namespace")
}

// addDump defines those that only dump has.
func (f *criuFlags) addDump(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVarP(is(&f.RPC.LeaveRunning), "leave-running", "R", false, "leave the job running afterwards")
	f.ProbeCommand = []string{self.Path, checkpoint.CommandProbe}
	flags.BoolVar(&f.Probe, "probe", false, "before the job is ended, do a trial restore of the image in a sandbox, without the GPUs; if it shows that the image cannot be restored, the job keeps running")
	flags.BoolVar(is(&f.RPC.TcpSkipInFlight), "skip-in-flight", false, "skip TCP connections that are not established yet")
	flags.Var(&value{kind: "size", set: func(text string) error {
		size, err := units.ParseSize(text)
		if text != "0" && (err != nil || size > math.MaxUint32) {
			return fmt.Errorf("%q is not a size below 4G, such as 256M", text)
		}
		f.RPC.GhostLimit = proto.Uint32(uint32(size))
		return nil
	}}, "ghost-limit", "dump deleted files up to this size, such as 256M")
	flags.Var(text(&f.RPC.FreezeCgroup), "freeze-cgroup", "the control group with which criu freezes the tree")
}

// is makes room for a truth value of a request.
func is(to **bool) *bool {
	*to = new(bool)
	return *to
}

// text is an option that stays nil if it is empty.
func text(to **string) *value {
	return &value{kind: "string", set: func(text string) error {
		*to = nil
		if text != "" {
			*to = &text
		}
		return nil
	}}
}

// check finds what is wrong with the options together.
func (f *criuFlags) check() error {
	if f.images == "" {
		return usageError{errors.New("specify the image directory with -D")}
	}
	if log := f.RPC.GetLogFile(); strings.Contains(log, "/") {
		return usageError{fmt.Errorf("-o %s: must be a file name without a directory; use -W for the directory", log)}
	}
	return nil
}
