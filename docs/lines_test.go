package docs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// A line is a command line that a page shows: a line of an sh block, one after "$ " in another block, or
// what stands in the cell of a table that begins with a command.
type line struct {
	page, section, text string
}

// pages are the documents whose command lines are checked.
func pages(t *testing.T) []string {
	return slices.DeleteFunc(documents(t), func(path string) bool {
		return strings.HasPrefix(path, "measurements/") // reports of what was done once
	})
}

var (
	fenceOrHeading = regexp.MustCompile("(?ms)^ *```([a-z]*)\n(.*?)^ *```|^#+ +([^\n]+)$|^\\|([^\n]+)\\|$")
	cellSeparator  = regexp.MustCompile(` \| `)
	commandCell    = regexp.MustCompile("^`(?:cucriu|criu|make|runc) [^`]+`(?:(?:, then |, )`[^`]+`)*")
	comment        = regexp.MustCompile(`(^|\s+)#.*$`)
	goesOn         = regexp.MustCompile(`(\||&&|\\)$`)
	blanks         = regexp.MustCompile(`\s+`)
)

// linesOf reads the command lines of a page, each in one line without its comment.
func linesOf(t *testing.T, page string) []line {
	t.Helper()
	var all []line
	section := ""
	add := func(text string) {
		if text = strings.TrimSpace(blanks.ReplaceAllString(text, " ")); text != "" {
			all = append(all, line{page, section, text})
		}
	}
	for _, found := range fenceOrHeading.FindAllStringSubmatch(read(t, page), -1) {
		language, block, title, row := found[1], found[2], found[3], found[4]
		switch {
		case title != "":
			section = title
		case row != "":
			for _, cell := range cellSeparator.Split(" "+row+" ", -1) {
				for _, span := range anySpan.FindAllStringSubmatch(commandCell.FindString(strings.TrimSpace(cell)), -1) {
					add(strings.ReplaceAll(span[1], `\|`, "|"))
				}
			}
		case language == "sh":
			whole := ""
			for part := range strings.Lines(block) {
				whole += " " + strings.TrimSpace(comment.ReplaceAllString(strings.TrimRight(part, "\n"), ""))
				if !goesOn.MatchString(whole) {
					add(whole)
					whole = ""
				}
			}
		case language == "":
			for part := range strings.Lines(block) {
				if command, isCommand := strings.CutPrefix(part, "$ "); isCommand {
					add(command)
				}
			}
		}
	}
	return all
}

// TestEveryCommandLineIsRunOrSaysWhyNot holds the table in walks_test.go to the pages.
func TestEveryCommandLineIsRunOrSaysWhyNot(t *testing.T) {
	total := 0
	for _, page := range pages(t) {
		steps := slices.Clone(walks[strings.TrimPrefix(page, "../")])
		var shown, walked []string
		for _, s := range steps {
			if s.section == "" {
				walked = append(walked, s.line)
			}
		}
		for _, l := range linesOf(t, page) {
			total++
			at := slices.IndexFunc(steps, func(s step) bool { return s.line == l.text || s.section != "" && s.section == l.section })
			if at < 0 {
				t.Errorf("%s, %s: nothing runs this line: give it a step in walks_test.go, in its place\n\t%s", page, l.section, l.text)
			} else if steps[at].section == "" {
				shown = append(shown, l.text)
				steps = slices.Delete(steps, at, at+1) // a line that stands there twice needs two steps
			}
		}
		if len(shown) == len(walked) && !slices.Equal(shown, walked) {
			t.Errorf("walks_test.go does not have the lines of %s in their order: %q", page, shown)
		}
		for _, left := range steps {
			if left.line != "" {
				t.Errorf("%s no longer has this line: remove its step from walks_test.go\n\t%s", page, left.line)
			}
		}
	}
	if total < 80 {
		t.Errorf("only %d command lines were found: are they read as they are written?", total)
	}
	sources := testSources(t)
	for page, steps := range walks {
		for _, s := range steps {
			for by := range strings.SplitSeq(s.by, ", ") {
				if by != "" && !strings.Contains(sources, "\nfunc "+by+"(") && !testenv.Exists(filepath.Join("..", by)) {
					t.Errorf("%s: neither a test nor a script is called %s, which is to run\n\t%s", page, by, s.line)
				}
			}
		}
	}
}

// testSources is the text of all tests.
func testSources(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, pattern := range []string{"../test/*/*_test.go", "../scripts/*_test.go", "*_test.go"} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			t.Fatal(pattern, err)
		}
		for _, file := range files {
			all.WriteString(read(t, file))
		}
	}
	return all.String()
}

var (
	// cucriuIn finds the cucriu commands in a line of shell.
	cucriuIn     = regexp.MustCompile(`(?:^|[|&;("] *|\bssh \S+ |\bsudo |[A-Z]=\S* )(cucriu [^|&;<>]*)`)
	substitution = regexp.MustCompile(`"?\\?\$\(([^()]|\([^()]*\))*\)"?`)
	optional     = regexp.MustCompile(`\[([^\]]*)\] ?`)
	noConfig     = "/nonexistent/config.yaml"
	placeholders = strings.NewReplacer("PID", "4711", "HOST", "gpu-b", "SHELL", "bash", "…", "...", "$to", "gpu-b")
)

