package criuutil

import (
	"fmt"
	"regexp"
	"strconv"
)

// knownError is an error of criu's for which we know what to do.
type knownError struct {
	message *regexp.Regexp
	remedy  string                // with $1 for what the expression has captured
	advise  func([]string) string // instead of remedy, if that takes more than inserting
}

const (
	remedyTaken     = "the image needs the pid $1, which is in use here: end that process (if it is the job itself, only to go back to this image), or restore in a pid namespace of its own (unshare --pid --fork --mount-proc cucriu restore --foreground -D DIR)"
	remedySession   = "the restoring shell has a number that the image needs for a process: restore from another session, as in: setsid -w cucriu restore …"
	remedyNoImage   = "the directory does not hold a complete criu image: name the one that the dump has written (cucriu check -D DIR says what is missing)"
	remedyShellJob  = "the job belongs to a shell's session or terminal: give -j (--shell-job) to the dump and to the restore; if it uses a terminal, restore from one"
	remedyOutside   = "the job's session began outside its pid namespace: start the job inside in a new session (with setsid), or dump the tree from its session leader down"
	remedyLinkRemap = "the job uses a file under a name that was removed: give --link-remap, if the dump ends the job (without -R) and the image is restored on this host"
	remedyLock      = "criu could not block the packets of the job's TCP connections: try another --network-lock (iptables or nftables, whichever is installed here), or --network-lock skip, with which a connection may break if the other end sends anything before the restore"
	remedyTCP       = "the job has established TCP connections: give --tcp-established to the dump and to the restore, or --tcp-close if it can do without them"
	remedyUnix      = "the job is connected to a process outside the tree through a UNIX socket: give --ext-unix-sk to the dump and to the restore, or dump the tree that holds both ends"
	remedyMount     = "the job has a file open that its mount namespace cannot reach: start the job with its input and output in /dev/null, pipes or files inside the namespace, or specify the file with --external"
	remedyBound     = "a process of the job is in a mount namespace of its own, where $1 is a part of a file system, or a namespace that is bound to a file (ip netns, Docker and CNI do so below /run): unmount it there, or run the job without that namespace"
	remedyFull      = "the file system of the image directory is full: free space on it, or dump to another file system"
	remedyMakeProc  = "criu mounts the /proc of the job's pid namespace at proc.crtools in the job's working directory: remove that directory if a killed criu has left it, wait if another job is being dumped there, or start the job with its own /proc (unshare --mount-proc) or in a directory that can be written to"
	remedyWatch     = "the job watches (inotify, fanotify) a file that its file system does not open by a handle, such as an overlay: give the path of that file with --irmap-scan-path, which cucriu check -t PID names"
	remedyCgroup    = "the control groups cannot be handled as asked: give --manage-cgroups=soft to keep what exists, or --manage-cgroups=ignore, with which the job joins the control group of the restore"
)

