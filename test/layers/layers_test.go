// Package layers checks which packages may import each other. The folders say on which floor a package is:
//
//	cmd                the commands
//	internal/migrate   moves                                  ┐ two houses, which know
//	internal/jobs      long jobs, and jobs from an image      ┘ others by their doors
//	hooks, hooks/checkpoint                  the door
//	hooks/config, image, preflight, timeline what the door is told, and what it shows
//	internal/core      one dump or restore
//	internal/kit, cudackpt, criuutil         the tools
//
// What internal/migrate knows of internal/jobs is in files of that folder whose names begin with "mov".
//
// Inside a floor, Go itself allows no cycles. Tests, and what helps them, may import anything.
package layers

import (
	"bytes"
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"iter"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

type floor string

const (
	commands floor = "the commands"
	migrate  floor = "migration"
	jobs     floor = "long jobs"
	door     floor = "the door"
	shown    floor = "what the door shows"
	core     floor = "the core"
	kit      floor = "the kit"
	free     floor = "tests"
)

// mayImport lists the floors of which each may import packages.
var mayImport = map[floor][]floor{
	commands: {commands, migrate, jobs, door, shown, kit},
	migrate:  {migrate, jobs, door, shown, kit},
	jobs:     {jobs, door, shown, kit},
	door:     {door, shown, core, kit},
	shown:    {shown, kit},
	core:     {core, shown, kit},
	kit:      {kit},
}

// floorOf returns the floor of a package, which is named without the module. It is empty if the folder is none of those
// above.
func floorOf(name string) floor {
	in := func(dirs ...string) bool {
		return slices.ContainsFunc(dirs, func(dir string) bool { return name == dir || strings.HasPrefix(name, dir+"/") })
	}
	switch {
	case in("cmd"):
		return commands
	case in("internal/migrate"):
		return migrate
	case in("internal/jobs"):
		return jobs
	case name == "hooks" || name == "hooks/checkpoint":
		return door
	case in("hooks"):
		return shown
	case in("internal/core"):
		return core
	case in("internal/kit", "cudackpt", "criuutil"):
		return kit
	case in("test", "internal/testenv", "docs", "scripts"):
		return free
	}
	return ""
}

type goPackage struct {
	Dir        string
	ImportPath string
	GoFiles    []string
	Imports    []string
}

// packages returns the packages of this module that contain more than tests.
func packages(t *testing.T) []goPackage {
	t.Helper()
	const fields = "-json=Dir,ImportPath,GoFiles,Imports"
	out, err := exec.Command("go", "list", fields, "-tags", "failpoint", "cucriu/...").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	var all []goPackage
	for decoder := json.NewDecoder(bytes.NewReader(out)); ; {
		var p goPackage
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if len(p.GoFiles) > 0 {
			all = append(all, p)
		}
	}
}

func TestImportsStayWithinTheirFloors(t *testing.T) {
	for _, p := range packages(t) {
		name := strings.TrimPrefix(p.ImportPath, "cucriu/")
		from := floorOf(name)
		if from == "" {
			t.Errorf("%s is on no floor: see the head of this file", name)
		}
		for _, imported := range p.Imports {
			to, ours := strings.CutPrefix(imported, "cucriu/")
			if ours && from != free && !slices.Contains(mayImport[from], floorOf(to)) {
				t.Errorf("%s (%s) imports %s (%s)", name, from, to, floorOf(to))
			}
		}
	}
}

// TestMovesKnowLongJobsByASmallInterface: internal/migrate imports no other package of long jobs, and of that one names
// only what is meant for it.
func TestMovesKnowLongJobsByASmallInterface(t *testing.T) {
	const ofJobs = "cucriu/internal/jobs"
	named, offered := make(map[string]token.Position), make(map[string]bool)
	for _, p := range packages(t) {
		switch floorOf(strings.TrimPrefix(p.ImportPath, "cucriu/")) {
		case migrate:
			for _, imported := range p.Imports {
				if strings.HasPrefix(imported, ofJobs+"/") {
					t.Errorf("%s imports %s", p.ImportPath, imported)
				}
			}
			for file, position := range parsed(t, p) {
				ast.Inspect(file, func(n ast.Node) bool {
					if s, is := n.(*ast.SelectorExpr); is && isNamed(s.X, "jobs") {
						named[s.Sel.Name] = position(s.Pos())
					}
					return true
				})
			}
		case jobs:
			if p.ImportPath != ofJobs {
				continue
			}
			for file, position := range parsed(t, p) {
				if !strings.HasPrefix(filepath.Base(position(file.Pos()).Filename), "mov") {
					continue
				}
				for _, declared := range file.Decls {
					for _, name := range namesOf(declared) {
						offered[name] = true
					}
				}
			}
		}
	}
	if len(named) == 0 || len(offered) == 0 {
		t.Fatal(named, offered)
	}
	for name, where := range named {
		if !offered[name] {
			t.Errorf("%v: names jobs.%s, which is not meant for moves", where, name)
		}
	}
}

// namesOf returns the names that a declaration of a package declares.
func namesOf(declared ast.Decl) (names []string) {
	switch declared := declared.(type) {
	case *ast.FuncDecl:
		if declared.Recv == nil {
			names = append(names, declared.Name.Name)
		}
	case *ast.GenDecl:
		for _, spec := range declared.Specs {
			switch spec := spec.(type) {
			case *ast.TypeSpec:
				names = append(names, spec.Name.Name)
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					names = append(names, name.Name)
				}
			}
		}
	}
	return names
}

