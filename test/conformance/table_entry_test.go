package conformance

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/proc"
)

// entryCases are about the six calls: the states in which they are legal, and the processes
// that accept them.
func entryCases() []testCase {
	const long = 20 * time.Second
	return []testCase{
		{
			// No controller here ever calls cuInit.
			name: "cycle",
			rows: []row{
				{from: running, call: getState, want: results(success), to: running, atMost: atOnce},
				{name: "GetRestoreThreadId names a thread", from: running, do: namesThread, text: "a thread of it"},
				{name: "its UNIX socket, named after its pid namespace and pid", from: running, do: namedSocket, text: "seqpacket, listens, ends with NUL"},
				{from: running, call: lock(long), want: results(success), to: locked},
				{from: locked, call: getState, want: results(success), to: locked, atMost: atOnce},
				{from: locked, call: getThread, want: results(success), to: locked, atMost: atOnce},
				{from: locked, call: checkpoint, want: results(success), to: checkpointed},
				{from: checkpointed, call: getState, want: results(success), to: checkpointed, atMost: atOnce},
				{from: checkpointed, call: getThread, want: results(success), to: checkpointed, atMost: atOnce},
				{from: checkpointed, call: restore, want: results(success), to: locked},
				{from: locked, call: unlock, want: results(success), to: running, atMost: atOnce},
			},
		},
		{
			name: "NULL for arguments",
			rows: []row{
				{from: running, call: withNull(lock(0)), want: results(success), to: locked},
				{from: locked, call: withNull(checkpoint), want: results(success), to: checkpointed},
				{from: checkpointed, call: withNull(restore), want: results(success), to: locked},
				{from: locked, call: withNull(unlock), want: results(success), to: running},
			},
		},
		{
			name: "illegal state",
			rows: []row{
				refused(running, checkpoint), refused(running, restore), refused(running, unlock),
				refused(locked, lock(long)), refused(locked, restore),
				refused(checkpointed, lock(long)), refused(checkpointed, checkpoint), refused(checkpointed, unlock),
			},
		},
		{
			name: "GPU work in flight",
			with: program{args: []string{"--busy-ms", "4000", "--tick-ms", "0"}},
			rows: []row{
				{from: running, given: midTick, call: lock(300 * time.Millisecond), want: results(notReady), to: running, atLeast: 290 * time.Millisecond, atMost: 1100 * time.Millisecond},
				{from: running, given: midTick, call: lock(0), want: results(success), to: locked, atLeast: 500 * time.Millisecond, atMost: 6 * time.Second},
			},
		},
		{name: "pid that does not exist", bare: true, rows: allSix(noPID, noProcess)},
		{name: "pid 0", bare: true, rows: allSix(constant(0), noProcess)},
		{name: "pid -1", bare: true, rows: allSix(constant(-1), noProcess)},
		{name: "pid 1", bare: true, rows: allSix(constant(1), noCUDA)},
		{name: "self, cuInit never called", bare: true, rows: allSix(constant(os.Getpid()), noCUDA)},
		{
			name: "dead target",
			lost: true,
			rows: append([]row{{name: "SIGKILL", from: running, do: killed, text: "killed by SIGKILL"}}, allSix((*bench).main, noProcess)...),
		},
		{
			name: "forked child of a CUDA process",
			with: program{args: []string{"--fork-child"}},
			rows: append(allSix(forkedChild, noCUDA),
				row{name: "descriptors of /dev/nvidia* in the child", do: childDescriptors, text: "some"},
				row{name: "mappings of /dev/nvidia* in the child", do: childMappings, text: "some", notSim: "its device nodes open without hardware, and those of the kernel that do cannot be mapped"}),
		},
		{
			name: "cuCheckpointOperationComplete",
			bare: true,
			rows: []row{{name: "custom storage, driver 615 or newer", do: customStorage, text: "as the version says"}},
		},
	}
}

func constant(pid int) func(*bench) (int, error) {
	return func(*bench) (int, error) { return pid, nil }
}

// noPID returns the first number that cannot be a pid.
func noPID(*bench) (int, error) {
	text, err := os.ReadFile("/proc/sys/kernel/pid_max")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

func namesThread(b *bench) (string, error) {
	pid, err := b.main()
	if err != nil {
		return "", err
	}
	tid, err := b.restoreThread()
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(fmt.Sprintf("/proc/%d/task/%d", pid, tid)); err != nil || tid == pid {
		return "", fmt.Errorf("thread %d of process %d: %v", tid, pid, err)
	}
	return "a thread of it", nil
}

// namedSocket looks for the socket that each CUDA process has: the namespace is its inode number.
func namedSocket(b *bench) (string, error) {
	pid, err := b.main()
	if err != nil {
		return "", err
	}
	status, err := proc.ReadStatus(pid)
	if err != nil {
		return "", err
	}
	var namespace unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/ns/pid", pid), &namespace); err != nil {
		return "", err
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/unix", pid))
	name := fmt.Sprintf(" @cuda-uvmfd-%d-%d", namespace.Ino, status.ImagePID())
	for line := range strings.Lines(string(data)) {
		const listens, seqpacket = "00010000", "0005"
		fields := strings.Fields(line) // Num RefCount Protocol Flags Type St Inode Path
		switch line = strings.TrimSuffix(line, "\n"); {
		case !strings.Contains(line, name) || strings.TrimRight(line, "@")[strings.Index(line, name):] != name:
		case fields[3] == listens && fields[4] == seqpacket && strings.HasSuffix(line, name+"@"):
			return "seqpacket, listens, ends with NUL", nil
		default:
			return line, nil
		}
	}
	return "none", err
}

func killed(b *bench) (string, error) {
	if err := b.targets[0].kill(); err != nil {
		return "", err
	}
	return b.targets[0].end(), nil
}

func forkedChild(b *bench) (int, error) {
	pid, err := b.main()
	if err != nil {
		return 0, err
	}
	tree, err := proc.Tree(pid)
	if err == nil && len(tree) != 2 {
		err = fmt.Errorf("the tree is %v", tree)
	}
	if err != nil {
		return 0, err
	}
	return tree[1], nil
}

// device is the prefix of the driver's nodes in descriptors and mappings.
const device = "/dev/nvidia"

func childDescriptors(b *bench) (string, error) {
	pid, err := forkedChild(b)
	if err != nil {
		return "", err
	}
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, file := range files {
		if name, _ := os.Readlink(file); strings.Contains(name, device) {
			return "some", nil
		}
	}
	return "none", err
}

func childMappings(b *bench) (string, error) {
	pid, err := forkedChild(b)
	if err != nil {
		return "", err
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if strings.Contains(string(maps), device) {
		return "some", nil
	}
	return "none", err
}

// customStorage checks for the entry point that driver 615 added: only there is it
// exported.
func customStorage(b *bench) (string, error) {
	version, err := b.driver.DriverVersion()
	if err != nil {
		return "", err
	}
	branch, _, _ := strings.Cut(version, ".")
	number, err := strconv.Atoi(branch)
	if err != nil {
		return "", err
	}
	if exported := b.calls.exports("cuCheckpointOperationComplete"); exported != (number >= 615) {
		return "", errors.New("driver " + version + ": exported is " + strconv.FormatBool(exported))
	}
	return "as the version says", nil
}
