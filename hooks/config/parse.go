package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"regexp"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"cucriu/cudackpt"
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
	var wrong *Error
	if errors.As(err, &wrong) {
		from, given := p.origins[wrong.Field]
		if !given {
			from.source = p.cfg.File
		}
		wrong.Source, wrong.Line = from.source, from.line
	}
	if err != nil {
		return Config{}, err
	}
	return p.cfg, nil
}

func (p *parser) document(data []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case err != nil && !errors.Is(err, io.EOF):
		return p.syntax(data, err)
	case err != nil || len(document.Content) != 1 || isNull(document.Content[0]):
		return p.refuse(0, "", "the file is empty", versionRemedy)
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return p.refuse(second.Line, "", "a second document begins here", "remove it and the --- before it: one file holds one configuration")
	case !errors.Is(err, io.EOF):
		return p.syntax(data, err)
	}
	// A later version may have fields that are unknown here.
	var head struct{ Version yaml.Node }
	_ = document.Decode(&head) // what is wrong with the rest is found below
	version := resolve(&head.Version)
	if version.Kind == yaml.ScalarNode && !isNull(version) && version.Value != "1" {
		return p.refuse(head.Version.Line, "version", fmt.Sprintf("unknown version %q", version.Value), `this program reads "version: 1"`)
	}
	const unset = time.Duration(math.MinInt64)
	p.cfg.Lock.Try = unset
	if err := p.file()("", document.Content[0]); err != nil {
		return err
	}
	if version.Kind == 0 || isNull(version) {
		return p.refuse(0, "", "the field version is missing", versionRemedy)
	}
	if p.cfg.Lock.Try == unset {
		p.cfg.Lock.Try = min(Default().Lock.Try, p.cfg.Lock.Timeout)
	}
	p.cfg.File = p.source
	return nil
}

// reader reads the value of the field at path, which is no alias.
type reader func(path string, value *yaml.Node) error

// file reads the file, as configs/config.yaml shows it.
func (p *parser) file() reader {
	const boolean = "true or false"
	c := &p.cfg
	return p.section(map[string]reader{
		"version": p.scalar(func(string) *Error { return nil }), // it was read before
		"gpus": p.section(map[string]reader{
			"map":      p.rules(&c.GPUs.Map),
			"unmapped": text(p, &c.GPUs.Unmapped),
		}),
		"hosts": p.fields(p.host),
		"driver": p.section(map[string]reader{
			"library": text(p, &c.Driver.Library),
			"root":    text(p, &c.Driver.Root),
		}),
		"lock": p.section(map[string]reader{
			"timeout": p.duration(&c.Lock.Timeout),
			"try":     p.duration(&c.Lock.Try),
		}),
		"checkpoint": p.section(map[string]reader{"timeout": p.duration(&c.Checkpoint.Timeout)}),
		"pages":      text(p, &c.Pages),
		"fast_lane": p.section(map[string]reader{
			"compress": text(p, &c.FastLane.Compress),
			"sync":     parsed(p, &c.FastLane.Sync, strconv.ParseBool, boolean),
			"prefault": parsed(p, &c.FastLane.Prefault, strconv.ParseBool, boolean),
		}),
		"checksums":       parsed(p, &c.Checksums, strconv.ParseBool, boolean),
		"forked_children": text(p, &c.ForkedChildren),
		"restore": p.section(map[string]reader{
			"timeout":    p.duration(&c.Restore.Timeout),
			"on_failure": text(p, &c.Restore.OnFailure),
		}),
		"force": p.list(p.scalar(func(name string) *Error {
			c.Force = append(c.Force, name)
			return nil
		})),
		"log": p.section(map[string]reader{
			"level":  parsed(p, &c.Log.Level, parseLevel, levelNames),
			"format": text(p, &c.Log.Format),
			"file":   text(p, &c.Log.File),
		}),
	})
}

func (p *parser) host(name string) reader {
	if p.cfg.Hosts == nil {
		p.cfg.Hosts = make(map[string]Host)
	}
	p.cfg.Hosts[name] = Host{}
	return func(path string, n *yaml.Node) error {
		var host Host
		err := p.section(map[string]reader{"map": p.rules(&host.Map)})(path, n)
		p.cfg.Hosts[name] = host
		return err
	}
}

func (p *parser) rules(target *[]Rule) reader {
	return p.list(func(path string, n *yaml.Node) error {
		rule := Rule{Line: p.origins[path].line}
		err := p.section(map[string]reader{"from": p.selector(&rule.From), "to": p.selector(&rule.To)})(path, n)
		*target = append(*target, rule)
		return err
	})
}

// selector reads one side of a rule: a UUID, or one of the fields.
func (p *parser) selector(target *Selector) reader {
	uuid := p.scalar(func(text string) *Error {
		uuid, err := cudackpt.ParseUUID(text)
		if err != nil {
			return invalid("", "write one as nvidia-smi -L prints it, a position as {index: 0}, or an address as {pci: …}", "%q is not the UUID of a GPU", text)
		}
		target.UUID = &uuid
		return nil
	})
	index := p.scalar(func(text string) *Error {
		index, err := strconv.Atoi(text)
		if err != nil {
			return invalid("", "write a position, counted from 0", "%q is not a whole number", text)
		}
		target.Index = &index
		return nil
	})
	fields := p.section(map[string]reader{"uuid": uuid, "pci": text(p, &target.PCI), "index": index})
	return func(path string, n *yaml.Node) error {
		if n.Kind == yaml.ScalarNode {
			return uuid(path, n)
		}
		return fields(path, n)
	}
}

