// Package docs has the tests of this repository's documentation.
package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

const readme = "../README.md"

// read is the text of a file.
func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// documents are the files whose links are checked.
func documents(t *testing.T) []string {
	t.Helper()
	all := []string{readme}
	for _, pattern := range []string{"*.md", "*/*.md", "../configs/*.md", "../test/*/*.md"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

func TestReadmeHas400To700Words(t *testing.T) {
	if words := len(strings.Fields(read(t, readme))); words < 400 || words > 700 {
		t.Errorf("README.md has %d words (wc -w): what is beyond an overview belongs into docs", words)
	}
}

func TestPagesHaveAtMost18000Words(t *testing.T) {
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	words := 0
	for _, page := range pages {
		if page == "fault-matrix.md" { // generated, as is the table of findings
			continue
		}
		before, rest, _ := strings.Cut(read(t, page), beginFindings)
		_, after, _ := strings.Cut(rest, endFindings)
		words += len(strings.Fields(before)) + len(strings.Fields(after))
	}
	t.Logf("%d words", words)
	if words > 18000 {
		t.Errorf("the pages have %d words: say each thing once", words)
	}
}

func TestReadmeLeadsToEveryPage(t *testing.T) {
	text := read(t, readme)
	pages, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if !strings.Contains(text, "](docs/"+page) {
			t.Errorf("README.md has no link to docs/%s", page)
		}
	}
}

// commandLine is a line of the list that cucriu --help prints.
var commandLine = regexp.MustCompile(`(?m)^  ([a-z]+) +[A-Z]`)

func TestEveryCommandIsInTheTables(t *testing.T) {
	help, err := exec.Command(testenv.Artefact(t, "make build", "bin", "cucriu"), "--help").Output()
	if err != nil {
		t.Fatalf("cucriu --help: %v", err)
	}
	_, list, _ := strings.Cut(string(help), "Available Commands:\n")
	list, _, _ = strings.Cut(list, "\n\n")
	var commands []string
	for _, match := range commandLine.FindAllStringSubmatch(list, -1) {
		if match[1] != "help" {
			commands = append(commands, match[1])
		}
	}
	for _, known := range []string{"dump", "restore", "unlock"} {
		if !slices.Contains(commands, known) {
			t.Fatalf("the help was read wrongly: it lists %v", commands)
		}
	}
	inTable := tableEntries(read(t, readme), "`cucriu ")
	for _, command := range commands {
		if !slices.Contains(inTable, command) {
			t.Errorf("README.md's table has no row for cucriu %s", command)
		}
		if !strings.Contains(read(t, "commands.md"), "`cucriu "+command) {
			t.Errorf("docs/commands.md does not mention cucriu %s", command)
		}
	}
	for _, command := range inTable {
		if !slices.Contains(commands, command) {
			t.Errorf("README.md's table has a row for cucriu %s, which is no command", command)
		}
	}
}

// tableEntries are the first words behind a prefix in the first cells of all tables.
func tableEntries(text, prefix string) []string {
	var entries []string
	for _, match := range regexp.MustCompile("(?m)^\\| "+prefix+"([a-z._/-]+)").FindAllStringSubmatch(text, -1) {
		entries = append(entries, match[1])
	}
	return entries
}

// goExample is a program in a page.
var goExample = regexp.MustCompile("(?s)```go\n(package .*?)```")

func TestExamplesCompile(t *testing.T) {
	for _, path := range documents(t) {
		for i, match := range goExample.FindAllStringSubmatch(read(t, path), -1) {
			program := filepath.Join(t.TempDir(), "main.go")
			if err := os.WriteFile(program, []byte(match[1]), 0o600); err != nil {
				t.Fatal(err)
			}
			if out, err := exec.Command("go", "vet", program).CombinedOutput(); err != nil {
				t.Errorf("example %d of %s: %v\n%s", i+1, path, err, out)
			}
			if out, err := exec.Command("gofmt", "-l", program).CombinedOutput(); err != nil || len(out) > 0 {
				t.Errorf("example %d of %s is not formatted: gofmt -l: %v %s", i+1, path, err, out)
			}
		}
	}
}

// TestProgramsHasExamples: else the test above would prove nothing.
func TestProgramsHasExamples(t *testing.T) {
	if n := len(goExample.FindAllString(read(t, "programs.md"), -1)); n < 2 {
		t.Errorf("docs/programs.md has %d complete programs", n)
	}
}
