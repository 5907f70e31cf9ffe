package prepare

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

// TestAJobIsDescribedAsItIs: what the destination gets over the wire is the job that runs here.
func TestAJobIsDescribedAsItIs(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		hook := hookOf(t, host)
		job := host.Start(1, "--mib", "16", "--loaders", "2")
		j := described(t, hook, job)

		sent, err := json.Marshal(j)
		if err != nil {
			t.Fatal(err)
		}
		var received Job
		if err := json.Unmarshal(sent, &received); err != nil {
			t.Fatal(err)
		}
		if err := received.Validate(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(*j, received, cmp.Comparer(func(a, b Connection) bool { return a == b })); diff != "" {
			t.Errorf("what is received is not what was sent:\n%s", diff)
		}

		pids, err := proc.Tree(job.PID)
		if err != nil {
			t.Fatal(err)
		}
		var pidsOf []int
		for _, p := range j.Processes {
			pidsOf = append(pidsOf, p.PID)
		}
		if !slices.Equal(pidsOf, pids) {
			t.Errorf("the processes are %v, and %v were described", pids, pidsOf)
		}
		for _, pid := range pids {
			threads, err := proc.Threads(pid)
			if err != nil {
				t.Fatal(err)
			}
			for _, tid := range threads {
				if !slices.Contains(j.Numbers, tid) {
					t.Errorf("thread %d is not among the numbers %v", tid, j.Numbers)
				}
			}
		}
		root := j.Processes[0]
		if len(root.GPUs) != 2 || j.GPUBytes() < 16<<20 || root.PrivateBytes == 0 || j.DriverVersion != "580.159.04" || len(j.Processes[1].GPUs) != 0 {
			t.Errorf("%+v with driver %s", j.Processes, j.DriverVersion)
		}
		work := testenv.Artefact(t, "make workload", "build", "workload", "cudawork")
		at := slices.IndexFunc(j.Files, func(f File) bool { return f.Path == work })
		if at < 0 {
			t.Fatalf("the program itself is not among the files: %+v", j.Files)
		}
		info, err := os.Stat(work)
		if err != nil {
			t.Fatal(err)
		}
		program := j.Files[at]
		if program.Size != info.Size() || program.Written || len(program.BuildID) != 40 || !program.Identity.Modified.Equal(info.ModTime()) || program.Identity.FileSystem == "" {
			t.Errorf("the program is described as %+v", program)
		}
		at = slices.IndexFunc(j.Files, func(f File) bool { return filepath.Base(f.Path) == "stderr" })
		if at < 0 || !j.Files[at].Written || j.Files[at].BuildID != "" {
			t.Errorf("the file into which it writes is not described as such: %+v", j.Files)
		}
		for _, f := range j.Files {
			if within, err := filepath.Rel(host.Dir, f.Path); err == nil && filepath.IsLocal(within) {
				t.Errorf("%s is the driver's", f.Path)
			}
		}
		if !reflect.DeepEqual(j.Own, Namespaces{}) {
			t.Errorf("it has namespaces of its own: %+v", j.Own)
		}
		job.Runs()
	})
}

// TestAJobCanGoWhereEverythingIs: the only thing in the way of a job on its own host is the job.
func TestAJobCanGoWhereEverythingIs(t *testing.T) {
	testenv.Isolated(t, func(t *testing.T) {
		host := testenv.NewHost(t, 2)
		hook := hookOf(t, host)
		job := host.Start(1, "--mib", "16")
		j := described(t, hook, job)
		source, err := JudgeSource(t.Context(), hook, j, roomOf(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := source.Err(); err != nil {
			t.Errorf("it cannot leave: %v", err)
		}
		stays, err := Judge(t.Context(), hook, j, roomOf(t))
		if err != nil {
			t.Fatal(err)
		}
		only(t, stays.Findings, preflight.SeverityError, preflight.FindingPIDTaken)
		job.Runs()
		job.Kill()
		comes, err := Judge(t.Context(), hook, j, roomOf(t))
		if err != nil {
			t.Fatal(err)
		}
		report := Report{Source: source, Destination: comes}
		if err := report.Err(); err != nil {
			t.Errorf("it cannot come: %v", err)
		}
		for _, judgement := range []*Judgement{source, comes} {
			if err := judgement.Validate(j); err != nil {
				t.Error(err)
			}
		}
		if n := len(source.Findings) + len(comes.Findings); len(report.Table()) != n {
			t.Errorf("the table has %d rows for %d findings", len(report.Table()), n)
		}
	})
}
