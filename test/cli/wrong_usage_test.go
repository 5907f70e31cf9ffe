package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"cucriu/internal/testenv"
)

// TestWrongUsage checks that wrong usage gives exit status 2 and one line that says what is
// wrong, and that nothing else happens: afterwards there is not even a run directory. The
// pids belong to no process, and the folders do not exist, so a program that looked at them
// would end with another status.
func TestWrongUsage(t *testing.T) {
	for _, test := range []struct {
		name, says string
		args       []string
	}{
		{"no command", "name a command", nil},
		{"unknown command", `unknown command "nonsense" for "cucriu" (see cucriu --help)`, []string{"nonsense"}},
		{"mistyped command", "did you mean state or status", []string{"statu"}},
		{"command of another program", "did you mean gpus or status", []string{"ps"}},
		{"jobs command of another program", "did you mean rm", []string{"jobs", "remove"}},
		{"pairs in one option", "one pair each: --map 0=1 --map 1=0", []string{"restore", "-D", dir, "--map", "0=1,1=0"}},
		{"command of a group", `unknown command "stop" for "cucriu": did you mean jobs (see cucriu --help)`, []string{"stop"}},
		{"unknown flag of no command", "unknown flag: --nonsense", []string{"--nonsense"}},
		{"argument beside the version", `"extra"`, []string{"--version", "extra"}},
		{"unknown help", `"nonsense"`, []string{"help", "nonsense"}},
		{"help with more than a command", `"dump extra"`, []string{"help", "dump", "extra"}},
		{"argument of a help topic", `"extra"`, []string{"exit-status", "extra"}},
		{"unknown shell", `unknown command "nonsense" for "cucriu completion"`, []string{"completion", "nonsense"}},
		{"no shell", "name a command", []string{"completion"}},
		{"argument of a completion", `"extra"`, []string{"completion", "bash", "extra"}},

		{"dump argument", `argument "extra"`, []string{"dump", "-t", pid, "-D", dir, "extra"}},
		{"dump unknown flag", "unknown flag: --nonsense (see cucriu dump --help)", []string{"dump", "-t", pid, "-D", dir, "--nonsense"}},
		{"dump mistyped flag", "did you mean --leave-running", []string{"dump", "-t", pid, "-D", dir, "--leave-runing"}},
		{"dump flag of criu's", "unknown flag: --track-mem", []string{"dump", "-t", pid, "-D", dir, "--track-mem"}},
		{"dump process of the wrong option", "unknown flag: --pid (see cucriu dump --help)", []string{"dump", "--pid", pid, "-D", dir}},
		{"dump two trees", "already given as " + pid, []string{"dump", "-t", pid, "-t", "4711", "-D", dir}},
		{"dump several pids as one", positive, []string{"dump", "-t", "4711,4712", "-D", dir}},
		{"dump two folders", "already given as " + dir, []string{"dump", "-t", pid, "-D", dir, "-D", dir}},
		{"dump pid without -t", `argument "4711": cucriu dump takes no arguments, only options (see`, []string{"dump", "4711", "-D", dir}},
		{"dump verbosity as letters, too many", "0 to 4", []string{"dump", "-t", pid, "-D", dir, "-vvvvv"}},
		{"dump without -t", "with -t", []string{"dump", "-D", dir}},
		{"dump without -D", "with -D", []string{"dump", "-t", pid}},
		{"dump pid 0", positive, []string{"dump", "-t", "0", "-D", dir}},
		{"dump negative pid", positive, []string{"dump", "-t", "-5", "-D", dir}},
		{"dump pid that is no number", positive, []string{"dump", "-t", "job", "-D", dir}},
		{"dump pid that is empty", positive, []string{"dump", "-t", "", "-D", dir}},
		{"dump pid beyond 32 bits", "no process has so large a pid", []string{"dump", "-t", "4294967297", "-D", dir}}, // cut off to 32 bits, it is 1
		{"dump flag without its value", "needs an argument", []string{"dump", "-D", dir, "-t"}},
		{"dump folder that is not UTF-8", "the path is not valid UTF-8", []string{"dump", "-t", pid, "-D", dir + "/\xff"}},
		{"run directory that is not UTF-8", "the path is not valid UTF-8", []string{"run", "--dir", dir + "/\xff", "true"}},
		{"dump no folder", "the directory name is empty", []string{"dump", "-t", pid, "-D", ""}},
		{"dump no work folder", "the directory name is empty", []string{"dump", "-t", pid, "-D", dir, "-W", ""}},
		{"dump unknown force", `"nonsense" cannot be forced`, []string{"dump", "-t", pid, "-D", dir, "--force", "nonsense"}},
		{"dump force of what cannot be", `"traced" cannot be forced`, []string{"dump", "-t", pid, "-D", dir, "--force", "traced"}},
		{"dump force of a warning", `"outside-pipe" is only a warning: leave out --force outside-pipe`, []string{"dump", "-t", pid, "-D", dir, "--force", "outside-pipe"}},
		{"dump value of an option that can do without", `argument "soft": cucriu dump takes no arguments`, []string{"dump", "-t", pid, "-D", dir, "--manage-cgroups", "soft"}},
		{"dump both -R and -s", "-R and -s cannot be combined", []string{"dump", "-t", pid, "-D", dir, "-R", "-s"}},
		{"dump log in a folder", "-o a/b", []string{"dump", "-t", pid, "-D", dir, "-o", "a/b"}},
		{"dump ghost limit", "not a size", []string{"dump", "-t", pid, "-D", dir, "--ghost-limit", "lots"}},
		{"dump ghost limit too large", "not a size", []string{"dump", "-t", pid, "-D", dir, "--ghost-limit", "5G"}},
		{"dump verbosity", "0 to 4", []string{"dump", "-t", pid, "-D", dir, "-v5"}},
		{"dump verbosity that stands alone, and no -D", "with -D", []string{"dump", "-t", pid, "-v"}},
		{"dump verbosity before another flag", "-R and -s cannot be combined", []string{"dump", "-t", pid, "-D", dir, "-v", "-R", "-s"}},
		{"dump verbosity no number", "0 to 4", []string{"dump", "-t", pid, "-D", dir, "-v", "much"}},
		{"dump control groups", `for "--manage-cgroups" flag: want one of none`, []string{"dump", "-t", pid, "-D", dir, "--manage-cgroups=nonsense"}},
		{"dump network lock", `for "--network-lock" flag: want one of iptables`, []string{"dump", "-t", pid, "-D", dir, "--network-lock", "nonsense"}},
		{"dump no truth value", `invalid argument "perhaps" for "-R, --leave-running" flag`, []string{"dump", "-t", pid, "-D", dir, "--leave-running=perhaps"}},

		{"run nothing", "name the command to run", []string{"run"}},
		{"run nothing, without checkpoints", "name the command to run", []string{"run", "--no-checkpoints"}},
		{"run with checkpoints and without", "--no-checkpoints and --dir cannot be combined", []string{"run", "--no-checkpoints", "--dir", dir, "true"}},
		{"run without checkpoints, but often", "--every, --keep has no effect with --no-checkpoints", []string{"run", "--no-checkpoints", "--every", "5m", "--keep", "2", "true"}},
		{"run pid file of a long job", "--pidfile can be used only with --no-checkpoints", []string{"run", "--dir", dir, "--pidfile", "/tmp/pid", "true"}},
		{"run option of the program", "unknown flag: --mib: options of the job's own program go after COMMAND", []string{"run", "--dir", dir, "--mib", "64", "true"}},
		{"run option after the command", "--dir stands after COMMAND, and so belongs to it", []string{"run", "true", "--dir", dir}},
		{"restore of a process", "unknown shorthand flag: 't' in -t (see cucriu restore --help)", []string{"restore", "-D", dir, "-t", "4711"}},
		{"run name with a slash", "--name a/b: a name has no slash", []string{"run", "--dir", dir, "--name", "a/b", "true"}},
		{"run pid file nowhere", "there is no directory /nonexistent", []string{"run", "--no-checkpoints", "--pidfile", "/nonexistent/pid", "true"}},
		{"run pid file that is a device", "/dev/null is no regular file, which would be replaced: name a file", []string{"run", "--no-checkpoints", "--pidfile", "/dev/null", "true"}},
		{"run as nobody named", "--user is empty: give it a value, or leave it out", []string{"run", "--dir", dir, "--user", "", "true"}},
		{"run setting without a name", "--setting is empty", []string{"run", "--dir", dir, "--setting", "", "true"}},
		{"run interval without a unit", `for "--every" flag: time: missing unit in duration "2" (see`, []string{"run", "--dir", dir, "--every", "2", "true"}},
		{"run grace without a unit", `for "--grace" flag: time: missing unit in duration`, []string{"run", "--dir", dir, "--grace", "10", "true"}},
		{"restore pid file that is a directory", "/tmp is no regular file", []string{"restore", "-D", dir, "--pidfile", "/tmp"}},
		{"restore pid file that is a link", "/dev/stdout is no regular file", []string{"restore", "-D", dir, "--pidfile", "/dev/stdout"}},
		{"restore pid file without a name", "--pidfile is empty", []string{"restore", "-D", dir, "--pidfile", ""}},
		{"recover without an id", "--take is empty", []string{"recover", "--take", ""}},
		{"restore pid file nowhere", "there is no directory /nonexistent", []string{"restore", "-D", dir, "--pidfile", "/nonexistent/pid"}},
		{"run as a user that is not there", "--user nosuch: there is no such user", []string{"run", "--dir", dir, "--user", "nosuch", "true"}},
		{"run unknown setting", `unknown setting "nonsense"`, []string{"run", "--dir", dir, "--setting", "nonsense", "true"}},
		{"run stage nowhere", "--stage /nonexistent: no such file", []string{"run", "--dir", dir, "--stage", "/nonexistent", "true"}},
		{"run stage that is a file", "--stage /proc/version: not a directory", []string{"run", "--dir", dir, "--stage", "/proc/version", "true"}},
		{"migrate ports that are none", `"99999" is not a port`, []string{"migrate", "-t", pid, "--to", "b", "--ports", "99999"}},
		{"run a new job without its command", dir + " contains no job yet: specify the command to run", []string{"run", "--dir", dir}},
		{"restore argument", `argument "extra"`, []string{"restore", "-D", dir, "extra"}},
		{"restore without -D", "with -D", []string{"restore"}},
		{"restore no folder", "the directory name is empty", []string{"restore", "-D", ""}},
		{"restore both --foreground and -d", "--foreground and -d cannot be combined", []string{"restore", "-D", dir, "--foreground", "-d"}},
		{"restore neither", "--foreground", []string{"restore", "-D", dir, "-d=false"}},
		{"restore dump's flag", "unknown flag: --ghost-limit", []string{"restore", "-D", dir, "--ghost-limit", "1M"}},

		{"check argument", `argument "extra"`, []string{"check", "extra"}},
		{"check pid 0", positive, []string{"check", "-t", "0"}},
		{"check no folder", "the directory name is empty", []string{"check", "-D", ""}},
		{"check unknown force", `"nonsense" cannot be forced`, []string{"check", "--force", "nonsense"}},

		{"run metrics without a value", "needs an argument", []string{"run", "--metrics"}},
		{"jobs nothing", "name a command", []string{"jobs"}},
		{"jobs mistyped command", `unknown command "lst" for "cucriu jobs": did you mean list (see`, []string{"jobs", "lst"}},
		{"jobs unknown command", `unknown command "nonsense" for "cucriu jobs" (see`, []string{"jobs", "nonsense"}},
		{"mistyped shell", `unknown command "bsh" for "cucriu completion": did you mean bash`, []string{"completion", "bsh"}},
		{"mistyped help", `unknown help topic "jobs lst": did you mean list`, []string{"help", "jobs", "lst"}},
		{"jobs list two", `argument "extra": cucriu jobs list takes a job only`, []string{"jobs", "list", dir, "extra"}},
		{"jobs list empty", "an argument is empty", []string{"jobs", "list", ""}},
		{"jobs show nothing", "name the job", []string{"jobs", "show"}},
		{"jobs show two checkpoints", `argument "000002": cucriu jobs show takes a job and one checkpoint`, []string{"jobs", "show", dir, "000001", "000002"}},
		{"jobs verify nothing", "name the job", []string{"jobs", "verify"}},
		{"jobs verify empty", "an argument is empty", []string{"jobs", "verify", dir, ""}},
		{"jobs prune nothing", "name the job", []string{"jobs", "prune", "--keep", "1"}},
		{"jobs prune by no rule", "give --keep or --max-bytes", []string{"jobs", "prune", dir}},
		{"jobs prune all", "--keep 0: must be at least 1", []string{"jobs", "prune", dir, "--keep", "0"}},
		{"jobs prune no number", "invalid argument", []string{"jobs", "prune", dir, "--keep", "few"}},
		{"jobs prune no size", "is not a size, such as 512M", []string{"jobs", "prune", dir, "--max-bytes", "lots"}},
		{"jobs prune to nothing", "is not a size", []string{"jobs", "prune", dir, "--max-bytes", "0"}},
		{"jobs prune beyond all sizes", "is not a size", []string{"jobs", "prune", dir, "--max-bytes", "9000000P"}},
		{"jobs pin no checkpoint", "name the checkpoint", []string{"jobs", "pin", dir}},
		{"jobs unpin no checkpoint", "name the checkpoint", []string{"jobs", "unpin", dir}},
		{"jobs pin nothing", "name the job", []string{"jobs", "pin"}},
		{"jobs checkpoint nothing", "name the job", []string{"jobs", "checkpoint"}},
		{"jobs rm of a checkpoint", `argument "000001": rm removes a whole job; cucriu jobs prune train --keep N removes checkpoints`, []string{"jobs", "rm", "train", "000001"}},
		{"jobs checkpoint of two", `argument "extra": cucriu jobs checkpoint takes a job only`, []string{"jobs", "checkpoint", dir, "extra"}},
		{"jobs pause unknown flag", "unknown flag: --nonsense (see cucriu jobs pause --help)", []string{"jobs", "pause", dir, "--nonsense"}},
		{"jobs resume nothing", "name the job", []string{"jobs", "resume"}},
		{"jobs stop nothing", "name the job", []string{"jobs", "stop"}},
		{"status argument", `argument "extra"`, []string{"status", "extra"}},
		{"a word that is none of an option's", `for "--tcp" flag: want one of refuse, close, keep`, []string{"migrate", "-t", "1", "--to", "b", "--tcp", "drop"}},
		{"migrate a tree and a long job", "-t and --job cannot be combined", []string{"migrate", "-t", "1", "--job", "train", "--to", "b"}},
		{"recover of one process", "unknown shorthand flag: 'p' in -p (see cucriu recover --help)", []string{"recover", "-p", pid}},
		{"status of a process", `argument "4711": cucriu status takes no arguments`, []string{"status", "4711"}},
		{"recover in two ways", "--take and --drop cannot be combined", []string{"recover", "--take", "a", "--drop", "a"}},
		{"recover argument", `argument "extra"`, []string{"recover", "extra"}},
		{"inspect no image", "name one image directory", []string{"inspect"}},
		{"inspect empty image", "name one image directory", []string{"inspect", ""}},
		{"inspect two images", "name one image directory", []string{"inspect", dir, dir}},
		{"inspect directory with -D", "unknown shorthand flag: 'D' in -D (see cucriu inspect --help)", []string{"inspect", "-D", dir}},
		{"verify no image", "name one image directory", []string{"verify"}},
		{"inspect session without its timeline", "--session requires --timeline", []string{"inspect", "--session", "dump-1-1"}},
		{"inspect session and image", "takes no arguments, only options", []string{"inspect", "--timeline", "--session", "dump-1-1", dir}},
		{"map argument", `argument "extra"`, []string{"map", "extra"}},
		{"map no folder", "the directory name is empty", []string{"map", "-D", ""}},
		{"gpus argument", `argument "extra"`, []string{"gpus", "extra"}},
		{"gpus pid 0", positive, []string{"gpus", "-p", "0"}},

		{"state without -p", `required flag(s) "pid" not set (see cucriu state --help)`, []string{"state"}},
		{"lock pid without -p", `argument "4711": cucriu lock takes no arguments`, []string{"lock", "4711"}},
		{"gpus two pids", "already given as", []string{"gpus", "-p", pid, "-p", pid}},
		{"state argument", `argument "4711"`, []string{"state", "4711"}},
		{"state pid 0", positive, []string{"state", "-p", "0"}},
		{"lock without -p", `required flag(s) "pid" not set`, []string{"lock"}},
		{"lock pid 0", positive, []string{"lock", "-p", "0"}},
		{"lock one of the pids", positive, []string{"lock", "-p", pid + ",x"}},
		{"lock an empty one of the pids", positive, []string{"lock", "-p", pid + ","}},
		{"lock timeout 0s", "must be at least 1ms", []string{"lock", "-p", pid, "--timeout", "0s"}},
		{"lock timeout that is negative", "must be at least 1ms", []string{"lock", "-p", pid, "--timeout", "-1s"}},
		{"lock timeout that the driver takes for none", "must be at least 1ms", []string{"lock", "-p", pid, "--timeout", "1us"}},
		{"lock timeout without a unit", "missing unit in duration", []string{"lock", "-p", pid, "--timeout", "10"}},
		{"lock timeout of a year", "out of range", []string{"lock", "-p", pid, "--timeout", "8760h"}},
		{"unlock without -p", `required flag(s) "pid" not set`, []string{"unlock"}},
		{"unlock pid 0", positive, []string{"unlock", "-p", "0"}},
		{"suspend without -p", `required flag(s) "pid" not set`, []string{"suspend"}},
		{"suspend process of the wrong option", "unknown shorthand flag: 't' in -t", []string{"suspend", "-t", pid}},
		{"suspend pid 0", positive, []string{"suspend", "-p", "0"}},
		{"suspend negative pid", positive, []string{"suspend", "-p", "-7"}},
		{"resume without -p", `required flag(s) "pid" not set`, []string{"resume"}},
		{"resume pid 0", positive, []string{"resume", "-p", "0"}},
		{"resume map that is none", `"--map" flag: "nonsense"`, []string{"resume", "-p", pid, "--map", "{from: nonsense}"}},
		{"restore map that is none", "expected FROM=TO", []string{"restore", "-D", dir, "--map", "1"}},
		{"watch nothing", "name one session's directory", []string{"watch"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			wrongUsage(t, "cucriu", test.says, "", test.args...)
		})
	}
	t.Run("hook argument", func(t *testing.T) { wrongUsage(t, "cucriu-hook", `"nonsense"`, "", "nonsense") })
}

