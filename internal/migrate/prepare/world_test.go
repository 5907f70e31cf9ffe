package prepare

import (
	"slices"
	"strings"
	"testing"

	"cucriu/hooks"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/testenv"
)

// hookOf is the hook of a simulated host, for use in the test itself.
func hookOf(t *testing.T, host *testenv.Host) *hooks.Hook {
	t.Helper()
	cfg := config.Default()
	cfg.RunDir = host.RunDir
	for _, variable := range host.Env {
		switch name, value, _ := strings.Cut(variable, "="); name {
		case "CUCRIU_LIBCUDA":
			cfg.Driver.Library = value
		case "CUCRIU_DRIVER_ROOT":
			cfg.Driver.Root = value
		case "CUDASIM_ROOT":
			t.Setenv(name, value) // the simulated library reads its environment itself
		}
	}
	return &hooks.Hook{Config: cfg}
}

// described describes a job that runs.
func described(t *testing.T, hook *hooks.Hook, job *testenv.Job) *Job {
	t.Helper()
	for {
		j, err := Describe(t.Context(), hook, job.PID, testenv.Criu(t))
		if err != nil {
			t.Fatal(err)
		}
		// On a busy machine it may take long to write one of its files.
		if !slices.ContainsFunc(j.Files, func(f File) bool { return strings.HasSuffix(f.Path, ".tmp") }) {
			return j
		}
	}
}

func roomOf(t *testing.T) Room {
	t.Helper()
	return Room{Dir: t.TempDir(), Criu: testenv.Criu(t)}
}

// only fails the test unless exactly one of the findings has this severity, and it has this name.
func only(t *testing.T, findings preflight.Findings, severity preflight.Severity, name string) preflight.Finding {
	t.Helper()
	found := findings.Of(severity)
	if len(found) != 1 || found[0].Name != name || found[0].Message == "" || severity != preflight.SeverityOK && found[0].Remedy == "" {
		t.Fatalf("found %+v, want one %s %s", found, severity, name)
	}
	return found[0]
}

// hookFor is a hook for what needs no driver.
func hookFor(t *testing.T) *hooks.Hook {
	t.Helper()
	cfg := config.Default()
	cfg.RunDir = t.TempDir()
	return &hooks.Hook{Config: cfg}
}
