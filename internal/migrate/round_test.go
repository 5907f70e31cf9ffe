package migrate

import (
	"os"
	"path/filepath"
	"testing"
)

// TestOnlyFilesOfEarlierRoundsAreLinked: the names come from the other host.
func TestOnlyFilesOfEarlierRoundsAreLinked(t *testing.T) {
	d := &treeArrival{destination: &destination{last: 2}, stage: &stage{dir: t.TempDir()}}
	outside := filepath.Join(t.TempDir(), "secret")
	for _, path := range []string{filepath.Join(d.stage.round(1), "pages-1.img"), filepath.Join(d.stage.round(2), "pages-2.img"), outside} {
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("content"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []link{
		{Round: 0, Name: "pages-1.img"},
		{Round: 2, Name: "pages-2.img"},
		{Round: -1, Name: "pages-1.img"},
		{Round: 1, Name: "missing"},
		{Round: 1, Name: ""},
		{Round: 1, Name: "."},
		{Round: 1, Name: ".."},
		{Round: 1, Name: "../round-2/pages-2.img"},
		{Round: 1, Name: outside},
		{Round: 2, Name: "pages-2.img", Parent: true},
		{Round: 1, Name: "..", Parent: true},
		{Round: 1, Name: "../round-2/pages-2.img", Parent: true},
	} {
		if err := d.linkEarlier([]link{bad}); err == nil {
			t.Errorf("%+v was linked", bad)
		}
	}
	if err := os.Symlink(filepath.Dir(outside), filepath.Join(d.stage.round(2), "parent")); err != nil {
		t.Fatal(err)
	}
	if err := d.linkEarlier([]link{{Round: 1, Name: "pages-1.img", Parent: true}}); err == nil {
		t.Error("a file was linked to where a link leads")
	}
	if err := os.RemoveAll(filepath.Join(d.stage.round(2), "parent")); err != nil {
		t.Fatal(err)
	}
	if err := d.linkEarlier([]link{{Round: 1, Name: "pages-1.img"}, {Round: 1, Name: "pages-1.img", Parent: true}}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"pages-1.img", "parent/pages-1.img"} {
		if data, err := os.ReadFile(filepath.Join(d.stage.round(2), name)); err != nil || string(data) != "content" {
			t.Errorf("%s: %q, %v", name, data, err)
		}
	}
}