const (
	pid      = "2147483647" // of no process: the kernel's pids stay below 4194304
	dir      = "/nonexistent/images"
	positive = "a pid is a positive number"
)

// TestAConfigurationThatCannotBeUsed checks that this, too, is wrong usage, for every
// command.
func TestAConfigurationThatCannotBeUsed(t *testing.T) {
	for _, test := range []struct{ name, says, text string }{
		{"unknown version", "version", "version: 99\n"},
		{"unknown field", "nonsense", "version: 1\nnonsense: 1\n"},
		{"not YAML", "configuration", "version: [\n"},
		{"value out of range", "lock.timeout", "version: 1\nlock: {timeout: 0s}\n"},
		{"unknown force", "force", "version: 1\nforce: [nonsense]\n"},
	} {
		for _, args := range [][]string{
			{"dump", "-t", pid, "-D", dir},
			{"restore", "-D", dir},
			{"check"},
			{"status"},
			{"recover"},
			{"map", "-D", dir},
			{"gpus"},
			{"state", "-p", pid},
			{"lock", "-p", pid},
			{"unlock", "-p", pid},
			{"suspend", "-p", pid},
			{"resume", "-p", pid},
			{"inspect", "--timeline", "--session", "dump-1-1"},
			{"jobs", "list"},
		} {
			t.Run(test.name+" "+args[0], func(t *testing.T) { wrongUsage(t, "cucriu", test.says, test.text, args...) })
		}
		t.Run(test.name+" hook", func(t *testing.T) { wrongUsage(t, "cucriu-hook", test.says, test.text) })
	}
	t.Run("missing", func(t *testing.T) {
		wrongUsage(t, "/usr/bin/env", "/nonexistent.yaml", "", "CUCRIU_CONFIG=/nonexistent.yaml", testenv.Artefact(t, "make build", "bin", "cucriu"), "status")
	})
}

