package nvrm

import (
	"cmp"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"cucriu/internal/kit/drivers"
)

// Share is memory of the driver that two processes have. Who has imported it cannot be
// checkpointed and restored.
type Share struct {
	PID int // one of those that were asked about
	// With is the other one, 0 if it cannot be told. It may be any process on this machine.
	With int
	// Maybe says that With has imported memory, of which it cannot be told whether it is PID's.
	Maybe bool
}

// Answer is what the module says of processes.
type Answer struct {
	// Holdings are what each process holds, by its pid. One of which that is not known, or not all of
	// it, is not among them.
	Holdings map[int]*Holdings
	Shares   []Share
	Known    Known // for the next time
	// Err says why it is not known which processes share memory. It wraps [ErrUnknown].
	Err error
}

// Known is what was seen of processes, by pid and client, so that it is found again at once.
type Known map[int]map[uint32]seen

// process is what was learnt about one process.
type process struct {
	pid            int
	known          map[uint32]seen // from an earlier answer
	files          []controlFile   // its own, open for more questions
	clients        []client
	found          []contents // of each client
	holdings       Holdings
	all            contents // of all its clients, as far as they matter for sharing
	total, foreign uint64   // bytes of GPU memory that the module accounts to it, and those imported from a living process
	err            error
}

// Ask asks what processes hold and share, and needs CAP_SYS_PTRACE over them, and
// CAP_SYS_ADMIN. gaps are how far each search goes (see [WidestGap]); a search that has not
// found all GPU memory goes on with the widest. known is from an earlier answer, or nil: what
// it has of a process is looked at again, and searched on from there. Only if that does not
// find all GPU memory, is everything searched. One question is asked after the other: the
// module answers several at once more slowly than one by one.
func Ask(ioctl Ioctl, pids, gaps []int, known Known) Answer {
	answer := Answer{Holdings: make(map[int]*Holdings), Known: make(Known)}
	processes := make([]*process, len(pids))
	for i, pid := range pids {
		processes[i] = &process{pid: pid, known: known[pid]}
		processes[i].read(ioctl, gaps[i])
	}
	others, err := account(processes)
	all := slices.Concat(processes, others)
	defer func() {
		for _, p := range all {
			p.close()
		}
	}()
	if err == nil {
		for _, p := range processes {
			p.complete()
			if p.err == nil && !p.incomplete() {
				answer.Holdings[p.pid] = &p.holdings
			}
			err = cmp.Or(err, p.err)
		}
	}
	if err != nil {
		answer.Err = err
		return answer
	}
	importing := slices.ContainsFunc(processes, func(p *process) bool { return p.foreign > 0 })
	for _, p := range others {
		if importing || p.foreign > 0 {
			p.known = known[p.pid]
			p.read(ioctl, ShortGap)
			p.complete()
		}
	}
	answer.Shares = shares(processes, others)
	for _, p := range all {
		answer.Known[p.pid] = p.seen()
	}
	return answer
}

// read looks at all clients of a process.
func (p *process) read(ioctl Ioctl, gap int) {
	p.findClients(ioctl)
	p.found = make([]contents, len(p.clients))
	if p.err == nil {
		p.search(gap)
	}
}

// complete looks again if not all of the process's GPU memory was found: first at what may have come
// between the search and the sum, then at all.
func (p *process) complete() {
	if p.err != nil || !p.incomplete() {
		return
	}
	p.known = p.seen()
	p.found = make([]contents, len(p.clients))
	p.search(ShortGap)
	if p.err == nil && p.incomplete() {
		p.known, p.found = nil, make([]contents, len(p.clients))
		p.search(WidestGap)
	}
}

// seen is what was seen of each client.
func (p *process) seen() map[uint32]seen {
	all := make(map[uint32]seen)
	for i, c := range p.clients {
		all[c.handle] = p.found[i].seen
	}
	return all
}

func (p *process) close() {
	for _, f := range p.files {
		_ = unix.Close(f.fd)
	}
}

