package config

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// folder makes a directory that only its owner can write, whatever the umask.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{dir, filepath.Dir(dir)} {
		chmod(t, d, 0o755)
	}
	return dir
}

func chmod(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func write(t *testing.T, path, data string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o644); err != nil {
		t.Fatal(err)
	}
	chmod(t, path, 0o644)
	return path
}

func env(pairs ...string) func(string) string {
	return func(name string) string {
		for i := 0; i < len(pairs); i += 2 {
			if pairs[i] == name {
				return pairs[i+1]
			}
		}
		return ""
	}
}

func TestLoadTakesTheNamedFileThenTheDefaultOneThenTheDefaults(t *testing.T) {
	dir := folder(t)
	named := write(t, filepath.Join(dir, "named.yaml"), "version: 1\ncheckpoint: {timeout: 1m}\n")
	usual := write(t, filepath.Join(dir, "config.yaml"), "version: 1\ncheckpoint: {timeout: 2m}\n")
	absent := filepath.Join(dir, "absent.yaml")
	for _, tt := range []struct {
		name, env, usual string
		timeout          time.Duration
		file             string
	}{
		{"named", named, usual, time.Minute, named},
		{"usual", "", usual, 2 * time.Minute, usual},
		{"none", "", absent, Default().Checkpoint.Timeout, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := loadFrom(env(EnvConfig, tt.env), tt.usual)
			if err != nil {
				t.Fatal(err)
			}
			want := Default()
			want.File, want.Checkpoint.Timeout = tt.file, tt.timeout
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestEnvironmentOverridesTheFile(t *testing.T) {
	file := write(t, filepath.Join(folder(t), "config.yaml"),
		"version: 1\ndriver: {library: /file/libcuda.so.1, root: /file}\nlog: {level: warn, format: json}\n")
	for _, tt := range []struct {
		name   string
		env    []string
		change func(*Config)
	}{
		{"nothing", nil, func(*Config) {}},
		{"empty is absent", []string{EnvLibrary, "", EnvLog, ""}, func(*Config) {}},
		{"library", []string{EnvLibrary, "/env/libcuda.so.1"}, func(c *Config) { c.Driver.Library = "/env/libcuda.so.1" }},
		{"root", []string{EnvDriverRoot, "/env"}, func(c *Config) { c.Driver.Root = "/env" }},
		{"run directory", []string{EnvRunDir, "/env/run"}, func(c *Config) { c.RunDir = "/env/run" }},
		{"level keeps the format", []string{EnvLog, "debug"}, func(c *Config) { c.Log.Level = slog.LevelDebug }},
		{"level and format", []string{EnvLog, "error,text"}, func(c *Config) { c.Log = Log{Level: slog.LevelError, Format: Text} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := loadFrom(env(append(tt.env, EnvConfig, file)...), "/nonexistent")
			if err != nil {
				t.Fatal(err)
			}
			want := Default()
			want.File = file
			want.Driver = Driver{Library: "/file/libcuda.so.1", Root: "/file"}
			want.Log = Log{Level: slog.LevelWarn, Format: JSON}
			tt.change(&want)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The error names the variable, not the file that it overrides.
func TestBadEnvironmentIsRefusedByName(t *testing.T) {
	file := write(t, filepath.Join(folder(t), "config.yaml"), "version: 1\ndriver: {root: /file}\nlog: {format: text}\n")
	for name, value := range map[string]string{
		EnvLibrary:    "build/libcuda.so.1",
		EnvDriverRoot: "host",
		EnvRunDir:     "run\x00",
		EnvLog:        "loud",
		EnvConfig:     "config.yaml",
	} {
		_, err := loadFrom(env(name, value, EnvConfig, file), "/nonexistent")
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Source != name || wrong.Remedy == "" {
			t.Errorf("%s=%q gives %v", name, value, err)
		}
	}
	for _, value := range []string{"debug,xml", "debug,", ",json", "debug,json,x", "DEBUG"} {
		_, err := loadFrom(env(EnvLog, value, EnvConfig, file), "/nonexistent")
		var wrong *Error
		if !errors.As(err, &wrong) || wrong.Source != EnvLog || wrong.Remedy == "" {
			t.Errorf("%s=%q gives %v", EnvLog, value, err)
		}
	}
}

func TestLoadFollowsLinksAsKubernetesMountsThem(t *testing.T) {
	dir := folder(t)
	generation := filepath.Join(dir, "..2026_11_03")
	if err := os.Mkdir(generation, 0o755); err != nil {
		t.Fatal(err)
	}
	chmod(t, generation, 0o755)
	write(t, filepath.Join(generation, "config.yaml"), "version: 1\n")
	link(t, "..2026_11_03", filepath.Join(dir, "..data"))
	path := filepath.Join(dir, "config.yaml")
	link(t, "..data/config.yaml", path)
	if _, err := loadFrom(env(EnvConfig, path), "/nonexistent"); err != nil {
		t.Error(err)
	}

	// What counts is the directory to which the links lead.
	chmod(t, generation, 0o775)
	_, err := loadFrom(env(EnvConfig, path), "/nonexistent")
	if err == nil || !strings.Contains(err.Error(), generation+" can be written") {
		t.Errorf("a directory that others can write, behind a link: %v", err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

func TestLoadRefusesFilesThatItCannotTrust(t *testing.T) {
	const good = "version: 1\n"
	for _, tt := range []struct {
		name  string
		make  func(t *testing.T, dir, path string)
		words []string
	}{
		{"absent", func(*testing.T, string, string) {}, []string{"no such file", EnvConfig}},
		{"link to nothing", func(t *testing.T, _, path string) { link(t, "absent", path) }, []string{"dangling symbolic link"}},
		{"link in a circle", func(t *testing.T, _, path string) { link(t, filepath.Base(path), path) }, []string{"cannot be opened"}},
		{"directory", func(t *testing.T, _, path string) {
			if err := os.Mkdir(path, 0o755); err != nil {
				t.Fatal(err)
			}
		}, []string{"not a regular file"}},
		{"FIFO without a writer", func(t *testing.T, _, path string) {
			if err := unix.Mkfifo(path, 0o600); err != nil {
				t.Fatal(err)
			}
		}, []string{"not a regular file"}},
		{"device", func(t *testing.T, _, path string) { link(t, "/dev/null", path) }, []string{"not a regular file"}},
		{"too large", func(t *testing.T, _, path string) { write(t, path, good+strings.Repeat("#", maxSize)) }, []string{"larger than 1048576"}},
		{"written by the group", func(t *testing.T, _, path string) { write(t, path, good); chmod(t, path, 0o664) }, []string{"the file can be written", "0664", "chmod go-w"}},
		{"written by others", func(t *testing.T, _, path string) { write(t, path, good); chmod(t, path, 0o602) }, []string{"the file can be written", "0602"}},
		{"directory written by the group", func(t *testing.T, dir, path string) { write(t, path, good); chmod(t, dir, 0o775) }, []string{"the directory", "can be written", "chmod go-w"}},
		{"upper directory written by others", func(t *testing.T, dir, path string) { write(t, path, good); chmod(t, filepath.Dir(dir), 0o757) }, []string{"the directory", "can be written"}},
		{"foreign file", func(t *testing.T, _, path string) { write(t, path, good); giveAway(t, path) }, []string{"the file belongs to user 12345", "chown root"}},
		{"foreign directory", func(t *testing.T, dir, path string) { write(t, path, good); giveAway(t, dir) }, []string{"the directory", "belongs to user 12345", "chown root"}},
		{"not a configuration", func(t *testing.T, _, path string) { write(t, path, "version: 1\nlog: 1\n") }, []string{"config.yaml:2", "log"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := folder(t)
			path := filepath.Join(dir, "config.yaml")
			tt.make(t, dir, path)
			got, err := loadFrom(env(EnvConfig, path), "/nonexistent")
			var wrong *Error
			if !errors.As(err, &wrong) || wrong.Source != path || wrong.Remedy == "" {
				t.Fatalf("got %v, %v; want an error about %s with a remedy", got, err, path)
			}
			for _, word := range tt.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not mention %q", err, word)
				}
			}
		})
	}
}

// The default file need not exist, but if it does it must be right: ignoring a bad one would
// silently drop the user's GPU map.
func TestLoadDoesNotPassOverABadDefaultFile(t *testing.T) {
	path := filepath.Join(folder(t), "config.yaml")
	link(t, "absent", path)
	if _, err := loadFrom(env(), path); err == nil {
		t.Error("a default file that links to nothing was passed over")
	}
}

func TestStickyDirectoryIsTrustedWithWhatOthersCannotReplace(t *testing.T) {
	dir := folder(t)
	path := write(t, filepath.Join(dir, "config.yaml"), "version: 1\n")
	chmod(t, dir, 0o777|os.ModeSticky)
	if _, err := loadFrom(env(EnvConfig, path), "/nonexistent"); err != nil {
		t.Error(err)
	}
}

func giveAway(t *testing.T, path string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can give a file away")
	}
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Fatal(err)
	}
}

func TestDistrust(t *testing.T) {
	const file, dir = unix.S_IFREG, unix.S_IFDIR
	for _, tt := range []struct {
		name    string
		mode    uint32
		uid     uint32
		euid    int
		trusted bool
	}{
		{"root's file, for root", file | 0o644, 0, 0, true},
		{"root's file, for a user", file | 0o644, 0, 1000, true},
		{"a user's own file", file | 0o600, 1000, 1000, true},
		{"a user's file, for root", file | 0o600, 1000, 0, false},
		{"another user's file", file | 0o600, 1001, 1000, false},
		{"written by the group", file | 0o660, 0, 0, false},
		{"written by others", file | 0o606, 0, 0, false},
		{"a sticky file is no sticky directory", file | unix.S_ISVTX | 0o666, 0, 0, false},
		{"a sticky directory", dir | unix.S_ISVTX | 0o777, 0, 0, true},
		{"another user's sticky directory", dir | unix.S_ISVTX | 0o777, 1001, 0, false},
		{"a directory written by the group", dir | 0o775, 0, 0, false},
	} {
		cause, remedy := distrust(unix.Stat_t{Mode: tt.mode, Uid: tt.uid}, tt.euid)
		if trusted := cause == ""; trusted != tt.trusted || trusted != (remedy == "") {
			t.Errorf("%s: trusted %v, want %v (%s; %s)", tt.name, trusted, tt.trusted, cause, remedy)
		}
	}
}
