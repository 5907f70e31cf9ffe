package checkpoint

import (
	"errors"
	"slices"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"

	"cucriu/criuutil/proc"
	"cucriu/hooks"
	"cucriu/hooks/image"
	"cucriu/hooks/preflight"
)

// addNeeds finds the options that the tree needs, and adds those to the request that are not
// in it. What it returns as record is for the image, so that the restore needs none of them.
// record is nil if there is nothing to be recorded.
func addNeeds(hook *hooks.Hook, options *Options) (needs []preflight.Need, record *image.Options, err error) {
	if options.ByHand {
		return nil, nil, nil
	}
	found, needs, err := preflight.OptionsOf(int(options.RPC.GetPid()))
	if errors.Is(err, proc.ErrGone) {
		return nil, nil, nil // criu says what is wrong with the pid
	}
	if err != nil {
		return nil, nil, err
	}
	// The names take its place: see giveNames.
	found.LinkRemap = false
	needs = slices.DeleteFunc(needs, func(n preflight.Need) bool { return n.Option == "--link-remap" })
	for _, need := range needs {
		hook.Log.Info("criu is told "+need.Option, "why", need.Why)
		if need.Risk != "" {
			hook.Log.Warn("criu is told "+need.Option+": "+need.Risk, "why", need.Why)
		}
	}
	add(options, found)
	// What was given by hand counts for the restore, too.
	found.ShellJob, found.TCPEstablished, found.FileLocks = options.RPC.GetShellJob(), options.RPC.GetTcpEstablished(), options.RPC.GetFileLocks()
	return needs, &found, nil
}

// addRecorded adds the options that an image was made with.
func addRecorded(options *Options, dir string) error {
	if options.ByHand {
		return nil
	}
	recorded, err := image.ReadOptions(dir)
	if err != nil {
		return err
	}
	recorded.GhostLimit = 0 // the files are in the image
	add(options, recorded)
	return nil
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
	if more.GhostLimit > 0 && opts.GhostLimit == nil {
		opts.GhostLimit = proto.Uint32(more.GhostLimit)
	}
	if more.NetworkLock == "skip" && opts.NetworkLock == nil {
		opts.NetworkLock = rpc.CriuNetworkLockMethod_SKIP.Enum()
	}
	options.RPC = opts
}
