package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strconv"
	"time"

	"gopkg.in/yaml.v3"

	"cucriu/criuutil/pages"
	"cucriu/cudackpt"
	"cucriu/hooks/gpumap"
)

// Parse reads the content of a configuration file. Errors refer to the file as name. A
// configuration that Parse returns without an error is valid.
func Parse(name string, data []byte) (Config, error) {
	p := newParser(name)
	if err := p.document(data); err != nil {
		return Config{}, err
	}
	return p.finish()
}

// parser reads one source after another into cfg, and remembers for each field which source set
// it.
type parser struct {
	cfg     Config
	source  string
	origins map[string]origin
}

// origin is the place where a field was set.
type origin struct {
	source string
	line   int
}

func newParser(source string) *parser {
	return &parser{cfg: Default(), source: source, origins: make(map[string]origin)}
}

// finish validates the whole configuration, and adds to an error where its field was set.
func (p *parser) finish() (Config, error) {
	err := p.cfg.Validate()
	if err == nil {
		return p.cfg, nil
	}
	var wrong *Error
	if errors.As(err, &wrong) {
		from, given := p.origins[wrong.Field]
		if !given {
			from.source = p.cfg.File
		}
		wrong.Source, wrong.Line = from.source, from.line
	}
	return Config{}, err
}

func (p *parser) document(data []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case errors.Is(err, io.EOF):
		return p.missingVersion("the file is empty")
	case err != nil:
		return p.syntax(err)
	case len(document.Content) != 1 || isNull(document.Content[0]):
		return p.missingVersion("the file is empty")
	}
	if err := p.root(document.Content[0]); err != nil {
		return err
	}
	switch err := decoder.Decode(&second); {
	case errors.Is(err, io.EOF):
		p.cfg.File = p.source
		return nil
	case err != nil:
		return p.syntax(err)
	}
	return p.fail(&second, "", "a second document begins here", "remove it and the --- before it: one file holds one configuration")
}

func (p *parser) missingVersion(cause string) error {
	return &Error{Source: p.source, Cause: cause, Remedy: "begin it with \"version: 1\""}
}

var syntaxError = regexp.MustCompile(`(?s)^yaml: (?:line (\d+): )?(.*)$`)

// syntax adds the line to yaml.v3's message. It can be the line before the fault: yaml.v3's
// parser counts lines from 0, its scanner from 1.
func (p *parser) syntax(err error) error {
	wrong := &Error{Source: p.source, Cause: "this is not YAML: " + err.Error(), Remedy: "look at this line and those after it: indentation, brackets, quotes"}
	if m := syntaxError.FindStringSubmatch(err.Error()); m != nil {
		wrong.Line, _ = strconv.Atoi(m[1])
		wrong.Cause = "this is not YAML: " + m[2]
	}
	return wrong
}

// root reads the whole file, as configs/config.yaml shows it.
func (p *parser) root(n *yaml.Node) error {
	c := &p.cfg
	version, timeout, try := false, c.Lock.Timeout, c.Lock.Try
	err := p.mapping("", n,
		scalar("version", "this program reads \"version: 1\"", func(value string) error {
			version = value == "1"
			if !version {
				return fmt.Errorf("version %q is not known here", value)
			}
			return nil
		}),
		section("gpus",
			rules("map", &c.GPUs.Map),
			scalar("unmapped", "use fill or error", func(value string) (err error) {
				c.GPUs.Unmapped, err = gpumap.ParsePolicy(value)
				return err
			}),
		),
		field{"hosts", (*parser).hosts},
		section("driver", text("library", &c.Driver.Library), text("root", &c.Driver.Root)),
		section("lock", duration("timeout", &timeout), duration("try", &try)),
		section("checkpoint", duration("timeout", &c.Checkpoint.Timeout)),
		text("pages", (*string)(&c.Pages)),
		section("fast_lane",
			scalar("compress", "use none, zstd or s2", func(value string) (err error) {
				c.FastLane.Compress, err = pages.ParseCodec(value)
				return err
			}),
			boolean("sync", &c.FastLane.Sync),
			boolean("prefault", &c.FastLane.Prefault),
		),
		text("forked_children", (*string)(&c.ForkedChildren)),
		section("restore",
			duration("timeout", &c.Restore.Timeout),
			text("on_failure", (*string)(&c.Restore.OnFailure)),
		),
		field{"force", (*parser).force},
		section("log",
			scalar("level", levelRemedy, func(value string) (err error) {
				c.Log.Level, err = parseLevel(value)
				return err
			}),
			text("format", (*string)(&c.Log.Format)),
			text("file", &c.Log.File),
		),
	)
	if err != nil {
		return err
	}
	if !version {
		return p.missingVersion("the field version is missing")
	}
	c.Lock = Lock{Timeout: timeout, Try: p.defaultTry(timeout, try)}
	return nil
}

