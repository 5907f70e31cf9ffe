package preflight

import (
	"errors"
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
		{Name: FindingNCCL, Severity: SeverityError, PID: 7, Process: "python", Message: "a", Remedy: "b"},
		{Name: FindingTraced, Severity: SeverityError, Message: "c", Remedy: "d"},
		{Name: FindingDiskSpace, Severity: SeverityError, Message: "e", Remedy: "f"},
		{Name: FindingTHP, Severity: SeverityWarning, Message: "g"},
	}
	forced := findings.Force([]string{FindingNCCL, FindingTraced, FindingTHP})
	if got, want := severities(forced), "nccl-ipc=forced traced=error disk-space=error thp=warning"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := severities(findings); strings.Contains(got, "forced") {
		t.Errorf("the findings themselves have changed: %s", got)
	}
	var refused *RefusedError
	if err := forced.Err(); !errors.As(err, &refused) || len(refused.Findings) != 2 || !strings.Contains(err.Error(), "\n  disk-space: e: f") {
		t.Errorf("refused with %v", err)
	}
	if err := findings[:1].Err(); err == nil || err.Error() != "refused, nothing was touched: nccl-ipc: process 7 (python): a: b" {
		t.Errorf("refused with %v", err)
	}
	if err := forced.Of(SeverityWarning).Err(); err != nil {
		t.Errorf("warnings refuse: %v", err)
	}
	if CheckForce([]string{FindingNCCL}) != nil || CheckForce([]string{FindingTraced}) == nil || CheckForce([]string{"nccl"}) == nil {
		t.Error("what can be forced is not told from what cannot")
	}
}
