package faults

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// otherPoints are the points of a dump that are no rows, and the tests that interrupt them.
var otherPoints = map[string]string{
	"dump.thawed":       "test/dump/paused_test.go",          // only of what an engine has frozen
	"dump.borrow":       "test/dump/fastlane_test.go",        // a failure leaves the memory to criu
	"dump.drop-locked":  "test/check/preflight_more_test.go", // only of locked memory
	"dump.transferring": "test/dump/rest_test.go",            // only with --lazy-pages
	"restore.asking":    "test/workload/everything_test.go",  // only of what only a process itself can set again
	"dump.back.pause":   "test/dump/paused_test.go",          // only of what an engine has frozen
}

// uninterrupted are the steps of the way back that are no rows, and why: a kill in one is a kill at the step before or
// after it.
var uninterrupted = map[string]string{"dump.back.connections": "removes firewall rules, once more each time it is done"}

// TestEveryPointIsARow finds a point of a dump or a restore at which no fault is made to happen: a new step, or a
// new [session.Session.Failpoint].
func TestEveryPointIsARow(t *testing.T) {
	root := testenv.Root(t)
	var points []string
	literal := regexp.MustCompile(`(?:Failpoint|failpoint\.Hit)\([^"\n]*"((?:dump|restore)\.[^"]+)"[,)]`)
	step := regexp.MustCompile(`(?m)^\tStep\w+ +Step = "([^"]+)"`)
	for _, dir := range []string{"stages", "engine", "watch", "session", "journal"} {
		files, err := filepath.Glob(filepath.Join(root, "internal/core", dir, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %d files", dir, err, len(files))
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range literal.FindAllStringSubmatch(string(data), -1) {
				points = append(points, found[1])
			}
			for _, found := range step.FindAllStringSubmatch(string(data), -1) {
				kind := "dump."
				switch name := found[1]; {
				case name == "suspended" || name == "resume": // of a suspend
					continue
				case strings.HasPrefix(name, "pre-") || strings.HasPrefix(name, "post-"):
					kind = "restore."
				}
				points = append(points, kind+found[1])
			}
		}
	}
	if len(points) < 30 {
		t.Fatalf("only %d points were found, so the test shows little: %v", len(points), points)
	}
	wayBack, err := os.ReadFile(filepath.Join(root, "internal/core/engine/back.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, found := range regexp.MustCompile(`\{Name: "([^"]+)", Do: b\.`).FindAllStringSubmatch(string(wayBack), -1) {
		points = append(points, "dump.back."+found[1])
	}
	for _, point := range points {
		if slices.ContainsFunc(rows, func(r row) bool { return r.point == point }) {
			continue
		}
		if uninterrupted[point] != "" {
			continue
		}
		by := otherPoints[point]
		data, err := os.ReadFile(filepath.Join(root, by))
		if by == "" || err != nil || !strings.Contains(string(data), strings.TrimPrefix(point, "dump.")) {
			t.Errorf("no row of the fault matrix is about %s, and otherPoints names no test that is", point)
		}
	}
}