// defaultTry returns lock.try as the user wrote it. If the user did not, it returns the
// default, made no longer than lock.timeout.
func (p *parser) defaultTry(timeout, try time.Duration) time.Duration {
	if _, given := p.origins["lock.try"]; given {
		return try
	}
	return min(timeout, try)
}

// rules makes a field that holds a GPU map.
func rules(name string, target *[]gpumap.Rule) field {
	return field{name, func(p *parser, path string, n *yaml.Node) error {
		n = resolve(n)
		if n.Kind != yaml.SequenceNode {
			return p.fail(n, path, "expected a list, found "+kindOf(n), "write one \"- {from: …, to: …}\" a line")
		}
		*target = nil
		for i, item := range n.Content {
			rule := gpumap.Rule{Line: item.Line}
			at := ruleField(path, i)
			p.origins[at] = origin{p.source, item.Line}
			if err := p.mapping(at, item, selector("from", &rule.From), selector("to", &rule.To)); err != nil {
				return err
			}
			*target = append(*target, rule)
		}
		return nil
	}}
}

// hosts reads the section of a name for each host.
func (p *parser) hosts(path string, n *yaml.Node) error {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		return p.fail(n, path, "expected names of hosts, found "+kindOf(n), "write a host's name, a colon, and its map")
	}
	p.cfg.Hosts = make(map[string]Host)
	var names []field
	for i := 0; i+1 < len(n.Content); i += 2 {
		name := n.Content[i].Value
		names = append(names, field{name, func(p *parser, below string, value *yaml.Node) error {
			var host Host
			err := p.mapping(below, value, rules("map", &host.Map))
			p.cfg.Hosts[name] = host
			return err
		}})
	}
	return p.mapping(path, n, names...)
}

// force reads the names of the findings that are overridden.
func (p *parser) force(path string, n *yaml.Node) error {
	n = resolve(n)
	if n.Kind != yaml.SequenceNode {
		return p.fail(n, path, "expected a list, found "+kindOf(n), "write the names in brackets: [peer-memory]")
	}
	p.cfg.Force = nil
	for _, item := range n.Content {
		err := scalar("", forceRemedy(), func(name string) error {
			p.cfg.Force = append(p.cfg.Force, name)
			return checkForceable(name)
		}).read(p, path, item)
		if err != nil {
			return err
		}
	}
	return nil
}

const uuidRemedy = "write it as nvidia-smi -L prints it"

// selector reads one side of a rule: a UUID, or one of the fields uuid, pci and index.
func selector(name string, target *gpumap.Selector) field {
	setUUID := func(value string) error {
		u, err := cudackpt.ParseUUID(value)
		target.UUID = &u
		return err
	}
	return field{name, func(p *parser, path string, n *yaml.Node) error {
		n = resolve(n)
		if n.Kind == yaml.ScalarNode {
			return scalar(name, uuidRemedy+", or as {pci: …} or {index: …}", setUUID).read(p, path, n)
		}
		return p.mapping(path, n,
			scalar("uuid", uuidRemedy, setUUID),
			text("pci", &target.PCI),
			index("index", target),
		)
	}}
}

const levelRemedy = "use debug, info, warn or error"

func parseLevel(text string) (slog.Level, error) {
	switch text {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	}
	return 0, fmt.Errorf("%q is not a level", text)
}
