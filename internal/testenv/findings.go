package testenv

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"cucriu/hooks/preflight"
)

// Check runs cucriu check, and fails the test if its exit status does not match the findings.
func Check(t testing.TB, host *Host, args ...string) preflight.Findings {
	t.Helper()
	args = append([]string{"check", "--json", "--criu", Criu(t)}, args...)
	out, err := host.Command(Artefact(t, "make build", "bin", "cucriu"), args...).Output()
	var findings preflight.Findings
	if jsonErr := json.Unmarshal(out, &findings); jsonErr != nil {
		t.Fatalf("cucriu %v: %v, %v\n%s", args, err, jsonErr, out)
	}
	want := 0
	if len(findings.Of(preflight.SeverityError)) > 0 {
		want = StatusRefused
	}
	if status := ExitStatus(err); status != want {
		t.Fatalf("cucriu %v: exit status %d (%v), want %d for %+v", args, status, err, want, findings)
	}
	return findings
}

// NoErrors fails the test if cucriu check finds an error.
func NoErrors(t testing.TB, host *Host, args ...string) {
	t.Helper()
	if errs := Check(t, host, args...).Of(preflight.SeverityError); len(errs) > 0 {
		t.Fatalf("cucriu check %v found %+v", args, errs)
	}
}

// OnlyError fails the test unless exactly one of the findings is an error, and it has this name
// and a remedy.
func OnlyError(t testing.TB, findings preflight.Findings, name string) preflight.Finding {
	t.Helper()
	errs := findings.Of(preflight.SeverityError)
	if len(errs) != 1 || errs[0].Name != name || errs[0].Message == "" || errs[0].Remedy == "" {
		t.Fatalf("found %+v, want one error %s", findings, name)
	}
	return errs[0]
}

// Foretold fails the test unless cucriu check finds exactly one error, and cucriu dump or restore is
// refused for it in the same words, with nothing touched. options are those of both commands.
func Foretold(t testing.TB, host *Host, verb, name string, options ...string) preflight.Finding {
	t.Helper()
	found := OnlyError(t, Check(t, host, options...), name)
	before := len(host.Sessions())
	words := "refused, nothing was touched: " + found.String()
	if out := Exits(t, host, StatusRefused, append([]string{verb}, options...)...); !strings.Contains(out, words) {
		t.Errorf("cucriu %s says nothing of %q:\n%s", verb, words, out)
	}
	if after := len(host.Sessions()); after != before {
		t.Errorf("a refusal is to touch nothing, but there are %d sessions after %d", after, before)
	}
	return found
}

// Refused fails the test unless cucriu check finds exactly one error in a job, and a dump
// by criu or by cucriu is refused for it, in the same words, with nothing touched.
func Refused(t testing.TB, host *Host, job *Job, name, images string, dumpArgs ...string) preflight.Finding {
	t.Helper()
	found := OnlyError(t, Check(t, host, "-t", job.Root(), "-D", filepath.Join(images, "images")), name)
	run := host.TryDump(job, images, dumpArgs...)
	// Up to the first digit, because free amounts change from one check to the next.
	words := "refused, nothing was touched: " + regexp.MustCompile(`^.*: [^0-9]*`).FindString(strings.TrimSuffix(found.String(), ": "+found.Remedy))
	if run.Err == nil || !strings.Contains(run.Log, words) {
		t.Fatalf("criu dump: %v; want %q\n%s", run.Err, words, run.Lines())
	}
	if name != preflight.FindingCUDAPlugin { // cucriu keeps the plugin from criu
		args := append([]string{"dump", "-t", job.Root(), "-D", filepath.Join(images, "images")}, dumpArgs...)
		if out := Exits(t, host, StatusRefused, args...); !strings.Contains(out, words) {
			t.Fatalf("cucriu dump says nothing of %q:\n%s", words, out)
		}
	}
	if sessions := host.Sessions(); len(sessions) != 0 {
		t.Fatalf("a refusal is to touch nothing, but made a session: %+v", sessions)
	}
	job.Runs()
	return found
}
