package engine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestWhatAJobIsGivenToReadItCannotOpenForWriting, as root could through /proc.
func TestWhatAJobIsGivenToReadItCannotOpenForWriting(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Fatal("this test clones a mount and needs root")
	}
	path := filepath.Join(t.TempDir(), "shard")
	if err := os.WriteFile(path, []byte("pages"), 0o600); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	for _, removed := range []bool{false, true} { // as of a dump that was published meanwhile
		if removed {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}
		again, err := readOnly(file)
		if err != nil {
			t.Fatalf("removed %v: %v", removed, err)
		}
		link := fmt.Sprintf("/proc/self/fd/%d", again.Fd())
		if data, err := os.ReadFile(link); err != nil || string(data) != "pages" {
			t.Errorf("removed %v: %q, %v", removed, data, err)
		}
		if writable, err := os.OpenFile(link, os.O_RDWR, 0); !errors.Is(err, unix.EROFS) {
			t.Errorf("removed %v: opening it for writing: %v", removed, err)
			writable.Close()
		}
		again.Close()
	}
}
