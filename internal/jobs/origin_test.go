package jobs

import "testing"

// TestFilesOfAJobFromAnImageAreItsOwn: what it sees at the path of another job's file is in its own directory, and
// nothing but that is removed or copied for it.
func TestFilesOfAJobFromAnImageAreItsOwn(t *testing.T) {
	r := record{Dir: "/jobs/b", Image: &origin{Dir: "/jobs/a", Private: []string{"/data/out", "/var/log/app"}}}
	for seen, want := range map[string]string{
		"/data/out":              "/jobs/b/private/0",
		"/data/out/run/x":        "/jobs/b/private/0/run/x",
		"/var/log/app/log.1":     "/jobs/b/private/1/log.1",
		"/data/output":           "/data/output",
		"/data":                  "/data",
		"/var/log/other/app.log": "/var/log/other/app.log",
	} {
		if got := r.hostPath(seen); got != want {
			t.Errorf("%s is %s on the host, want %s", seen, got, want)
		}
	}
	if got := (record{Dir: "/jobs/a"}).hostPath("/data/out/x"); got != "/data/out/x" {
		t.Errorf("a job that was not started from an image has %s", got)
	}
}

// TestADirectoryAndWhatIsInIt tells it from one whose name begins alike.
func TestADirectoryAndWhatIsInIt(t *testing.T) {
	for _, test := range []struct {
		path, dir string
		is        bool
	}{
		{"/a", "/a", true},
		{"/a/b", "/a", true},
		{"/ab", "/a", false},
		{"/", "/a", false},
		{"/a", "/", true},
		{"/a/../b", "/a", false},
	} {
		if isBelow(test.path, test.dir) != test.is {
			t.Errorf("%s in %s: %v", test.path, test.dir, !test.is)
		}
	}
}
