package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"gopkg.in/yaml.v3"

	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
)

var findingName = regexp.MustCompile(`^[a-z]+(-[a-z]+)*$`)

// findingNames are the names of all findings, as the code declares them: the constants
// below hooks whose names begin with Finding, and those that package preflight exports.
func findingNames(t *testing.T) []string {
	t.Helper()
	names := make(map[string]bool)
	err := filepath.WalkDir("../hooks", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			constants, ok := decl.(*ast.GenDecl)
			if !ok || constants.Tok != token.CONST {
				continue
			}
			for _, spec := range constants.Specs {
				addFindingNames(names, file.Name.Name, spec.(*ast.ValueSpec))
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range preflight.Forceable() {
		if !names[name] {
			t.Fatalf("the finding %s, which can be forced, was not found among the constants: how are they declared?", name)
		}
	}
	if len(names) < 30 {
		t.Fatalf("only %d names of findings were found: how are they declared? %v", len(names), slices.Sorted(maps.Keys(names)))
	}
	return slices.Sorted(maps.Keys(names))
}

func addFindingNames(names map[string]bool, pkg string, spec *ast.ValueSpec) {
	for i, ident := range spec.Names {
		declares := strings.HasPrefix(ident.Name, "Finding") || pkg == "preflight" && ident.IsExported() && spec.Type == nil
		if !declares || i >= len(spec.Values) {
			continue
		}
		literal, ok := spec.Values[i].(*ast.BasicLit)
		if !ok || literal.Kind != token.STRING {
			continue
		}
		if name, err := strconv.Unquote(literal.Value); err == nil && findingName.MatchString(name) {
			names[name] = true
		}
	}
}

var (
	findingSection = regexp.MustCompile("(?m)^### `([a-z-]+)`$")
	findingRow     = regexp.MustCompile("(?m)^\\| `([a-z-]+)` \\|(.*)$")
)

func TestEveryFindingHasItsPlaceInLimits(t *testing.T) {
	names := findingNames(t)
	text := read(t, "limits.md")
	described := make(map[string]string) // by its row of the table and its section
	for _, m := range findingSection.FindAllStringSubmatchIndex(text, -1) {
		section, _, _ := strings.Cut(text[m[1]:], "\n##")
		described[text[m[2]:m[3]]] += section
	}
	for _, m := range findingRow.FindAllStringSubmatch(text, -1) {
		described[m[1]] += m[2]
	}
	for _, name := range names {
		if _, there := described[name]; !there {
			t.Errorf("docs/limits.md has neither a section nor a row for the finding %s", name)
		}
	}
	for name, section := range described {
		if !slices.Contains(names, name) {
			t.Errorf("docs/limits.md describes %s, which is no finding", name)
		}
		forceable := slices.Contains(preflight.Forceable(), name)
		if says := regexp.MustCompile(`\*Can\s+be\s+forced`).MatchString(section); says != forceable {
			t.Errorf("docs/limits.md says that %s can be forced: %v; it can: %v", name, says, forceable)
		}
	}
}

func TestEverySettingIsInConfiguration(t *testing.T) {
	var example yaml.Node
	if err := yaml.Unmarshal([]byte(read(t, "../configs/config.yaml")), &example); err != nil {
		t.Fatal(err)
	}
	fields := fieldsOf("", example.Content[0])
	text := read(t, "configuration.md")
	rows := tableEntries(text, "`")
	for _, field := range fields {
		if !slices.Contains(rows, field) {
			t.Errorf("docs/configuration.md has no row for %s", field)
		}
	}
	for _, row := range rows {
		if !slices.Contains(fields, row) && !strings.HasSuffix(row, ".conf") && !strings.HasSuffix(row, ".service") {
			t.Errorf("docs/configuration.md has a row for %s, which configs/config.yaml has not", row)
		}
	}
	for _, variable := range []string{config.EnvConfig, config.EnvLibrary, config.EnvDriverRoot, config.EnvRunDir, config.EnvLog} {
		if !strings.Contains(text, "| `"+variable+"` |") {
			t.Errorf("docs/configuration.md has no row for %s", variable)
		}
	}
}

// fieldsOf lists the fields below a node, such as lock.timeout.
func fieldsOf(path string, n *yaml.Node) []string {
	var fields []string
	for i := 0; i+1 < len(n.Content); i += 2 {
		field := strings.TrimPrefix(path+"."+n.Content[i].Value, ".")
		if below := n.Content[i+1]; below.Kind == yaml.MappingNode {
			fields = append(fields, fieldsOf(field, below)...)
		} else {
			fields = append(fields, field)
		}
	}
	return fields
}