// TestCommandLinesAreAccepted gives every cucriu command on the pages to cucriu, with a configuration that
// does not exist: so it stops once its options and arguments are accepted.
func TestCommandLinesAreAccepted(t *testing.T) {
	cucriu := testenv.Artefact(t, "make build", "bin", "cucriu")
	accepted := 0
	for _, page := range pages(t) {
		for _, l := range linesOf(t, page) {
			plain := substitution.ReplaceAllString(l.text, "4711")
			for _, variant := range variants(plain) {
				for _, found := range cucriuIn.FindAllStringSubmatch(variant, -1) {
					command := placeholders.Replace(strings.TrimRight(found[1], `") `))
					if strings.Count(command, `"`)%2 == 1 {
						command += `"`
					}
					if err := accepts(t, cucriu, command); err != nil {
						t.Errorf("%s, %s:\n\t%s\n\t%v", page, l.section, command, err)
					}
					accepted++
				}
			}
		}
	}
	if accepted < 50 {
		t.Errorf("only %d commands were found", accepted)
	}
}

// variants are a line without and with its parts in brackets.
func variants(text string) []string {
	if !optional.MatchString(text) || strings.Contains(text, "$") {
		return []string{text}
	}
	return []string{strings.TrimSpace(optional.ReplaceAllString(text, "")), optional.ReplaceAllString(text, "$1 ")}
}

// accepts fails if a command is wrong usage.
func accepts(t *testing.T, cucriu, command string) error {
	t.Helper()
	cmd := exec.Command("bash", "-c", `cucriu() { "$CUCRIU" "$@"; }; `+command)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "CUCRIU="+cucriu, "CUCRIU_CONFIG="+noConfig)
	out, err := cmd.CombinedOutput()
	if status := testenv.ExitStatus(err); status == testenv.StatusUsage && !strings.Contains(string(out), noConfig) || status < 0 || status > testenv.StatusRefused {
		return fmt.Errorf("exit status %d: %s", status, out)
	}
	return nil
}

var (
	anySpan   = regexp.MustCompile("`([^`]+)`")
	anOption  = regexp.MustCompile(`^--?[a-z][a-z-]*`)
	aWord     = regexp.MustCompile(`^[a-z-]+$`)
	makeNames = regexp.MustCompile(`(?m)^([a-z-]+):|^([A-Z_]+) *\??=`)
)

// TestCommandsInTheTextExist checks what the sentences mention: cucriu's commands and options, targets and
// variables of make, and scripts.
func TestCommandsInTheTextExist(t *testing.T) {
	cucriu := testenv.Artefact(t, "make build", "bin", "cucriu")
	var known []string
	for _, name := range makeNames.FindAllStringSubmatch(read(t, "../Makefile"), -1) {
		known = append(known, name[1]+name[2])
	}
	helps := make(map[string]string)
	for _, page := range pages(t) {
		text := codeBlock.ReplaceAllString(read(t, page), "")
		for _, span := range anySpan.FindAllStringSubmatch(text, -1) {
			words := strings.Fields(span[1])
			var err error
			switch {
			case len(words) == 0:
			case words[0] == "cucriu" && len(words) > 1:
				err = mentions(cucriu, words, helps)
			case words[0] == "make" && len(words) > 1:
				for _, word := range words[1:] {
					if name, _, _ := strings.Cut(word, "="); (name != word || aWord.MatchString(name)) && !slices.Contains(known, name) {
						err = fmt.Errorf("the Makefile has no %s", name)
					}
				}
			case strings.HasPrefix(words[0], "scripts/"):
				_, err = os.Stat("../" + words[0])
			}
			if err != nil {
				t.Errorf("%s: `%s`: %v", page, span[1], err)
			}
		}
	}
	for _, page := range pages(t) {
		for _, l := range linesOf(t, page) {
			for _, command := range strings.Split(l.text, "&&") {
				words := strings.Fields(command)
				if len(words) > 1 && words[0] == "make" && !slices.Contains(known, words[1]) {
					t.Errorf("%s: the Makefile has no %s", page, words[1])
				}
			}
		}
	}
}

// mentions fails if a command, which may lack its arguments, or an option of it does not exist.
func mentions(cucriu string, words []string, helps map[string]string) error {
	var path []string
	for _, word := range words[1:] {
		if !aWord.MatchString(word) || len(path) == 2 || len(path) == 1 && !slices.Contains([]string{"jobs", "completion", "help"}, path[0]) {
			break
		}
		path = append(path, word)
	}
	name := strings.Join(path, " ")
	if _, asked := helps[name]; !asked {
		out, err := exec.Command(cucriu, append(slices.Clone(path), "--help")...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("there is no such command: %s", out)
		}
		helps[name] = string(out)
	}
	for _, word := range words[1+len(path):] {
		if word == "--" {
			break
		}
		option := anOption.FindString(strings.TrimLeft(word, "["))
		if option != "" && !regexp.MustCompile(`(?m)^ +(-.*, )?`+option+`\b`).MatchString(helps[name]) {
			return errors.New("there is no option " + option)
		}
	}
	return nil
}