func (p *parser) section(known map[string]reader) reader {
	return p.fields(func(name string) reader { return known[name] })
}

// fields reads fields, each with the reader that of returns for its name; nil if there is no such field.
// A field without a value ("timeout:") keeps its default.
func (p *parser) fields(of func(name string) reader) reader {
	return func(path string, n *yaml.Node) error {
		if n.Kind != yaml.MappingNode {
			return p.refuse(n.Line, path, "expected fields, found "+kindOf(n), fieldsRemedy)
		}
		first := make(map[string]int) // lines
		for i := 0; i+1 < len(n.Content); i += 2 {
			key, value := n.Content[i], resolve(n.Content[i+1])
			if key.Kind != yaml.ScalarNode {
				return p.refuse(key.Line, path, "the name of a field is "+kindOf(resolve(key)), fieldsRemedy)
			}
			at := strings.TrimPrefix(path+"."+key.Value, ".")
			if line := first[key.Value]; line > 0 {
				return p.refuse(key.Line, at, fmt.Sprintf("given twice, first on line %d", line), fieldsRemedy)
			}
			first[key.Value] = key.Line
			read := of(key.Value)
			if read == nil {
				return p.refuse(key.Line, path, fmt.Sprintf("unknown field %q", key.Value), fieldsRemedy)
			}
			p.origins[at] = origin{p.source, key.Line}
			if isNull(value) {
				continue
			}
			if err := read(at, value); err != nil {
				return err
			}
		}
		return nil
	}
}

// list reads the entries of a list, all with the same reader.
func (p *parser) list(read reader) reader {
	return func(path string, n *yaml.Node) error {
		if n.Kind != yaml.SequenceNode {
			return p.refuse(n.Line, path, "expected a list, found "+kindOf(n), fieldsRemedy)
		}
		for i, item := range n.Content {
			at, value := entry(path, i), resolve(item)
			if isNull(value) {
				return p.refuse(item.Line, at, "expected a value, found nothing", "write one after the -, or remove it")
			}
			p.origins[at] = origin{p.source, item.Line}
			if err := read(at, value); err != nil {
				return err
			}
		}
		return nil
	}
}

// scalar reads a plain value. The error of read has no place yet.
func (p *parser) scalar(read func(text string) *Error) reader {
	return func(path string, n *yaml.Node) error {
		switch {
		case n.Kind != yaml.ScalarNode:
			return p.refuse(n.Line, path, "expected a plain value, found "+kindOf(n), fieldsRemedy)
		case n.Style&yaml.TaggedStyle != 0:
			return p.refuse(n.Line, path, "expected a plain value, found one with the tag "+n.Tag, "remove the tag")
		}
		if wrong := read(n.Value); wrong != nil {
			return p.refuse(n.Line, path, wrong.Cause, wrong.Remedy)
		}
		return nil
	}
}

func text[T ~string](p *parser, target *T) reader {
	return parsed(p, target, func(text string) (T, error) { return T(text), nil }, "")
}

func parsed[T any](p *parser, target *T, parse func(string) (T, error), expect string) reader {
	return p.scalar(func(text string) *Error {
		value, err := parse(text)
		if err != nil {
			return invalid("", "write "+expect, "%q is not valid", text)
		}
		*target = value
		return nil
	})
}

func (p *parser) duration(target *time.Duration) reader {
	return parsed(p, target, time.ParseDuration, "a number and its unit, such as 500ms, 10s or 2m")
}

const levelNames = "debug, info, warn or error"

func parseLevel(text string) (slog.Level, error) {
	for _, level := range levels {
		if text == strings.ToLower(level.String()) {
			return level, nil
		}
	}
	return 0, fmt.Errorf("%q is not a level", text)
}

const versionRemedy = `begin it with "version: 1"`

const fieldsRemedy = "see docs/configuration.md (installed in share/doc/cucriu) for the fields, with examples"

// entry returns the name that errors use for an entry of a list.
func entry(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }

// resolve follows an alias to the node that it stands for, which is never an alias itself.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// kindOf says what a value is.
func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "fields"
	case yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("the value %q", n.Value)
}

func (p *parser) refuse(line int, path, cause, remedy string) error {
	return &Error{Source: p.source, Line: line, Field: path, Cause: cause, Remedy: remedy}
}

var syntaxError = regexp.MustCompile(`(?s)^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// syntax adds the line to yaml.v3's message. It can be the line before the fault: yaml.v3's
// parser counts lines from 0, its scanner from 1.
func (p *parser) syntax(data []byte, err error) error {
	m := syntaxError.FindStringSubmatch(err.Error())
	line, _ := strconv.Atoi(m[1]) // 0 if there is none
	for i, text := range strings.Split(string(data), "\n") {
		if (i+1 == line || i == line) && strings.HasPrefix(strings.TrimLeft(text, " "), "\t") {
			return p.refuse(i+1, "", "this line begins with a tab", "YAML takes spaces only")
		}
	}
	return p.refuse(line, "", "this is not YAML: "+m[2], "look at this line and those after it: indentation, brackets, quotes")
}
