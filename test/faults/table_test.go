package faults

import (
	"fmt"
	"maps"
	"slices"
	"strings"
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
	targetKilled  fault = "one CUDA process killed"
)

// faults are the columns, in the order in which a row is run: the last one costs
// the job.
var faults = []fault{stepFails, deadline, hookKilled, criuKilled, watcherKilled, allKilled, imagesFull, runFull, targetKilled}

// scene is what goes on around a step.
type scene int

const (
	dumping      scene = iota // criu dump with the hook
	criuAtWork                // the same, and the test breaks it in criu's own part
	goingBack                 // the same, but a later script makes criu fail: the watcher brings the job back
	restoring                 // criu restore with the hook
	criuRestores              // the same, and the test breaks it in criu's own part
)

// restores reports whether the step is one of a restore.
func (r row) restores() bool { return r.scene == restoring || r.scene == criuRestores }

// byTest reports whether the test makes the fault happen, not the hook.
func (r row) byTest() bool { return r.scene == criuAtWork || r.scene == criuRestores }

// memory is the device memory of each process, in MiB.
func (r row) memory() int { return max(2, r.mib) }

// row is a step of a protocol.
type row struct {
	name  string
	scene scene
	point string // of the hook
	// mib is the device memory of each process; 0 is as little as will do.
	mib int
	// slow are the simulated driver's fault rules that make the step outlast its
	// deadline. Without them the step is held up as it begins.
	slow []string
	// without has the note that says why a fault cannot happen here.
	without map[fault]string
}

// Why a cell is empty: the letter and the reason, in the order of the notes.
const (
	noDeadline = "a"
	noSession  = "b"
	watcherHas = "c"
	noHook     = "d"
	noImages   = "e"
	starting   = "f"
	notYet     = "g"
	roomAgain  = "h"
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
}

// lacks makes the map of a row's empty cells: pairs of a note and its faults.
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

var rows = slices.Concat(
	[]row{
		{name: "inspect", point: "dump.inspect", without: lacks(noSession, watcherKilled, allKilled)},
		{name: "watch", point: "dump.watch", without: lacks(noDeadline, deadline, noSession, watcherKilled, allKilled)},
		{name: "watch: files made", point: "dump.created", without: lacks(noDeadline, deadline, noSession, watcherKilled, allKilled)},
		{name: "watch: the watcher starts", point: "dump.watcher", without: lacks(starting, hookKilled, allKilled)},
		{name: "lock", point: "dump.lock", slow: []string{"lock delay 3s"}},
		{name: "stop", point: "dump.stop", without: lacks(noDeadline, deadline)},
		{name: "trace", point: "dump.trace", without: lacks(noDeadline, deadline)},
		{name: "checkpoint", point: "dump.checkpoint", slow: []string{"checkpoint delay 3s"}},
		{name: "checkpoint: memory made ready", point: "dump.prefault", mib: 20},
		{name: "checkpoint: in the middle of the copy", point: "dump.copying", mib: 4},
		{name: "checkpoint: on the way to the disk", point: "dump.syncing"},
		{name: "release", point: "dump.release", without: lacks(noDeadline, deadline)},
		{name: "copy", point: "dump.copy", without: lacks(noDeadline, deadline)},
		{name: "drop", point: "dump.drop", without: lacks(noDeadline, deadline)},
		{name: "drop: noted", point: "dump.noted", without: lacks(roomAgain, runFull)},
		{name: "drop: half done", point: "dump.dropping", without: lacks(roomAgain, runFull)},
		{name: "drop: inaccessible", point: "dump.inaccessible", without: lacks(roomAgain, runFull)},
		{name: "freeze", point: "dump.freeze", without: lacks(noDeadline, deadline)},
		{name: "manifest", point: "dump.manifest", without: lacks(noDeadline, deadline)},
		{name: "dumping", point: "dump.dumping", without: lacks(noDeadline, deadline)},
		{name: "criu at work", scene: criuAtWork, without: lacks(noDeadline, deadline, noHook, hookKilled)},
		{name: "post-dump", point: "dump.post-dump", without: lacks(noDeadline, deadline)},
		{name: "dumped", point: "dump.dumped", without: lacks(noDeadline, deadline)},
		{name: "close, by the watcher", point: "dump.close", without: lacks(noDeadline, deadline, watcherHas, hookKilled, criuKilled, allKilled, noImages, imagesFull, notYet, targetKilled)},
	},
	back("watcher: ", "dump.back.", goingBack, lacks(watcherHas, hookKilled, criuKilled, allKilled, noImages, imagesFull)),
	[]row{{name: "watcher: close", scene: goingBack, point: "dump.close", without: lacks(noDeadline, deadline, watcherHas, hookKilled, criuKilled, allKilled, noImages, imagesFull)}},
	[]row{
		{name: "pre-restore", scene: restoring, point: "restore.pre-restore", without: lacks(noDeadline, deadline, noSession, watcherKilled, allKilled, noImages, imagesFull, notYet, targetKilled)},
		{name: "pre-restore: the watcher starts", scene: restoring, point: "restore.watcher", without: lacks(starting, hookKilled, allKilled, noImages, imagesFull, notYet, targetKilled)},
		{name: "criu restoring", scene: criuRestores, without: lacks(noDeadline, deadline, noHook, hookKilled, noImages, imagesFull)},
		{name: "post-restore", scene: restoring, point: "restore.post-restore", without: lacks(noDeadline, deadline, noImages, imagesFull)},
		{name: "pre-resume", scene: restoring, point: "restore.pre-resume", without: lacks(noDeadline, deadline, noImages, imagesFull)},
		{name: "post-resume", scene: restoring, point: "restore.post-resume", without: lacks(noDeadline, deadline, noImages, imagesFull)},
	},
	back("post-resume: ", "restore.back.", restoring, lacks(noImages, imagesFull)),
	[]row{{name: "post-resume: close", scene: restoring, point: "restore.close", without: lacks(noDeadline, deadline, noImages, imagesFull)}},
)

