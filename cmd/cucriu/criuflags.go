package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"cucriu/hooks/checkpoint"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
)

// criuFlags are criu's own options, under criu's names.
type criuFlags struct {
	path, images, work, config, log string
	verbosity                       int
	leaveStopped, byHand            bool

	shellJob, tcpEstablished, tcpClose, skipInFlight, extUnixSk, fileLocks, linkRemap bool
	external                                                                          []string
	manageCgroups, networkLock, ghostLimit, freezeCgroup, root                        string
	cgroupRoots                                                                       []string
}

// add defines the flags that dump and restore have in common.
func (f *criuFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.path, "criu", os.Getenv("CUCRIU_CRIU"), "the criu to run (default: $CUCRIU_CRIU, else the system's)")
	flags.VarP((*folderValue)(&f.images), "images-dir", "D", "the image directory (required)")
	flags.VarP((*folderValue)(&f.work), "work-dir", "W", "where criu's log and statistics go (default: a folder in the run directory)")
	flags.StringVarP(&f.log, "log-file", "o", "", "name of criu's log in the work directory (default: "+cmd.Name()+".log)")
	f.verbosity = 2
	flags.VarP((*verbosityValue)(&f.verbosity), "verbosity", "v", "how much criu logs: -v0 to -v4")
	flags.StringVar(&f.config, "criu-config", "", "a configuration file of criu, for every option of criu's that is not here")
	flags.BoolVarP(&f.leaveStopped, "leave-stopped", "s", false, "leave the processes stopped afterwards, with their GPU state")
	flags.BoolVarP(&f.shellJob, "shell-job", "j", false, "the job belongs to a shell's session and terminal")
	flags.BoolVar(&f.tcpEstablished, "tcp-established", false, "with established TCP connections")
	flags.BoolVar(&f.tcpClose, "tcp-close", false, "established TCP connections come back closed")
	flags.BoolVarP(&f.fileLocks, "file-locks", "l", false, "with file locks")
	flags.BoolVar(&f.extUnixSk, "ext-unix-sk", false, "with UNIX sockets whose other end is outside the tree")
	flags.BoolVar(&f.linkRemap, "link-remap", false, "link unlinked files back where that is possible")
	flags.StringArrayVar(&f.external, "external", nil, "an external resource, as criu knows them; may be repeated")
	flags.StringVar(&f.manageCgroups, "manage-cgroups", "", "control groups: none, props, soft, full, strict or ignore")
	flags.Lookup("manage-cgroups").NoOptDefVal = "soft"
	flags.StringArrayVar(&f.cgroupRoots, "cgroup-root", nil, "[CONTROLLER:]/ROOT: another root of the control groups; may be repeated")
	flags.StringVar(&f.networkLock, "network-lock", "", "iptables, nftables or skip")
	flags.BoolVar(&f.byHand, "no-auto", false, "only the options given here: find none (dump), use none that the image records (restore)")
	flags.StringVarP(&f.root, "root", "r", "", "another root file system, for a tree in a mount namespace")
	_ = cmd.MarkFlagDirname("images-dir")
	_ = cmd.MarkFlagDirname("work-dir")
}

// options turns the flags into the options of a request to criu over RPC.
func (f *criuFlags) options() (checkpoint.Options, error) {
	if f.images == "" {
		return checkpoint.Options{}, usageError{errors.New("name the image directory with -D")}
	}
	if strings.Contains(f.log, "/") {
		return checkpoint.Options{}, usageError{fmt.Errorf("-o %s: a name without a folder; -W names the folder", f.log)}
	}
	opts := &rpc.CriuOpts{
		LogLevel:       proto.Int32(int32(f.verbosity)),
		ShellJob:       proto.Bool(f.shellJob),
		TcpEstablished: proto.Bool(f.tcpEstablished), TcpClose: proto.Bool(f.tcpClose), TcpSkipInFlight: proto.Bool(f.skipInFlight),
		ExtUnixSk: proto.Bool(f.extUnixSk), FileLocks: proto.Bool(f.fileLocks), LinkRemap: proto.Bool(f.linkRemap),
		External: f.external,
	}
	if f.log != "" {
		opts.LogFile = proto.String(f.log)
	}
	if f.root != "" {
		opts.Root = proto.String(f.root)
	}
	if f.freezeCgroup != "" {
		opts.FreezeCgroup = proto.String(f.freezeCgroup)
	}
	if f.manageCgroups != "" {
		name := strings.ToUpper(f.manageCgroups)
		if name == "NONE" {
			name = rpc.CriuCgMode_CG_NONE.String()
		}
		mode, known := rpc.CriuCgMode_value[name]
		if !known {
			return checkpoint.Options{}, usageError{fmt.Errorf("--manage-cgroups %s: none, props, soft, full, strict or ignore", f.manageCgroups)}
		}
		opts.ManageCgroups = proto.Bool(true)
		opts.ManageCgroupsMode = rpc.CriuCgMode(mode).Enum()
	}
	for _, text := range f.cgroupRoots {
		controller, path, both := strings.Cut(text, ":")
		if !both {
			controller, path = "", text
		}
		opts.CgRoot = append(opts.CgRoot, &rpc.CgroupRoot{Ctrl: proto.String(controller), Path: proto.String(path)})
	}
	if f.networkLock != "" {
		method, known := rpc.CriuNetworkLockMethod_value[strings.ToUpper(f.networkLock)]
		if !known {
			return checkpoint.Options{}, usageError{fmt.Errorf("--network-lock %s: iptables, nftables or skip", f.networkLock)}
		}
		opts.NetworkLock = rpc.CriuNetworkLockMethod(method).Enum()
	}
	if f.ghostLimit != "" {
		limit, err := parseSize(f.ghostLimit)
		if err != nil {
			return checkpoint.Options{}, usageError{fmt.Errorf("--ghost-limit: %w", err)}
		}
		opts.GhostLimit = proto.Uint32(limit)
	}
	return checkpoint.Options{Path: f.path, RPC: opts, ConfigFile: f.config, WorkDir: f.work, LeaveStopped: f.leaveStopped, ByHand: f.byHand}, nil
}

// parseSize reads a size as criu does, with the suffixes K, M and G.
func parseSize(text string) (uint32, error) {
	shift := slices.Index([]string{"", "K", "M", "G"}, strings.TrimLeft(text, "0123456789")) * 10
	number := strings.TrimRight(text, "KMG")
	size, err := strconv.ParseUint(number, 10, 32)
	if err != nil || shift < 0 || size<<shift > 1<<32-1 {
		return 0, fmt.Errorf("%q is not a size below 4G, such as 256M", text)
	}
	return uint32(size << shift), nil
}
