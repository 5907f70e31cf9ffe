package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// fault is a column of the matrix.
type fault string

const (
	stepFails     fault = "the step fails"
	deadline      fault = "it outlasts its deadline"
	hookKilled    fault = "hook killed"
	criuKilled    fault = "criu killed"
	watcherKilled fault = "watcher killed"
	allKilled     fault = "all three killed"
	imagesFull    fault = "image directory full"
	runFull       fault = "run directory full"
	continued     fault = "SIGCONT from outside"
	calledTwice   fault = "the stage called twice"
	otherDump     fault = "another dump at the same time"
	imagesGone    fault = "the image's files gone"
	targetKilled  fault = "one CUDA process killed"
)

// faults lists the columns in the order in which a row is run. The last one costs the job.
var faults = slices.Concat([]fault{stepFails, deadline, hookKilled, criuKilled, watcherKilled, allKilled, imagesFull, runFull}, later, []fault{targetKilled})

// later lists the columns whose faults happen only in rows that ask for them.
var later = []fault{continued, calledTwice, otherDump, imagesGone}

// harmless reports whether the job fares as if nothing had happened.
func (r row) harmless(f fault) bool {
	switch f {
	case continued, otherDump:
		return true
	case calledTwice:
		return !r.midStage
	case imagesGone:
		return r.restores() || r.scene == goingBack
	}
	return false
}

// scene is what is going on around a step.
type scene int

const (
	dumping      scene = iota // criu dump with the hook
	criuAtWork                // the same, and the fault hits criu at its own work
	goingBack                 // the same, but a later script makes criu fail: the watcher brings the job back
	restoring                 // criu restore with the hook
	criuRestores              // the same, and the fault hits criu at its own work
)

// restores reports whether the step belongs to a restore.
func (r row) restores() bool { return r.scene == restoring || r.scene == criuRestores }

// byTest reports whether the test makes the fault happen, not the hook.
func (r row) byTest() bool { return r.scene == criuAtWork || r.scene == criuRestores }

// undisturbed returns what becomes of the job when nothing fails.
func (r row) undisturbed() string {
	switch {
	case r.scene == goingBack:
		return "runs on"
	case r.restores():
		return "runs"
	}
	return "dumped"
}

// memory returns the device memory of each process, in MiB.
func (r row) memory() int {
	if r.guest {
		return 32 // less is left to the driver
	}
	return max(2, r.mib)
}

// workers returns how many workers each process forks, as an argument: of every kind where the
// step is about them, elsewhere of four kinds, two in each process.
func (r row) workers() string {
	if r.fresh {
		return "5"
	}
	return "2"
}

// row is a step of a protocol.
type row struct {
	name  string
	scene scene
	point string // the failpoint of the hook
	// moment replaces point where no process of ours is at work.
	moment *moment
	// midStage says that the second call of a stage comes because the first was killed at
	// this step. Otherwise it comes after the first has ended.
	midStage bool
	// guest says that the library of cucriu run --dir is in the job, which moves the memory.
	guest bool
	// called says that a call to the driver has begun when the job is stopped, so that all of it runs once more.
	called bool
	// shares says that the processes have memory of each other, which the library serves.
	shares bool
	// goesOn says that the dump would leave the job running (-R).
	goesOn bool
	// mib is the device memory of each process. 0 means as little as possible.
	mib int
	// fresh says that each cell needs a job of its own: one that was dumped is not the same
	// any more.
	fresh bool
	// slow holds the simulated driver's fault rules that make the step outlast its
	// deadline. Without them the step is delayed as it begins.
	slow []string
	// helps says that the step only helps, so that what outlasts its deadline must not end the dump: a
	// busy machine has more time for the rest.
	helps bool
	// also lists those of the later faults that happen here.
	also []fault
	// without says why a fault cannot happen here.
	without map[fault]string
}

// moment is a point in a stage of criu: before criu runs the hook, or after.
type moment struct {
	stage  string
	before bool
}

// The reasons why a cell is empty, each with its letter, in the order of the notes.
const (
	noDeadline = "a"
	noSession  = "b"
	watcherHas = "c"
	noHook     = "d"
	noImages   = "e"
	starting   = "f"
	notYet     = "g"
	roomAgain  = "h"
	notStopped = "i"
	elsewhere  = "j"
	noFiles    = "k"
	complete   = "l"
	together   = "m"
)

