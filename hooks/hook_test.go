package hooks

import (
	"testing"

	"cucriu/hooks/config"
)

func TestAHookIsMadeWithAConfigurationThatCanBeUsed(t *testing.T) {
	if _, err := New(config.Config{}, nil, "/bin/true"); err == nil {
		t.Error("a configuration without a run directory was accepted")
	}
	h, err := New(config.Default(), nil, "/bin/true", "watch")
	if err != nil || len(h.Watcher) != 2 {
		t.Errorf("%v, %v", h, err)
	}
}
