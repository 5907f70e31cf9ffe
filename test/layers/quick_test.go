package layers

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv/quick"
)

// TestQuickTestsExist: a name in a quick.txt that nothing has would be a test that `make test` only seems to run.
func TestQuickTestsExist(t *testing.T) {
	var files []string
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			return fs.SkipDir
		}
		if filepath.Base(path) == "quick.txt" {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sources, err := filepath.Glob(filepath.Join(filepath.Dir(file), "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var source strings.Builder
		for _, path := range sources {
			data, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			source.Write(data)
		}
		named, others := quick.Names(string(data))
		if named != nil && others != nil {
			t.Errorf("%s names quick tests and others", file)
		}
		for _, name := range slices.Concat(named, others) {
			test, subtests, _ := strings.Cut(name, "/")
			if !strings.Contains(source.String(), "func "+test+"(t *testing.T)") {
				t.Errorf("%s: no test is called %s", file, test)
			}
			for part := range strings.SplitSeq(subtests, "/") {
				for word := range strings.SplitSeq(part, "-") {
					if !strings.Contains(source.String(), word) {
						t.Errorf("%s: no subtest of %s is called %s", file, test, part)
					}
				}
			}
		}
	}
}
