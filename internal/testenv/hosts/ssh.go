package hosts

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"cucriu/internal/testenv"
)

// sshVariable names the directory with sshd, ssh, scp and ssh-keygen. Without it the hosts
// have no ssh.
const sshVariable = "CUCRIU_TEST_SSH"

const sshdPIDFile = "/run/sshd.pid"

// prepareLogin writes the files by which root logs in on the other host, and those that say
// who the host is.
func (h *Host) prepareLogin() {
	h.home = homeOfRoot()
	h.environment()
	id := newUUID()
	hosts := "127.0.0.1 localhost\n::1 localhost\n"
	for _, host := range h.pair.Hosts() {
		hosts += fmt.Sprintf("%v %s\n%v %s\n", host.Addr, host.Name, host.Addr6, host.Name)
	}
	h.file("etc/passwd", passwd())
	h.file("etc/shadow", "root:*:19000:0:99999:7:::\nsshd:!:19000::::::\n")
	h.file("etc/hosts", hosts)
	h.file("etc/hostname", h.Name+"\n")
	h.file("etc/machine-id", strings.ReplaceAll(id, "-", "")+"\n")
	h.file("etc/product_uuid", id+"\n")
	h.writeEnvironment()
	if h.withSSH() {
		h.sshFiles()
	}
}

func (h *Host) withSSH() bool { return !h.pair.options.WithoutSSH }

func (h *Host) sshFiles() {
	t := h.pair.t
	t.Helper()
	for _, key := range []string{"home/.ssh/id_ed25519", "home/.sshd/host_key"} {
		if err := os.MkdirAll(filepath.Dir(h.path(key)), 0o700); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.Command(h.ssh("ssh-keygen"), "-q", "-t", "ed25519", "-N", "", "-C", h.Name, "-f", h.path(key)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v\n%s", err, out)
		}
	}
	h.file("home/.sshd/sshd_config", h.sshdConfig())
}

// trust lets root of this host log in on the other one.
func (h *Host) trust() {
	t, to := h.pair.t, h.other
	t.Helper()
	user, err := os.ReadFile(h.path("home/.ssh/id_ed25519.pub"))
	if err != nil {
		t.Fatal(err)
	}
	host, err := os.ReadFile(to.path("home/.sshd/host_key.pub"))
	if err != nil {
		t.Fatal(err)
	}
	to.file("home/.ssh/authorized_keys", string(user))
	h.file("home/.ssh/known_hosts", to.Name+" "+string(host))
	h.file("home/.ssh/config", fmt.Sprintf("Host %s %v\n\tHostName %v\n\tHostKeyAlias %s\n\tUser root\n\tBatchMode yes\n", to.Name, to.Addr, to.Addr, to.Name))
}

func (h *Host) sshdConfig() string {
	lines := []string{
		"Port 22", "ListenAddress " + h.Addr.String(), "HostKey " + filepath.Join(h.home, ".sshd/host_key"), "PidFile " + sshdPIDFile,
		"StrictModes no", "UsePAM no", "PasswordAuthentication no", "PermitRootLogin prohibit-password",
		"PermitUserEnvironment yes", "UseDNS no", "MaxStartups 1000", "Subsystem sftp internal-sftp",
	}
	// Where sshd has been unpacked, its other programs lie beside it.
	for program, option := range map[string]string{"sshd-session": "SshdSessionPath", "sshd-auth": "SshdAuthPath"} {
		if testenv.Exists(h.ssh(program)) {
			lines = append(lines, option+" "+h.ssh(program))
		}
	}
	config := strings.Join(append(slices.Clone(h.pair.options.SSHD), lines...), "\n") + "\n" // the first of a kind counts
	// Not known before 9.8. A test that kills connections would be locked out.
	const penalties = "PerSourcePenalties no\n"
	h.file("home/.sshd/sshd_config", config+penalties)
	if exec.Command(h.ssh("sshd"), "-G", "-f", h.path("home/.sshd/sshd_config")).Run() == nil {
		config += penalties
	}
	return config
}

// ssh returns the path of one of OpenSSH's programs.
func (h *Host) ssh(program string) string {
	h.pair.t.Helper()
	dir := os.Getenv(sshVariable)
	if dir == "" {
		h.pair.t.Fatal(sshVariable + " is not set: run make test, or export " + sshVariable + "=$(make -s which-ssh)")
	}
	return filepath.Join(dir, program)
}

// startServers starts sshd, if the host has one, and waits until it listens.
func (h *Host) startServers() {
	t := h.pair.t
	t.Helper()
	if !h.withSSH() {
		return
	}
	log, err := os.OpenFile(h.path("sshd.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := h.Command(h.pair.root.Context(), h.ssh("sshd"), "-D", "-e", "-f", filepath.Join(h.home, ".sshd/sshd_config"))
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = log, log
	h.pair.root.Cleanup(func() {
		if data, _ := os.ReadFile(log.Name()); h.pair.root.Failed() && len(data) > 0 {
			h.pair.root.Logf("sshd of host %s:\n%s", h.Name, data)
		}
	})
	h.serve(cmd, sshdPIDFile)
}

// serve starts a server and waits until it listens, which it says in its pid file.
func (h *Host) serve(cmd *exec.Cmd, pidFile string) {
	t := h.pair.t
	t.Helper()
	_ = os.Remove(h.path(pidFile))
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	for deadline := time.Now().Add(testenv.Soon); !h.runs(pidFile); time.Sleep(time.Millisecond) {
		select {
		case <-ended:
			t.Fatalf("a server on host %s ended: %v: %v", h.Name, cmd.Args, cmd.ProcessState)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("a server on host %s does not listen: %v", h.Name, cmd.Args)
		}
	}
}

// runs reports whether the process that wrote a pid file below /run runs.
func (h *Host) runs(pidFile string) bool {
	data, _ := os.ReadFile(h.path(pidFile))
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return pid != 0 && slices.ContainsFunc(h.Processes(), func(p Process) bool { return p.PID == pid })
}

// writeEnvironment writes what sshd adds to the environment of a command: that in which
// this host differs from the machine.
func (h *Host) writeEnvironment() {
	machine := os.Environ()
	if testenv.RealDriver() {
		machine = nil // where its libraries are
	}
	last := make(map[string]string)
	for _, variable := range h.Env {
		name, _, _ := strings.Cut(variable, "=")
		last[name] = variable
	}
	var text bytes.Buffer
	for _, variable := range last {
		if !slices.Contains(machine, variable) && !strings.Contains(variable, "\n") {
			fmt.Fprintln(&text, variable)
		}
	}
	h.file("home/.ssh/environment", text.String())
}