// back are the steps of the way back.
func back(prefix, point string, scene scene, without map[fault]string) []row {
	var rows []row
	for _, step := range []struct{ name, slow string }{
		{"stop", ""},
		{"fill", ""},
		{"trace", ""},
		{"free memory", ""},
		{"restore", "restore delay 5s times 2"},
		{"release", ""},
		{"continue", ""},
		{"unlock", "unlock delay 5s times 2"},
		{"others", ""},
	} {
		r := row{name: prefix + step.name, scene: scene, point: point + step.name, without: without}
		if step.slow != "" {
			r.slow = []string{step.slow}
		}
		rows = append(rows, r)
		if step.name != "fill" {
			continue
		}
		r.name, r.point = prefix+"fill: memory accessible again", point+"accessible"
		rows = append(rows, r)
		r.name, r.point, r.mib = prefix+"in the middle of the fill", strings.TrimSuffix(point, "back.")+"filling", 4
		rows = append(rows, r)
		r.name, r.point, r.mib, r.without = prefix+"filled", point+"filled", 0, maps.Clone(without)
		r.without[deadline] = noDeadline
		rows = append(rows, r)
	}
	return rows
}

// actions is what the failpoint does for a fault.
func (r row) actions(f fault, w *world) string {
	inWatcher := strings.HasSuffix(r.point, ".watcher") || r.scene == goingBack || r.name == "close, by the watcher"
	switch {
	case f == watcherKilled && inWatcher:
		return "kill"
	case f == deadline:
		return "hang"
	}
	return map[fault]string{
		stepFails:     "error",
		hookKilled:    "kill",
		criuKilled:    "kill-criu",
		watcherKilled: "kill-watcher",
		allKilled:     "kill-watcher+kill-criu+kill",
		imagesFull:    "fill " + w.images,
		runFull:       "fill " + w.host.RunDir,
		targetKilled:  fmt.Sprintf("kill %d", w.target),
	}[f]
}
