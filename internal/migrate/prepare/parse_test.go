package prepare

import (
	"debug/elf"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"cucriu/hooks/preflight"
	"cucriu/internal/kit/proc"
	"cucriu/internal/testenv"
)

func TestOfAProcessorCountsWhatProgramsUse(t *testing.T) {
	for name, tt := range map[string]struct {
		text string
		want CPU
	}{
		"x86": {
			"processor\t: 0\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: sse2 vmx avx512f hypervisor tsc_known_freq amx_tile constant_tsc avx\nbugs\t\t: spectre_v1\n\nprocessor\t: 1\nmodel name\t: other\nflags\t\t: fpu\n",
			CPU{Model: "Intel(R) Xeon(R)", Features: []string{"amx_tile", "avx", "avx512f", "sse2"}},
		},
		"arm64":   {"processor\t: 0\nFeatures\t: fp asimd sve\nCPU part\t: 0xd4f\n\n", CPU{Model: "0xd4f", Features: []string{"asimd", "fp", "sve"}}},
		"nothing": {"", CPU{}},
	} {
		if diff := cmp.Diff(tt.want, parseCPU(tt.text)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// TestABuildIDIsReadAsTheLinkerWroteIt, and what is not a program has none.
func TestABuildIDIsReadAsTheLinkerWroteIt(t *testing.T) {
	if id := buildID(testenv.Criu(t)); len(id) != 40 {
		t.Errorf("criu has the build id %q", id)
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "", "text": "#!/bin/sh\n", "cut": elf.ELFMAG + "\x02\x01\x01"} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := buildID(path); got != "" {
			t.Errorf("%s has the build id %s", name, got)
		}
	}
}

// TestTheSourceHoldsWhatItHasUntilTheJobRunsElsewhere: an image in memory is counted on top.
func TestTheSourceHoldsWhatItHasUntilTheJobRunsElsewhere(t *testing.T) {
	j := sample()
	need := func(room Room, end direction) string {
		findings, _, err := room.findings(j, end)
		if err != nil {
			t.Fatal(err)
		}
		if findings[0].Name != preflight.FindingHostMemory {
			t.Fatal(findings)
		}
		text, _, _ := strings.Cut(findings[0].Message, " of this host's memory")
		return strings.TrimPrefix(text, "during the migration the job takes ")
	}
	// 16 GiB on the GPU, 1 GiB and 1 MiB of its own.
	for what, want := range map[string]string{
		need(Room{Dir: "/"}, leaving):                     "16.0 GiB",
		need(Room{Dir: "/"}, arriving):                    "17.0 GiB",
		need(Room{Dir: "/dev/shm"}, leaving):              "33.0 GiB",
		need(Room{Dir: "/dev/shm"}, arriving):             "34.0 GiB",
		need(Room{Dir: "/dev/shm", Ahead: true}, leaving): "50.0 GiB",
	} {
		if what != want {
			t.Errorf("it takes %s, want %s", what, want)
		}
	}
}

// TestNothingIsSentAheadUnaskedWithoutRoomForAllThatMayChange: 4 tenths of this host's memory are too
// much three times, but not twice.
func TestNothingIsSentAheadUnaskedWithoutRoomForAllThatMayChange(t *testing.T) {
	var system proc.System
	available, err := system.AvailableMemory()
	if err != nil {
		t.Fatal(err)
	}
	for bytes, want := range map[uint64]bool{available / 10 * 4: false, 1 << 20: true} {
		j := &Job{SharedBytes: bytes}
		if _, ahead, err := (Room{Dir: "/dev/shm"}).findings(j, leaving); err != nil || ahead != want {
			t.Errorf("%d of %d bytes: %v, %v, want %v", bytes, available, ahead, err, want)
		}
	}
}
