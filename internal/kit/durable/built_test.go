package durable

import (
	"os"
	"path/filepath"
	"testing"
	"testing/fstest"
)

func TestABuiltFileIsPlacedOnce(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	for _, content := range []string{"first", "later"} {
		b := Built{fstest.MapFS{"built/program": {Data: []byte(content)}}, "program"}
		if err := b.Place(path, 0o755); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil || string(data) != "first" {
			t.Errorf("%q, %v", data, err)
		}
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o755 {
		t.Errorf("%v, %v", info, err)
	}
	if err := (Built{fstest.MapFS{}, "program"}).Place(path+"2", 0o755); err == nil {
		t.Error("placed what was not built")
	}
}
