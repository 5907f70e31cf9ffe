package inventory

import (
	"errors"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"cucriu/internal/kit/proc"
)

// Tree is a process and its descendants with what they have.
type Tree struct {
	PIDs      []int      // all, also of those that have ended
	Processes []*Process // in the same order; of advice, those that could be read

	programs once[map[string]bool]
	mountIDs once[map[string]bool] // of the root's namespace
	unix     once[unixAnswer]

	mutex  sync.Mutex // for what follows, which is by namespace
	mounts map[string][]Mount
	tcp    map[string][]proc.TCPSocket
}

// Advice reads the tree below root before anything is touched. It may run. Processes that have ended are left out. If
// the root, or one that has not ended, cannot be read, the error says why; the tree has the others, and is nil only if
// they could not be listed.
func Advice(root int) (*Tree, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	return Of(pids)
}

// Of is [Advice] about processes that are listed already; the first is the root.
func Of(pids []int) (*Tree, error) {
	t := newTree(pids)
	errs, failed := t.readAll()
	t.Processes = slices.DeleteFunc(t.Processes, func(p *Process) bool { return errs[p.PID] != nil })
	return t, failed
}

// Truth lists a tree of which every process has been stopped. What its processes have is read when it is asked for:
// the job waits meanwhile. One that has ended has nothing.
func Truth(root int) (*Tree, error) {
	pids, err := proc.Tree(root)
	if err != nil {
		return nil, err
	}
	return newTree(pids), nil
}

// Read reads what the processes have open and mapped. It fails if that cannot be read of one that has not ended.
func (t *Tree) Read() error {
	_, failed := t.readAll()
	return failed
}

func newTree(pids []int) *Tree {
	t := &Tree{PIDs: pids, mounts: make(map[string][]Mount), tcp: make(map[string][]proc.TCPSocket)}
	for _, pid := range pids {
		t.Processes = append(t.Processes, &Process{Of: t, PID: pid})
	}
	return t
}

// readAll reads all processes at once, and returns the error of each, by pid. failed is that of the root, and of those
// that have not ended.
func (t *Tree) readAll() (errs map[int]error, failed error) {
	results := make([]error, len(t.Processes))
	proc.AtOnce(runtime.NumCPU(), len(t.Processes), func(i int) { results[i] = t.Processes[i].read() })
	errs = make(map[int]error)
	for i, err := range results {
		if errs[t.PIDs[i]] = err; i == 0 || !errors.Is(err, proc.ErrGone) {
			failed = errors.Join(failed, err)
		}
	}
	return errs, failed
}

// CheckUnguarded returns a [proc.GuardedError] if files of the tree must not be opened.
func (t *Tree) CheckUnguarded() error {
	for f := range t.Open {
		if g := proc.Guards(f.Of.PID, f.Number, f.Link, f.Info); g != nil {
			return g
		}
	}
	return nil
}

// Has reports whether the tree has a process, which could be read.
func (t *Tree) Has(pid int) bool { return t.find(pid) != nil }

func (t *Tree) find(pid int) *Process {
	if t != nil {
		if i := slices.IndexFunc(t.Processes, func(p *Process) bool { return p.PID == pid }); i >= 0 {
			return t.Processes[i]
		}
	}
	return nil
}

// Process returns a process of the tree. One that the tree does not have, or of which there is no tree, is read [Now].
func (t *Tree) Process(pid int) (*Process, error) {
	if p := t.find(pid); p != nil {
		return p, nil
	}
	return Now(pid)
}

// Open yields the descriptors of all processes.
func (t *Tree) Open(yield func(*File) bool) {
	for _, p := range t.Processes {
		for _, f := range p.Open() {
			if !yield(f) {
				return
			}
		}
	}
}

// Inodes returns a descriptor for each inode of a kind, which is "socket" or "pipe".
func (t *Tree) Inodes(kind string) map[uint64]*File {
	found := make(map[uint64]*File)
	for f := range t.Open {
		if inode, is := f.Inode(kind); is && found[inode] == nil {
			found[inode] = f
		}
	}
	return found
}

// Executes reports whether a process of the tree executes a program, given by its path.
func (t *Tree) Executes(program string) bool {
	programs, _ := t.programs.get(func() (map[string]bool, error) {
		all := make(map[string]bool)
		for _, p := range t.Processes {
			all[p.Program()] = true
		}
		return all, nil
	})
	return programs[program]
}

// once is a part of what is known, which is read the first time that it is asked for.
type once[T any] struct {
	once  sync.Once
	value T
	err   error
}

func (o *once[T]) get(read func() (T, error)) (T, error) {
	o.once.Do(func() { o.value, o.err = read() })
	return o.value, o.err
}

// NamespaceOf returns the namespace of a process or thread, which may be "self"; "" if it has ended, or if the kernel
// does not have the kind.
func NamespaceOf(pid, kind string) string {
	link, _ := os.Readlink("/proc/" + pid + "/ns/" + kind)
	return link
}

// NamespaceOfProcess is [NamespaceOf] by number.
func NamespaceOfProcess(pid int, kind string) string { return NamespaceOf(strconv.Itoa(pid), kind) }
