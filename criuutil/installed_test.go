package criuutil

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"
)

// TestAConfigurationThatCriuCannotUseIsNamed: criu itself says neither which file it is nor who has named a script.
func TestAConfigurationThatCriuCannotUseIsNamed(t *testing.T) {
	home := t.TempDir()
	t.Setenv("HOME", home)
	t.Setenv("CRIU_CONFIG_FILE", "")
	file := filepath.Join(home, ".criu", "default.conf")
	criu := filepath.Join(home, "criu")
	script := `#!/bin/sh
if [ "$1" = --no-default-config ] || ! grep -q = "$HOME/.criu/default.conf"; then echo "Version: 4.2.1"; else echo "Error: format"; exit 1; fi
`
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(criu, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	for line, want := range map[string]string{
		"network-lock = skip":       "criu cannot read its configuration in " + file + ": Error: format: correct the line",
		"action-script /nosuch/a":   "criu cannot run the action script /nosuch/a, which its configuration " + file + " names",
		"action-script /bin/true #": "",
	} {
		if err := os.WriteFile(file, []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := FindCriu(t.Context(), criu, os.Getenv); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", line, err, want)
		}
	}
	if err := os.WriteFile(file, []byte("action-script /nosuch/b\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var driven Criu
	if err := driven.SetOptions(&rpc.CriuOpts{ConfigFile: proto.String(file)}); err == nil || !strings.Contains(err.Error(), "/nosuch/b, which its configuration "+file) {
		t.Errorf("a dump with it: %v", err)
	}
}