// known lists the errors by what criu 4 logs.
var known = []knownError{
	{message: regexp.MustCompile(`^Can't fork for (\d+): File exists`), remedy: remedyTaken},
	{message: regexp.MustCompile(`^Pid \d+ do not match expected (\d+)`), remedy: remedyTaken},
	{message: regexp.MustCompile(`^Current [gs]id \d+ intersects with `), remedy: remedySession},
	{message: regexp.MustCompile(`^Can't read pages data|^Can't open .*pages-\d+\.img`), remedy: remedyNoImage},
	{message: regexp.MustCompile(`inventory\.img|^Unexpected EOF on \(empty-image\)|^(?:Head magic|Magic) doesn't match for |^Unknown image format`), remedy: remedyNoImage},
	{message: regexp.MustCompile(`^A session leader of (?:zombie process )?\d+\(\d+\) is outside of its pid namespace`), remedy: remedyOutside},
	{message: regexp.MustCompile(`^The root process \d+ is not a session leader|^Can't find a session leader for \d+`), remedy: remedyShellJob},
	{message: regexp.MustCompile(`^tty: (?:Found dangling tty|Found slave peer index \d+ without correspond master peer|ctty inheritance detected|Don't have tty to inherit session)`), remedy: remedyShellJob},
	{message: regexp.MustCompile(`^Can't create link remap for .*Use link-remap option`), remedy: remedyLinkRemap},
	{message: regexp.MustCompile(`^Can't dump ghost file (.*) of (\d+) size, increase limit`), advise: adviseGhostLimit},
	{message: regexp.MustCompile(`^Iptables configuration failed|execvp\("?ip6?tables.* failed|^Locking (?:connection|network) failed using nftables|^tcp: Failed to lock TCP connection`), remedy: remedyLock},
	{message: regexp.MustCompile(`^inet: Connected TCP socket`), remedy: remedyTCP},
	{message: regexp.MustCompile(`^inet: Can't bind inet socket .*: Address already in use`), remedy: "a port of the job is in use on this host: end the program that has it (ss -tulnp lists them), and restore again"},
	{message: regexp.MustCompile(`^inet: Can't bind inet socket .*: Cannot assign requested address`), remedy: "this host lacks an address to which a socket of the job is bound: give it the address (ip addr add), and restore again"},
	{message: regexp.MustCompile(`^unix: Can't bind .*: Address already in use`), remedy: "the name of a UNIX socket of the job is in use on this host: end the program that has it (ss -xlp lists them), and restore again"},
	{message: regexp.MustCompile(`^inet: In-flight connection`), remedy: "a client was just connecting to the job: try again, or give --skip-in-flight, which drops such connections"},
	{message: regexp.MustCompile(`^unix: (?:Found a closed|Non-empty write queue on an) in-flight socket`), remedy: "a server of the job has not yet accepted a client that has ended or has sent data (UNIX socket): try again when it has"},
	{message: regexp.MustCompile(`^unix: (?:External socket|Can't dump name-less external socket|Unix socket \d+ with(?:out| unreachable) peer)`), remedy: remedyUnix},
	{message: regexp.MustCompile(`^fsnotify: \s*Can't dump that handle`), remedy: remedyWatch},
	{message: regexp.MustCompile(`^Some file locks are hold by dumping tasks`), remedy: "the job holds file locks: give -l (--file-locks) to the dump and to the restore"},
	{message: regexp.MustCompile(`^Can't lookup mount=\d+ for fd=-?\d+ |^The \d+ mount is not found for ghost|doesn't have mnt_id|^Open files on overmounted mounts`), remedy: remedyMount},
	{message: regexp.MustCompile(`^mnt: \d+:(\S+) doesn't have a proper root mount`), remedy: remedyBound},
	{message: regexp.MustCompile(`^(?:bfd: Error flushing image|page-xfer: .*|.*[Uu]nable to spill data.*): No space left on device`), remedy: remedyFull},
	{message: regexp.MustCompile(`^Can't create a directory \(-\d+\)`), remedy: remedyMakeProc},
	{message: regexp.MustCompile(`^cg: |^Unable to freeze cgroup `), remedy: remedyCgroup},
	{message: regexp.MustCompile(`^Neither a cgroupv1 .* control file found`), remedy: "the directory that --freeze-cgroup names is not a control group that can be frozen: specify one, such as /sys/fs/cgroup/job1"},
	{message: regexp.MustCompile(`^File (.*) has bad size \d+ \(expect (\d+)\)`), remedy: "$1 has changed since the dump, and the job has it open: put back its old content ($2 bytes), and restore again"},
	{message: regexp.MustCompile(`^sfd: Can't chose service_fd_base: (\d+) (\d+)`), remedy: "the job's descriptors need a limit of $2 open files: raise it before the restore (ulimit -n), or restore with CAP_SYS_RESOURCE"},
	{message: regexp.MustCompile(`^The criu itself is within dumped tree`), remedy: "the tree to be dumped contains this command itself: name the job's own root with -t, or run the command from outside the job"},
}

// Remedy says what to do about an error that criu has logged, or "" if we do not know.
func Remedy(message string) string {
	for _, k := range known {
		match := k.message.FindStringSubmatchIndex(message)
		switch {
		case match == nil:
			continue
		case k.advise != nil:
			return k.advise(k.message.FindStringSubmatch(message))
		}
		return string(k.message.ExpandString(nil, k.remedy, message, match))
	}
	return ""
}

// adviseGhostLimit names a limit that is large enough for the file.
func adviseGhostLimit(match []string) string {
	const mebibyte = 1 << 20
	bytes, err := strconv.ParseUint(match[2], 10, 63)
	if err != nil {
		return ""
	}
	return fmt.Sprintf("the job uses the deleted file %s: give --ghost-limit %dM or more to include it in the image", match[1], bytes/mebibyte+1)
}
