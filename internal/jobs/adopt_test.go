package jobs

import (
	"strings"
	"testing"
)

// TestARestoredProcessIsNoContainers: it has a time namespace of its own, too.
func TestARestoredProcessIsNoContainers(t *testing.T) {
	for _, c := range []struct {
		kinds []string
		says  string
	}{
		{[]string{"time"}, "process 42 has a time namespace of its own, as criu gives to what it restores, and cannot be adopted: cucriu dump makes a checkpoint of it"},
		{[]string{"mnt", "time"}, "process 42 has namespaces of its own (mnt, time), as in a container: run cucriu there"},
	} {
		if err := refuseNamespaces(42, c.kinds); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.kinds, err)
		}
	}
	if err := refuseNamespaces(42, nil); err != nil {
		t.Error(err)
	}
}