var notes = [][2]string{
	{noDeadline, "The step has no deadline that a test could let pass: it only waits for the kernel (a stop, a detach, a file)."},
	{noSession, "No watcher has been started yet."},
	{watcherHas, "The watcher does this step; hook and criu have ended before."},
	{noHook, "No hook is at work."},
	{noImages, "Nothing is written to the image directory from here on; a restore only reads it."},
	{starting, "The hook waits for the watcher; its own end is the row above."},
	{notYet, "No CUDA process of the job is there: not yet, or criu has ended it."},
	{roomAgain, "Here the hook removes a file from it, and it is chance whether that makes room enough. The next step is without the memory, too."},
	{notStopped, "Nothing is stopped: not yet, or not any more."},
	{elsewhere, "A neighbouring row shows it: the same processes are at work here, and hold the same."},
	{noFiles, "The files are not there yet, or are not needed any more."},
	{complete, "The image is complete, and criu ends the job: whoever removes it now removes the job."},
	{together, "The processes share memory, and the job itself ends when one of them does."},
}

// lacks makes the map of a row's empty cells from pairs of a note and its faults.
func lacks(of ...any) map[fault]string {
	without := make(map[fault]string)
	note := ""
	for _, item := range of {
		switch item := item.(type) {
		case string:
			note = item
		case fault:
			without[item] = note
		}
	}
	return without
}

// lacksAllBut is for a row that is about the later columns and uses few of the others.
func lacksAllBut(these ...fault) map[fault]string {
	without := make(map[fault]string)
	for _, f := range faults {
		if !slices.Contains(these, f) && !slices.Contains(later, f) {
			without[f] = elsewhere
		}
	}
	return without
}

