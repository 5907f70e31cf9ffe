package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
	"cucriu/internal/core/agent"
	"cucriu/internal/core/inspect"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/fault"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
)

// addNeeds finds the options that the tree needs, and adds those to the request that are not in it. If advice is nil,
// adviceErr says why. record is for the image, so that the restore needs none of them; nil if there is nothing to be
// recorded. removed are for [relinkedFiles]. It refuses what no option helps against.
func addNeeds(ctx context.Context, env *session.Env, options *Options, advice *inventory.Tree, adviceErr error) (
	needs []preflight.Need, record *image.Options, removed []inventory.RemovedName, err error,
) {
	if options.ByHand {
		return nil, nil, nil, nil
	}
	var wanted inspect.Wanted
	if err = adviceErr; advice != nil { // what could not be read of it is left to criu
		wanted, err = inspect.OptionsOf(ctx, advice, inspect.Asked{
			Criu: options.Path, External: options.RPC.GetExternal(), NoTerminal: options.NoTerminal,
		})
	}
	if errors.Is(err, proc.ErrGone) {
		return nil, nil, nil, nil // criu says what is wrong with the pid
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if err := env.Refuse(slices.DeleteFunc(wanted.Findings, options.answers)); err != nil {
		return nil, nil, nil, err
	}
	found, needs := wanted.Options, slices.DeleteFunc(wanted.Needs, options.gives)
	found.LinkRemap = false // see relinkedFiles
	for _, need := range needs {
		env.Log.Info("passing "+need.Option+" to criu", "why", need.Why)
		if need.Risk != "" {
			env.Log.Warn("passing "+need.Option+" to criu: "+need.Risk, "why", need.Why)
		}
	}
	add(options, found)
	// What was given by hand counts for the restore, too.
	found.ShellJob, found.TCPEstablished, found.FileLocks = options.RPC.GetShellJob(), options.RPC.GetTcpEstablished(), options.RPC.GetFileLocks()
	found.ExtUnixSk = options.RPC.GetExtUnixSk()
	for _, p := range advice.Processes {
		found.Library = max(found.Library, agent.VersionIn(p.PID))
	}
	return needs, &found, wanted.Removed, nil
}

// answers reports whether an option that was given by hand is an answer to a finding.
func (o *Options) answers(f preflight.Finding) bool {
	return f.Name == preflight.FindingUNIXSocket &&
		slices.ContainsFunc(o.RPC.GetExternal(), func(name string) bool { return strings.HasPrefix(name, "unix[") })
}

// gives reports whether something else is there in place of an option: what was given by hand, or the
// names that [relinkedFiles] makes.
func (o *Options) gives(need preflight.Need) bool {
	name, _, _ := strings.Cut(need.Option, " ")
	return name == "--link-remap" || name == "--network-lock" && o.RPC.NetworkLock != nil || name == "--ghost-limit" && o.RPC.GhostLimit != nil
}

// addRecorded adds the options that an image was made with. It refuses a host that lacks what the job
// was connected with.
func addRecorded(env *session.Env, options *Options, dir string) error {
	if options.ByHand {
		return nil
	}
	recorded, err := image.ReadOptions(dir)
	if err != nil {
		return err
	}
	if err := cmp.Or(refuseNewer(recorded), env.Refuse(inspect.SurroundingsFindings(recorded, os.Stdin))); err != nil {
		return err
	}
	recorded.GhostLimit = 0   // the files are in the image
	recorded.NetworkLock = "" // the image itself says how the connections are locked
	add(options, recorded)
	outputs, err := options.outputs(env, recorded.Pipes)
	options.Inherit = slices.Concat(options.Inherit, outputs)
	return err
}

// refuseNewer refuses an image with a library that this program does not know, and could not have bring memory back.
func refuseNewer(recorded image.Options) error {
	if recorded.Library <= agent.Latest {
		return nil
	}
	return preflight.AsRefusal(fault.New(fmt.Sprintf("its processes have cucriu's library of version %d, and this cucriu "+
		"knows those up to %d", recorded.Library, agent.Latest), recorded.MakerRemedy()))
}

// outputs gives the job our output in place of pipes whose readers are not in the image.
func (o *Options) outputs(env *session.Env, pipes []image.Pipe) ([]Inherited, error) {
	var all []Inherited
	for _, pipe := range pipes {
		if slices.ContainsFunc(o.RPC.GetInheritFd(), func(given *rpc.InheritFd) bool { return given.GetKey() == pipe.Name }) {
			continue
		}
		file := o.Output
		switch {
		case file == nil && pipe.Stderr:
			file = os.Stderr
		case file == nil:
			file = os.Stdout
		}
		if info, err := file.Stat(); err != nil || !o.RPC.GetRstSibling() && info.Mode()&(os.ModeNamedPipe|os.ModeSocket) != 0 {
			// Whoever reads our output waits until nobody has it any more.
			env.Log.Warn("the job wrote into a pipe and now writes to " + os.DevNull + ": with --foreground, or if our output is a file or a terminal, it writes there")
			var err error
			if file, err = os.OpenFile(os.DevNull, os.O_WRONLY, 0); err != nil {
				return nil, fmt.Errorf("output of the job: %w", err)
			}
		}
		all = append(all, Inherited{pipe.Name, file})
	}
	return all, nil
}

// add adds options to a request. What the request has counts.
func add(options *Options, more image.Options) {
	opts := proto.Clone(options.RPC).(*rpc.CriuOpts) // the caller's stays as it is
	if more.ShellJob {
		opts.ShellJob = proto.Bool(true)
	}
	if more.TCPEstablished && !opts.GetTcpClose() {
		opts.TcpEstablished = proto.Bool(true)
	}
	if more.FileLocks {
		opts.FileLocks = proto.Bool(true)
	}
	if more.ExtUnixSk {
		opts.ExtUnixSk = proto.Bool(true)
	}
	if more.GhostLimit > 0 && opts.GhostLimit == nil {
		opts.GhostLimit = proto.Uint32(more.GhostLimit)
	}
	if more.NetworkLock != "" && opts.NetworkLock == nil {
		method := rpc.CriuNetworkLockMethod_SKIP
		if more.NetworkLock == "nftables" {
			method = rpc.CriuNetworkLockMethod_NFTABLES
		}
		opts.NetworkLock = method.Enum()
	}
	opts.IrmapScanPaths = append(opts.IrmapScanPaths, more.Watched...)
	options.RPC = opts
}
