package checkpoint

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"cucriu/hooks/config"
	"cucriu/internal/core/journal"
	"cucriu/internal/core/session"
	"cucriu/internal/kit/rundir"
)

// TestLogsInUseAreKept, whatever the clock says: it may have been set back since they were made.
func TestLogsInUseAreKept(t *testing.T) {
	env := session.Of(&config.Hook{Config: config.Config{RunDir: t.TempDir()}})
	logs, err := rundir.Make(env.Config.RunDir, "logs")
	if err != nil {
		t.Fatal(err)
	}
	for i := range keepLogs + 3 {
		if err := os.Mkdir(filepath.Join(logs, fmt.Sprintf("29991231T000000.%03d-dump-1", i)), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	others := filepath.Join(logs, "29991231T000000.001-dump-1")
	inUse, err := lockLogs(others)
	if err != nil {
		t.Fatal(err)
	}
	defer inUse.Close()
	d := &criuSession{env: env, kind: journal.KindDump, begun: time.Now()}
	if err := d.prepareWorkDir(); err != nil {
		t.Fatal(err)
	}
	defer d.close()
	for _, dir := range []string{d.workDir, others} {
		if _, err := os.Stat(dir); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(logs); err != nil || len(left) != keepLogs+2 {
		t.Errorf("%d folders are left, %v", len(left), err)
	}
}