// search looks at the objects of all clients, or at more of them than before.
func (p *process) search(gap int) {
	p.holdings, p.all = Holdings{}, contents{regions: make(map[region]bool)}
	for i, c := range p.clients {
		found := &p.found[i]
		if err := found.scan(c, c.handle, p.known[c.handle], gap); err != nil {
			p.err = fmt.Errorf("process %d: %w: %w", p.pid, ErrUnknown, err)
			return
		}
		p.holdings.add(found.Holdings)
		p.all.imports += found.imports
		p.all.unplaced = p.all.unplaced || found.unplaced
		p.all.gpus = append(p.all.gpus, found.gpus...)
		for r := range found.regions {
			p.all.regions[r] = true
		}
	}
	if len(p.all.gpus) == 0 {
		p.err = fmt.Errorf("process %d: %w: no GPU was found among its objects", p.pid, ErrUnknown)
	}
}

// incomplete reports whether not all of the process's GPU memory was found.
func (p *process) incomplete() bool { return p.holdings.MemoryBytes < p.total }

// pidInfo is how the module counts the GPU memory of a process, and which part of it the process has
// imported. What a process duplicates for itself is not counted as imported, nor what the
// driver for unified memory duplicates. If the exporter has ended, its importer counts as the
// owner.
type pidInfo struct {
	pid, index, result, _           uint32
	private, owned, duplicated      uint64
	protected                       [3]uint64 // the parts of these in protected memory
	computeInstance, partOfInstance uint32
}

// account asks how much memory each process has on every GPU, and returns the other processes that have
// some. One that has none is left out: it may only have borrowed another's files to ask, as cucriu does.
func account(processes []*process) (others []*process, err error) {
	byPID := make(map[int]*process)
	asked := make(map[uint32]bool)
	var gpus []gpu
	for _, p := range processes {
		byPID[p.pid] = p
		for _, g := range p.all.gpus {
			if !asked[g.id] {
				asked[g.id] = true
				gpus = append(gpus, g)
			}
		}
	}
	for _, g := range gpus {
		users := &struct {
			kind, class, count uint32
			pids               [drivers.PIDsRoom]uint32
		}{class: drivers.ClassSubdevice}
		if err := mustQuery(g, g.handle, g.subdevice, drivers.GetPIDs, users); err != nil {
			return nil, err
		}
		if users.count >= drivers.PIDsRoom {
			return nil, fmt.Errorf("%w: GPU %#x has too many users", ErrUnknown, g.id)
		}
		for _, pid := range users.pids[:users.count] {
			if byPID[int(pid)] == nil {
				others = append(others, &process{pid: int(pid)})
				byPID[int(pid)] = others[len(others)-1]
			}
		}
	}
	for _, g := range gpus {
		for some := range slices.Chunk(slices.Concat(processes, others), drivers.PIDInfosRoom) {
			list := &struct {
				count uint32
				infos [drivers.PIDInfosRoom]pidInfo
			}{count: uint32(len(some))}
			for i, p := range some {
				list.infos[i].pid = uint32(p.pid)
			}
			if err := mustQuery(g, g.handle, g.subdevice, drivers.GetPIDInfo, list); err != nil {
				return nil, err
			}
			for i, p := range some {
				info := list.infos[i]
				if info.result != drivers.StatusOK {
					return nil, fmt.Errorf("%w: memory of process %d: status %#x", ErrUnknown, p.pid, info.result)
				}
				p.total += info.private + info.owned + info.duplicated
				p.foreign += info.duplicated
			}
		}
	}
	return slices.DeleteFunc(others, func(p *process) bool { return p.total == 0 }), nil
}

// shares finds who has the same memory.
func shares(processes, others []*process) (found []Share) {
	for i, p := range processes {
		before := len(found)
		for _, q := range slices.Concat(processes[i+1:], others) {
			if p.has(q) {
				found = append(found, Share{PID: p.pid, With: q.pid})
			}
		}
		isNamed := func(s Share) bool { return s.With == p.pid }
		if (p.foreign > 0 || p.all.imports > 0) && len(found) == before && !slices.ContainsFunc(found, isNamed) {
			found = append(found, Share{PID: p.pid})
		}
	}
	for _, q := range others {
		isNamed := func(s Share) bool { return s.With == q.pid }
		unclear := func(p *process) bool { return p.all.unplaced || p.incomplete() }
		if q.foreign > 0 && !slices.ContainsFunc(found, isNamed) && (q.err != nil || unclear(q) || slices.ContainsFunc(processes, unclear)) {
			found = append(found, Share{PID: processes[0].pid, With: q.pid, Maybe: true})
		}
	}
	return found
}

// has reports whether two processes have the same piece of memory.
func (p *process) has(q *process) bool {
	for r := range p.all.regions {
		if q.all.regions[r] {
			return true
		}
	}
	return false
}
