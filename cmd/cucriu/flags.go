package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"cucriu/cudackpt"
	"cucriu/hooks"
	"cucriu/hooks/config"
	"cucriu/hooks/preflight"
	"cucriu/internal/kit/inventory"
	"cucriu/internal/kit/proc"
	"cucriu/internal/kit/quote"
	"cucriu/internal/kit/units"
	"cucriu/internal/migrate"
)

// value is an option whose text must have a certain form. A wrong one is found before a command
// begins.
type value struct {
	kind, text string
	set        func(text string) error
}

// Set implements [pflag.Value], as do the methods below.
func (v *value) Set(text string) error {
	if err := v.set(text); err != nil {
		return err
	}
	v.text = text
	return nil
}

func (v *value) String() string { return v.text }
func (v *value) Type() string   { return v.kind }

// parsePID reads the pid of one process. criu and the kernel count pids in 32 bits.
func parsePID(text string) (int, error) {
	pid, err := strconv.ParseInt(text, 10, 32)
	switch {
	case errors.Is(err, strconv.ErrRange) && pid > 0:
		return 0, errors.New("no process has so large a pid")
	case err != nil || pid <= 0:
		return 0, errors.New("a pid is a positive number")
	}
	return int(pid), nil
}

// pidFlag adds an option that names one process; 0 if it was not given.
func pidFlag(cmd *cobra.Command, to *int, name, short, usage string) {
	cmd.Flags().VarP(&value{kind: "pid", set: func(text string) error {
		pid, err := parsePID(text)
		if err == nil && *to != 0 {
			err = fmt.Errorf("already given as %d: only one process can be specified", *to)
		}
		if err == nil {
			*to = pid
		}
		return err
	}}, name, short, usage)
	completePID(cmd, name)
}

// mapFlag adds an option for pairs of GPUs. [useMap] puts them in place of those of the configuration.
func mapFlag(cmd *cobra.Command, to *[]config.Rule) {
	cmd.Flags().Var(&value{kind: "FROM=TO", set: func(text string) error {
		rule, err := parseRule(text)
		*to = append(*to, rule)
		if err != nil { // the flag says already that its argument is invalid
			err = errors.New(strings.Replace(err.Error(), cudackpt.ErrInvalidArgument.Error()+": ", "", 1))
		}
		return err
	}}, "map", "a GPU of the image and the one here that replaces it, each by index, UUID or PCI address; may be repeated; replaces gpus.map of the configuration")
}

// parseRule reads a pair as FROM=TO, or as in the configuration.
func parseRule(text string) (config.Rule, error) {
	if !strings.HasPrefix(text, "{") {
		return config.ParseRule(text)
	}
	cfg, err := config.Parse("", []byte("version: 1\ngpus:\n  map: ["+text+"]\n"))
	if wrong := new(config.Error); errors.As(err, &wrong) {
		err = errors.New(wrong.Cause)
	}
	if err != nil || len(cfg.GPUs.Map) != 1 {
		return config.Rule{}, cmp.Or(err, errors.New("expected one pair"))
	}
	rule := cfg.GPUs.Map[0]
	rule.Line, rule.Required = 0, true
	return rule, nil
}

func useMap(hook *hooks.Hook, pairs []config.Rule) {
	if len(pairs) > 0 {
		hook.Config.GPUs.Map = pairs
	}
}

// pidsFlag adds the option of the commands that work on processes.
func pidsFlag(cmd *cobra.Command, to *[]int) {
	cmd.Flags().VarP(&value{kind: "pids", set: func(text string) error {
		for part := range strings.SplitSeq(text, ",") {
			pid, err := parsePID(strings.TrimSpace(part))
			if err != nil {
				return err
			}
			*to = append(*to, pid)
		}
		return nil
	}}, "pid", "p", "a process; several: -p 4711 -p 4712, or -p 4711,4712")
	_ = cmd.MarkFlagRequired("pid")
	completePID(cmd, "pid")
}

