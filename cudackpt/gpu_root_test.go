package cudackpt

import (
	"strings"
	"testing"
)

// TestAWrongDriverRootIsNamed, not only the kernel module that may well be loaded.
func TestAWrongDriverRootIsNamed(t *testing.T) {
	dir := t.TempDir()
	if _, err := listHostGPUs(dir); err == nil || !strings.HasSuffix(err.Error(), "CUCRIU_DRIVER_ROOT), which is "+dir) {
		t.Error(err)
	}
}
