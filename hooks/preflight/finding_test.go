package preflight

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// severities returns the findings as "name=severity", or "name=forced" if overridden.
func severities(findings Findings) string {
	var all []string
	for _, f := range findings {
		severity := string(f.Severity)
		if f.Forced {
			severity = "forced"
		}
		all = append(all, f.Name+"="+severity)
	}
	return strings.Join(all, " ")
}

func TestOnlyWhatIsNamedAndCanBeForcedIsOverridden(t *testing.T) {
	findings := Findings{
		{Name: FindingSharing, Severity: SeverityError, PID: 7, Process: "python", Message: "a", Remedy: "b"},
		{Name: FindingTraced, Severity: SeverityError, Message: "c", Remedy: "d"},
		{Name: FindingDiskSpace, Severity: SeverityError, Message: "e", Remedy: "f"},
		{Name: FindingTHP, Severity: SeverityWarning, Message: "g"},
	}
	forced := findings.Force([]string{FindingSharing, FindingTraced, FindingTHP})
	if got, want := severities(forced), "shared-gpu-memory=forced traced=error disk-space=error thp=warning"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := severities(findings); strings.Contains(got, "forced") {
		t.Errorf("the findings themselves have changed: %s", got)
	}
	var refused *RefusedError
	if err := forced.Err(); !errors.As(err, &refused) || len(refused.Findings) != 2 || !strings.Contains(err.Error(), "\n  disk-space: e: f") {
		t.Errorf("refused with %v", err)
	}
	const told = "refused, nothing was touched: shared-gpu-memory: process 7 (python): a: b"
	if err := findings[:1].Err(); err == nil || err.Error() != told {
		t.Errorf("refused with %v", err)
	}
	if err := forced.Of(SeverityWarning).Err(); err != nil {
		t.Errorf("warnings refuse: %v", err)
	}
	if CheckForce([]string{FindingSharing}) != nil || CheckForce([]string{FindingTraced}) == nil ||
		CheckForce([]string{"nccl"}) == nil {
		t.Error("what can be forced is not told from what cannot")
	}
}

func TestRefused(t *testing.T) {
	plain := errors.New("no such process")
	findings := Findings{{Name: FindingForkedChild, Severity: SeverityError, Message: "a child"}}.Err()
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"no error", nil, false},
		{"an error that says nothing of it", plain, false},
		{"findings", findings, true},
		{"wrapped findings", fmt.Errorf("job 1: %w", findings), true},
		{"a refusal", fmt.Errorf("job 1: %w", AsRefusal(plain)), true},
		{"a refusal beside a failure", errors.Join(AsRefusal(plain), plain), true},
		{"findings after something was touched", AsFailure(findings), false},
		{"a refusal after something was touched", fmt.Errorf("of two jobs: %w", AsFailure(AsRefusal(plain))), false},
		{"beside another that comes later", errors.Join(AsFailure(plain), findings), false},
		{"nothing refused", AsRefusal(nil), false},
		{"nothing touched", AsFailure(nil), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Refused(test.err); got != test.want {
				t.Errorf("Refused(%v) = %v", test.err, got)
			}
		})
	}
	if err := AsRefusal(plain); err.Error() != plain.Error() || !errors.Is(err, plain) {
		t.Errorf("a refusal hides its cause: %v", err)
	}
}

// TestWhatAJobHasNamedIsEscaped: a file's name may hold anything, such as what a terminal obeys, or lines
// that look like ours.
func TestWhatAJobHasNamedIsEscaped(t *testing.T) {
	f := New(FindingUnrestorable, "has /tmp/a\x1b[2J\ncucriu: all is well open", "chattr -i /tmp/a\x1b[2J\n")
	f.PID, f.Process = 7, "py\x1b[31m"
	want := `unrestorable: process 7 (py\x1b[31m): has /tmp/a\x1b[2J\ncucriu: all is well open: chattr -i /tmp/a\x1b[2J\n`
	if f.String() != want || (Findings{f}).Err().Error() != "refused, nothing was touched: "+want {
		t.Errorf("%q, want %q", f, want)
	}
}