// rows are the steps.
var rows = fill(slices.Concat(
	[]row{
		{name: "inspect", point: "dump.inspect", also: []fault{otherDump}, without: lacks(noSession, watcherKilled, allKilled)},
		{name: "watch", point: "dump.watch", without: lacks(noDeadline, deadline, noSession, watcherKilled, allKilled)},
		{name: "watch: files made", point: "dump.created", without: lacks(noDeadline, deadline, noSession, watcherKilled, allKilled)},
		{name: "watch: the watcher starts", point: "dump.watcher", without: lacks(starting, hookKilled, allKilled)},
		{name: "lock", point: "dump.lock", slow: []string{"lock delay 5s"}, midStage: true, also: []fault{calledTwice, otherDump, imagesGone}},
		{name: "stop", point: "dump.stop", without: lacks(noDeadline, deadline)},
		{name: "lock: the gates are closed", point: "dump.gated", guest: true, without: lacks(noDeadline, deadline)},
		{name: "move", point: "dump.move", guest: true, without: lacks(noDeadline, deadline)},
		{name: "move: all run once more, because a call had begun", point: "dump.continued", guest: true, called: true},
		{name: "move: locked once more", point: "dump.relocked", guest: true, called: true},
		{name: "move: what the processes share is known", point: "dump.listed", guest: true, shares: true, without: lacks(noDeadline, deadline, together, targetKilled)},
		{name: "move: what is shared is taken down", point: "dump.down", guest: true, shares: true, also: []fault{continued}, without: lacks(noDeadline, deadline, together, targetKilled)},
		{name: "move: the memory is on the host, too", point: "dump.moved", guest: true, shares: true, also: []fault{continued}, without: lacks(noDeadline, deadline, together, targetKilled)},
		{name: "move: the memory is on the host", point: "dump.moved", guest: true, also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "move: the GPUs keep a copy of what goes on", scene: dumping, point: "dump.kept", guest: true, goesOn: true, without: lacks(noDeadline, deadline, elsewhere, watcherKilled)},
		{name: "park, with the memory on the host", point: "dump.park", guest: true, also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "checkpoint of what the library has left", point: "dump.checkpoint", guest: true, slow: []string{"checkpoint delay 3s"}, midStage: true, also: []fault{continued, calledTwice}},
		{name: "park", point: "dump.park", also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "children", point: "dump.children", fresh: true, also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "children: a thread of one borrowed", point: "dump.borrow-child", fresh: true, also: []fault{continued}, without: lacks(roomAgain, runFull)},
		{name: "children: one without its devices", point: "dump.child-released", fresh: true, also: []fault{continued}, without: lacks(roomAgain, runFull)},
		{name: "trace", point: "dump.trace", also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "checkpoint", point: "dump.checkpoint", slow: []string{"checkpoint delay 3s"}, midStage: true, also: []fault{continued, calledTwice, otherDump}},
		{name: "checkpoint: memory made ready", point: "dump.prefault", mib: 20, helps: true, also: []fault{continued}},
		{name: "checkpoint: in the middle of the copy", point: "dump.copying", mib: 4, also: []fault{continued, imagesGone}},
		{name: "checkpoint: on the way to the disk", point: "dump.syncing", also: []fault{continued}},
		{name: "release", point: "dump.release", also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "devices", point: "dump.devices", also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "copy", point: "dump.copy", also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "drop", point: "dump.drop", also: []fault{continued, imagesGone}, without: lacks(noDeadline, deadline)},
		{name: "drop: noted", point: "dump.noted", also: []fault{continued}, without: lacks(roomAgain, runFull)},
		{name: "drop: half done", point: "dump.dropping", midStage: true, also: []fault{continued, calledTwice, imagesGone}, without: lacks(roomAgain, runFull)},
		{name: "drop: inaccessible", point: "dump.inaccessible", also: []fault{continued}, without: lacks(roomAgain, runFull)},
		{name: "freeze", point: "dump.freeze", also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "manifest", point: "dump.manifest", also: []fault{continued, imagesGone}, without: lacks(noDeadline, deadline)},
		{name: "dumping", point: "dump.dumping", also: []fault{continued, calledTwice, otherDump, imagesGone}, without: lacks(noDeadline, deadline)},
		{name: "criu at work", scene: criuAtWork, also: []fault{continued, otherDump, imagesGone}, without: lacks(noDeadline, deadline, noHook, hookKilled, calledTwice)},
		{name: "post-dump", point: "dump.post-dump", also: []fault{continued, otherDump, imagesGone}, without: lacks(noDeadline, deadline)},
		{name: "publish", point: "dump.publish", also: []fault{continued}, without: lacks(noDeadline, deadline)},
		{name: "dumped", point: "dump.dumped", also: []fault{continued, calledTwice}, without: lacks(noDeadline, deadline, complete, imagesGone)},
		{name: "close, by the watcher", point: "dump.close", also: []fault{otherDump}, without: lacks(noDeadline, deadline, watcherHas, hookKilled, criuKilled, allKilled, calledTwice, noImages, imagesFull, notYet, targetKilled, complete, imagesGone)},
	},
	back("watcher: ", "dump.back.", goingBack, lacks(watcherHas, hookKilled, criuKilled, allKilled, calledTwice, noImages, imagesFull)),
	[]row{{name: "watcher: close", scene: goingBack, point: "dump.close", without: lacks(noDeadline, deadline, watcherHas, hookKilled, criuKilled, allKilled, calledTwice, noImages, imagesFull)}},
	[]row{
		{name: "pre-restore", scene: restoring, point: "restore.pre-restore", also: []fault{calledTwice, otherDump, imagesGone}, without: lacks(noDeadline, deadline, noSession, watcherKilled, allKilled, noImages, imagesFull, notYet, continued, targetKilled)},
		{name: "pre-restore: the watcher starts", scene: restoring, point: "restore.watcher", also: []fault{imagesGone}, without: lacks(starting, hookKilled, allKilled, noImages, imagesFull, notYet, continued, targetKilled)},
		{name: "criu restoring", scene: criuRestores, also: []fault{continued, otherDump, imagesGone}, without: lacks(noDeadline, deadline, noHook, hookKilled, calledTwice, noImages, imagesFull)},
		{name: "post-restore", scene: restoring, point: "restore.post-restore", also: []fault{continued, calledTwice, otherDump}, without: lacks(noDeadline, deadline, noImages, imagesFull)},
		{name: "pre-resume", scene: restoring, point: "restore.pre-resume", also: []fault{continued, calledTwice, otherDump}, without: lacks(noDeadline, deadline, noImages, imagesFull)},
		{name: "criu lets go", scene: restoring, moment: &moment{stage: "pre-resume"}, also: []fault{continued, otherDump}, without: lacksAllBut(criuKilled)},
		{
			name: "criu has let go", scene: restoring, moment: &moment{stage: "post-resume", before: true}, also: []fault{continued, otherDump, imagesGone},
			slow: []string{"restore delay 2s comm cudawork"}, without: lacksAllBut(criuKilled),
		},
		{name: "post-resume", scene: restoring, point: "restore.post-resume", also: []fault{continued, otherDump, imagesGone}, without: lacks(noDeadline, deadline, noImages, imagesFull)},
	},
	back("post-resume: ", "restore.back.", restoring, lacks(noImages, imagesFull)),
	[]row{{name: "post-resume: close", scene: restoring, point: "restore.close", also: []fault{calledTwice, otherDump}, without: lacks(noDeadline, deadline, noImages, imagesFull)}},
))