// completePID completes the value of an option with the processes that have a libcuda mapped.
func completePID(cmd *cobra.Command, name string) {
	// It fails only for an option that does not exist.
	_ = cmd.RegisterFlagCompletionFunc(name, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return cudaProcesses(time.Second), cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveKeepOrder
	})
}

// cudaProcesses returns the processes that have a libcuda mapped, with their command lines, as far as
// they are found in that time. Only /proc is read, which may still have to wait for a process that
// changes its memory.
func cudaProcesses(patience time.Duration) (all []string) {
	const longest = 60
	found := make(chan string)
	go func() {
		defer close(found)
		pids, _ := proc.All()
		slices.Sort(pids)
		for _, pid := range pids {
			if maps, err := inventory.MapsLibcuda(pid); err != nil || !maps {
				continue
			}
			status, err := proc.ReadStatus(pid)
			if err != nil || strings.HasPrefix(status.Name, "cucriu") {
				continue // one of ours asks the driver
			}
			name := status.Name
			if line, err := proc.ReadText(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && len(line) > 0 {
				program, args, _ := strings.Cut(string(line), "\x00")
				name = proc.Printable(strings.TrimSpace(filepath.Base(program) + " " + strings.ReplaceAll(args, "\x00", " ")))
			}
			if letters := []rune(name); len(letters) > longest {
				name = string(letters[:longest-1]) + "…"
			}
			found <- cobra.CompletionWithDesc(strconv.Itoa(pid), name)
		}
	}()
	for late := time.After(patience); ; {
		select {
		case name, more := <-found:
			if !more {
				return all
			}
			all = append(all, name)
		case <-late:
			return all
		}
	}
}

// timeoutFlag adds an option that limits how long something may take.
func timeoutFlag(cmd *cobra.Command, to *time.Duration, name, usage string) {
	cmd.Flags().Var(&value{kind: "duration", set: func(text string) (err error) {
		if *to, err = time.ParseDuration(text); err == nil && *to < time.Millisecond {
			return errors.New("must be at least 1ms") // the driver counts in milliseconds, and takes 0 to mean no limit
		}
		return err
	}}, name, usage)
}

func folderFlag(cmd *cobra.Command, to *string, name, short, usage string) {
	cmd.Flags().VarP(&value{kind: "folder", set: func(text string) error {
		switch {
		case text == "":
			return errors.New("the directory name is empty")
		case text[0] == '-': // what comes next, after a variable that is not set
			return errors.New("the directory name is missing, or begins with a dash: write it as ./" + text)
		}
		if *to != "" {
			return fmt.Errorf("already given as %s: only one directory can be specified", *to)
		}
		if path, err := filepath.Abs(text); err == nil && !utf8.ValidString(path) { // neither criu's requests nor JSON can hold it
			return errors.New("the path is not valid UTF-8: name another directory")
		}
		*to = text
		return nil
	}}, name, short, usage)
	_ = cmd.MarkFlagDirname(name)
}

// programFlag adds an option that is a program with its arguments; none if it is empty.
func programFlag(cmd *cobra.Command, to *[]string, name, usage string) {
	cmd.Flags().Var(&value{kind: "program", set: func(text string) error {
		*to = strings.Fields(text)
		if len(*to) > 0 && strings.Contains((*to)[0], "/") && !filepath.IsAbs((*to)[0]) {
			return errors.New("must begin with an absolute path, or with the name of a program in PATH")
		}
		return nil
	}}, name, usage)
}

// sizeFlag adds an option that is a number of bytes, such as 500G; 0 if it was not given.
func sizeFlag(cmd *cobra.Command, to *int64, name, usage string) {
	cmd.Flags().Var(&value{kind: "size", set: func(text string) (err error) {
		*to, err = units.ParseSize(text)
		return err
	}}, name, usage)
}

// portsFlag adds the option for the ports of a migration's data.
func portsFlag(cmd *cobra.Command, to *string, usage string) {
	cmd.Flags().Var(&value{kind: "string", set: func(text string) error {
		*to = text
		return migrate.CheckPorts(text)
	}}, "ports", usage)
}

// word stands for a value of an option.
type word[T any] struct {
	text  string
	value T
}

// choose adds an option that is one of several words. The first one counts if it is not given.
func choose[T any](cmd *cobra.Command, to *T, name, usage string, words ...word[T]) {
	var texts []string
	for _, w := range words {
		texts = append(texts, w.text)
	}
	*to = words[0].value
	cmd.Flags().Var(&value{kind: "word", text: texts[0], set: func(text string) error {
		at := slices.Index(texts, text)
		if at < 0 {
			return fmt.Errorf("want one of %s", strings.Join(texts, ", "))
		}
		*to = words[at].value
		return nil
	}}, name, usage)
	// It fails only for an option that does not exist.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(texts, cobra.ShellCompDirectiveNoFileComp))
}

// criuFlag adds the option that names the criu to run.
func criuFlag(cmd *cobra.Command, to *string, what string) {
	cmd.Flags().StringVar(to, "criu", os.Getenv("CUCRIU_CRIU"), what+" (default: $CUCRIU_CRIU, else the system's)")
}

// forceFlag adds the option that overrides findings.
func forceFlag(cmd *cobra.Command, to *[]string) {
	cmd.Flags().Var(&value{kind: "stringArray", set: func(text string) error {
		if text == "nccl-ipc" { // an earlier version's name for it where NCCL is used
			text = preflight.FindingSharing
		}
		*to = append(*to, text)
		return preflight.CheckForce(*to)
	}}, "force", "override a finding that would refuse the operation, by its name (see cucriu check); may be repeated")
}

// isSet says whether an option that not every command has is given.
func isSet(cmd *cobra.Command, option string) bool {
	given, err := cmd.Flags().GetBool(option)
	return err == nil && given
}

// jsonFlag adds the option that [show] looks at.
func jsonFlag(cmd *cobra.Command) {
	cmd.Flags().Bool("json", false, "print JSON")
}

func asJSON(cmd *cobra.Command) bool { return isSet(cmd, "json") }

// show prints a value: with --json for machines, else as write does for people.
func show(cmd *cobra.Command, value any, write func(out io.Writer)) error {
	var out strings.Builder
	if asJSON(cmd) {
		encoder := json.NewEncoder(&out)
		encoder.SetIndent("", "\t")
		if err := encoder.Encode(value); err != nil {
			return err
		}
	} else if !isSet(cmd, "quiet") {
		var text strings.Builder
		write(&text)
		out.WriteString(quote.Lines(text.String()))
	}
	if out.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(cmd.OutOrStdout(), out.String())
	return err
}

// warned turns the error of [show] into a warning where a command has changed something: that stands.
func warned(err error) error {
	if err != nil {
		say(fmt.Sprintf("warning: the result could not be printed: %v", err))
	}
	return nil
}

// pidFileFlag adds an option for [writePID], which comes too late to find that a directory is missing.
func pidFileFlag(cmd *cobra.Command, to *string, usage string) {
	cmd.Flags().Var(&value{kind: "string", set: func(text string) error {
		if *to = text; text != "" && existing(filepath.Dir(text)+"/.") == "" {
			return fmt.Errorf("there is no directory %s", filepath.Dir(text))
		}
		return requireFile(text)
	}}, "pidfile", usage)
}

// requireFile refuses a path at which there is something that a file must not take the place of.
func requireFile(path string) error {
	if stat, err := os.Lstat(path); err == nil && !stat.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file, which would be replaced: name a file", path)
	}
	return nil
}

// uuidFlag adds the flag that shows UUIDs beside the indexes.
func uuidFlag(cmd *cobra.Command, to *bool) {
	cmd.Flags().BoolVar(to, "uuid", false, "show the UUIDs of the GPUs as well")
}