func isNamed(x ast.Expr, name string) bool {
	of, is := x.(*ast.Ident)
	return is && of.Name == name
}

// parsed yields the files of a package.
func parsed(t *testing.T, p goPackage) iter.Seq2[*ast.File, func(token.Pos) token.Position] {
	t.Helper()
	return func(yield func(*ast.File, func(token.Pos) token.Position) bool) {
		for _, name := range p.GoFiles {
			files := token.NewFileSet()
			file, err := parser.ParseFile(files, filepath.Join(p.Dir, name), nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			if !yield(file, files.Position) {
				return
			}
		}
	}
}

// TestCUDAAndCRIUDoNotKnowEachOther: each half can be used without the other.
func TestCUDAAndCRIUDoNotKnowEachOther(t *testing.T) {
	for _, p := range packages(t) {
		for _, imported := range p.Imports {
			ofCUDA := strings.HasPrefix(p.ImportPath, "cucriu/cudackpt") && strings.HasPrefix(imported, "cucriu/criuutil")
			ofCRIU := strings.HasPrefix(p.ImportPath, "cucriu/criuutil") && strings.HasPrefix(imported, "cucriu/cudackpt")
			if ofCUDA || ofCRIU {
				t.Errorf("%s imports %s", p.ImportPath, imported)
			}
		}
	}
}

// TestPublicPackagesShowNoInternalTypes: whoever imports the packages below hooks, or cudackpt or criuutil, can name
// all that they show.
func TestPublicPackagesShowNoInternalTypes(t *testing.T) {
	for _, p := range packages(t) {
		top, _, _ := strings.Cut(strings.TrimPrefix(p.ImportPath, "cucriu/"), "/")
		if !slices.Contains([]string{"hooks", "cudackpt", "criuutil"}, top) {
			continue
		}
		for file, position := range parsed(t, p) {
			for _, where := range internalTypes(file) {
				t.Errorf("%v: shows a type of an internal package", position(where))
			}
		}
	}
}

// internalTypes returns where what a file exports names types of internal packages.
func internalTypes(file *ast.File) (found []token.Pos) {
	internal := make(map[string]bool) // by the name of the package
	for _, spec := range file.Imports {
		if path, _ := strconv.Unquote(spec.Path.Value); strings.HasPrefix(path, "cucriu/internal/") {
			internal[filepath.Base(path)] = true
		}
	}
	look := func(in ast.Node) {
		ast.Inspect(in, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.StructType:
				n.Fields.List = slices.DeleteFunc(slices.Clone(n.Fields.List), func(f *ast.Field) bool {
					return len(f.Names) > 0 && !slices.ContainsFunc(f.Names, (*ast.Ident).IsExported)
				})
			case *ast.SelectorExpr:
				if of, is := n.X.(*ast.Ident); is && internal[of.Name] {
					found = append(found, n.Pos())
				}
			}
			return true
		})
	}
	for _, declared := range file.Decls {
		switch declared := declared.(type) {
		case *ast.FuncDecl:
			if declared.Name.IsExported() {
				look(declared.Type)
			}
		case *ast.GenDecl:
			for _, spec := range declared.Specs {
				switch spec := spec.(type) {
				case *ast.TypeSpec:
					if spec.Name.IsExported() {
						look(spec.Type)
					}
				case *ast.ValueSpec:
					if spec.Type != nil && spec.Names[0].IsExported() {
						look(spec.Type)
					}
				}
			}
		}
	}
	return found
}
