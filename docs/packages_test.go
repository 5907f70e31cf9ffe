package docs

import (
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestEveryPackageIsInDevelopment holds the table of packages to the folders.
func TestEveryPackageIsInDevelopment(t *testing.T) {
	var packages []string
	for _, top := range []string{"cmd", "hooks", "cudackpt", "criuutil", "internal"} {
		err := filepath.WalkDir(filepath.Join("..", top), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			dir, err := filepath.Rel("..", filepath.Dir(path))
			if err == nil && !slices.Contains(packages, dir) {
				packages = append(packages, dir)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	text := read(t, "development.md")
	for _, name := range packages {
		if !strings.Contains(text, "\n| `"+name+"` |") {
			t.Errorf("docs/development.md's table of packages has no row for %s", name)
		}
	}
	for _, row := range tableEntries(text, "`") {
		top, _, _ := strings.Cut(row, "/")
		isListed := slices.Contains([]string{"cmd", "hooks", "cudackpt", "criuutil", "internal"}, top)
		if isListed && !slices.Contains(packages, row) {
			t.Errorf("docs/development.md's table of packages has a row for %s, which is none", row)
		}
	}
}
