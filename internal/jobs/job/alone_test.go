package job

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/hooks/image"
	"cucriu/internal/kit/twice"
)

// TestOneImageIsStartedAgainAsAnotherJob: the rules about the job that the image was made of do not forbid that. A copy
// of a long job's checkpoint is of another job.
func TestOneImageIsStartedAgainAsAnotherJob(t *testing.T) {
	dir, copied := t.TempDir(), t.TempDir()
	images := filepath.Join(dir, "checkpoints", "000001")
	if err := os.MkdirAll(images, 0o700); err != nil {
		t.Fatal(err)
	}
	const made = "inventory.img"
	written := []string{filepath.Join(dir, twice.RecordName), filepath.Join(images, made), filepath.Join(copied, made)}
	for _, path := range written {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	original, other := Of(image.Open(images)), Of(image.Open(copied))
	for _, in := range []string{images, copied} {
		lock, err := LockStart(image.Open(in), twice.Start{})
		if err != nil || lock == nil {
			t.Fatal(lock, err)
		}
		defer lock.Close()
	}
	for _, test := range []struct {
		image string
		start twice.Start
		alone bool // without the supervisor of the long job
		again bool // while another start of the image is at work
	}{
		{images, twice.Start{}, false, false},
		{images, twice.Start{As: original}, false, false},
		{images, twice.Start{As: original, Supervised: true}, true, false},
		{images, twice.Start{As: other}, true, true},
		{images, twice.Start{As: twice.Long("/jobs/another")}, true, true},
		{copied, twice.Start{}, true, false},
		{copied, twice.Start{As: other}, true, false},
		{copied, twice.Start{As: original}, true, true},
		{copied, twice.Start{As: twice.Long("/jobs/another")}, true, true},
	} {
		if err := twice.RefuseKept(test.image, test.start); (err == nil) != test.alone {
			t.Errorf("%s: start %+v: %v", test.image, test.start, err)
		}
		lock, err := LockStart(image.Open(test.image), test.start)
		isSaid := err == nil || strings.Contains(err.Error(), "another restore of this image is at work")
		if (err == nil) != test.again || lock != nil || !isSaid {
			t.Errorf("%s, at the same time: start %+v: %v", test.image, test.start, err)
		}
	}
}
