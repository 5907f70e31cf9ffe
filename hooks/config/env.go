package config

import (
	"strings"
)

// The environment variables. Each overrides the file. An empty one counts as unset.
const (
	EnvConfig     = "CUCRIU_CONFIG"      // the configuration file, which must exist
	EnvLibrary    = "CUCRIU_LIBCUDA"     // driver.library
	EnvDriverRoot = "CUCRIU_DRIVER_ROOT" // driver.root
	EnvRunDir     = "CUCRIU_RUN_DIR"     // the run directory
	EnvLog        = "CUCRIU_LOG"         // log.level, or "level,format"
)

// Load returns the configuration of this host. It reads the file that CUCRIU_CONFIG names, else
// [DefaultPath] if that exists, else takes [Default]. The environment then overrides the
// result. env is os.Getenv.
func Load(env func(name string) string) (Config, error) {
	return loadFrom(env, DefaultPath)
}

func loadFrom(env func(string) string, defaultPath string) (Config, error) {
	path, mustExist := env(EnvConfig), true
	if path == "" {
		path, mustExist = defaultPath, false
	}
	if err := checkPath("", path); err != nil {
		err.Source = EnvConfig
		return Config{}, err
	}
	p := newParser(path)
	data, exists, err := readTrusted(path)
	if err != nil {
		return Config{}, err
	}
	switch {
	case exists:
		if err := p.document(data); err != nil {
			return Config{}, err
		}
	case mustExist:
		return Config{}, &Error{
			Source: path, Cause: "there is no such file, but " + EnvConfig + " names it",
			Remedy: "create it, or unset " + EnvConfig,
		}
	}
	if err := p.override(env); err != nil {
		return Config{}, err
	}
	return p.finish()
}

func (p *parser) override(env func(string) string) error {
	for _, v := range []struct {
		name, field string
		target      *string
	}{
		{EnvLibrary, "driver.library", &p.cfg.Driver.Library},
		{EnvDriverRoot, "driver.root", &p.cfg.Driver.Root},
		{EnvRunDir, "run directory", &p.cfg.RunDir},
	} {
		if value := env(v.name); value != "" {
			*v.target = value
			p.origins[v.field] = origin{source: v.name}
		}
	}
	value := env(EnvLog)
	if value == "" {
		return nil
	}
	level, format, both := strings.Cut(value, ",")
	var err error
	if p.cfg.Log.Level, err = parseLevel(level); err != nil {
		return &Error{Source: EnvLog, Field: "log.level", Cause: err.Error(), Remedy: "write " + levelNames + ", optionally followed by a comma and text or json"}
	}
	if both {
		p.cfg.Log.Format = Format(format)
		p.origins["log.format"] = origin{source: EnvLog}
	}
	return nil
}