// fill adds the reasons for those empty cells of the later columns that no row asks for.
func fill(rows []row) []row {
	for i, r := range rows {
		rows[i].without = maps.Clone(r.without)
		if r.without == nil {
			rows[i].without = make(map[fault]string)
		}
		for f, note := range map[fault]string{continued: notStopped, calledTwice: elsewhere, otherDump: elsewhere, imagesGone: noFiles} {
			if r.without[f] == "" && !slices.Contains(r.also, f) {
				rows[i].without[f] = note
			}
		}
	}
	return rows
}

// back returns the steps of the way back.
func back(prefix, point string, scene scene, without map[fault]string) []row {
	var rows []row
	for _, step := range []struct {
		name, slow string
		also       []fault
	}{
		{"stop", "", []fault{continued, otherDump, imagesGone}},
		{"park", "", []fault{continued}},
		{"fill", "", []fault{continued, imagesGone}},
		{"trace", "", []fault{continued}},
		{"free memory", "", []fault{continued}},
		{"restore", "restore delay 8s times 2", []fault{continued, calledTwice, otherDump}},
		{"release", "", []fault{continued}},
		{"move", "", []fault{continued}},
		{"hold", "", []fault{continued}},
		{"unpark", "", []fault{continued}},
		{"continue", "", []fault{continued}},
		{"unlock", "unlock delay 8s times 2", []fault{calledTwice, otherDump}},
		{"open", "", nil},
		{"others", "", nil},
	} {
		r := row{name: prefix + step.name, scene: scene, point: point + step.name, midStage: true, also: step.also, without: without}
		r.guest = slices.Contains([]string{"move", "hold", "open"}, step.name)
		if step.slow != "" {
			r.slow = []string{step.slow}
		}
		rows = append(rows, r)
		switch step.name {
		case "move":
			r.name, r.point = prefix+"move: under way", point+"moving"
			rows = append(rows, r)
			shared := r
			shared.name, shared.point, shared.shares = prefix+"move: what is shared is put up again", point+"share", true
			shared.without = maps.Clone(without)
			shared.without[targetKilled] = together
			rows = append(rows, shared)
			if scene == goingBack {
				r.name, r.point, r.goesOn = prefix+"move: from the copy that the GPUs have kept", point+"kept", true
			} else {
				r.name, r.point, r.also = prefix+"move: from the files", point+"files", []fault{continued, imagesGone}
				rows = append(rows, r)
				r.name, r.point, r.also = prefix+"move: it may not be checked yet", point+"unchecked", []fault{continued}
			}
			rows = append(rows, r)
		case "restore":
			name, doing := "filled in", "filling-moved"
			if scene == restoring {
				name, doing = "checked", "checking-moved"
			}
			r.name, r.point = prefix+"restore: what the library has moved is "+name, strings.TrimSuffix(point, "back.")+doing
			r.slow, r.guest, r.also = nil, true, []fault{continued, imagesGone}
			rows = append(rows, r)
		}
		if step.name != "fill" {
			continue
		}
		r.name, r.point = prefix+"fill: memory accessible again", point+"accessible"
		rows = append(rows, r)
		r.name, r.point, r.mib = prefix+"in the middle of the fill", strings.TrimSuffix(point, "back.")+"filling", 4
		rows = append(rows, r)
		r.name, r.point, r.mib, r.without = prefix+"filled", point+"filled", 0, maps.Clone(without)
		r.also = []fault{continued}
		r.without[deadline] = noDeadline
		rows = append(rows, r)
	}
	return rows
}

// actions returns what the failpoint does for a fault.
func (r row) actions(t *testing.T, f fault, w *world) string {
	t.Helper()
	inWatcher := strings.HasSuffix(r.point, ".watcher") || r.scene == goingBack || r.name == "close, by the watcher"
	switch {
	case f == watcherKilled && inWatcher:
		return "kill"
	case f == deadline:
		return "hang"
	case f == otherDump:
		return "run " + w.neighbours.script
	}
	return map[fault]string{
		stepFails:     "error",
		hookKilled:    "kill",
		criuKilled:    "kill-criu",
		watcherKilled: "kill-watcher",
		allKilled:     "kill-watcher+kill-criu+kill",
		imagesFull:    "fill " + w.images,
		runFull:       "fill " + w.host.RunDir,
		continued:     "continue " + w.pids(t),
		calledTwice:   "kill", // if the first call is to end in the middle
		imagesGone:    "remove " + w.imageFiles(),
		targetKilled:  fmt.Sprintf("kill %d", w.target),
	}[f]
}