// wrongUsage runs one of our programs with a configuration ("" is the default one), and
// fails the test unless the program refuses its arguments.
func wrongUsage(t *testing.T, program, says, configuration string, args ...string) {
	t.Helper()
	home := filepath.Join(t.TempDir(), "home") // below a folder that only its owner can write
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	config, run := filepath.Join(home, "config.yaml"), filepath.Join(home, "run")
	if configuration == "" {
		configuration = "version: 1\n"
	}
	testenv.WriteFile(t, config, configuration)
	if !filepath.IsAbs(program) {
		program = testenv.Artefact(t, "make build", "bin", program)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "CUCRIU_CONFIG="+config, "CUCRIU_RUN_DIR="+run)
	var stdout, stderr strings.Builder
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	var exit *exec.ExitError
	if err := cmd.Run(); !errors.As(err, &exit) || exit.ExitCode() != 2 {
		t.Errorf("%v, want exit status 2\n%s", err, stderr.String())
	}
	text := strings.TrimSuffix(stderr.String(), "\n")
	if strings.Contains(text, "\n") || !strings.Contains(text, ": error: ") || !strings.Contains(text, says) {
		t.Errorf("want one line with %q:\n%s", says, text)
	}
	if strings.Contains(text, "unknown command") && strings.Contains(stdout.String(), "Usage:") {
		t.Errorf("the error stands below the help:\n%s", stdout.String())
	}
	if testenv.Exists(run) {
		t.Error("it has made the run directory")
	}
}
