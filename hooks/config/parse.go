package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"cucriu/cudackpt"
	"cucriu/internal/gpumap"
	"cucriu/internal/pages"
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
	fields  []field
}

// origin is the place where a field was set.
type origin struct {
	source string
	line   int
}

// field is a field, or an entry of a list, as the file has it.
type field struct {
	section, path string
	key, value    *yaml.Node
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

// content is the file, as configs/config.yaml shows it. What is absent or empty
// ("timeout:") stays nil.
type content = struct {
	Version *string
	GPUs    struct {
		Map      rules
		Unmapped *gpumap.Policy
	}
	Hosts          map[string]struct{ Map rules }
	Driver         struct{ Library, Root *string }
	Lock           struct{ Timeout, Try *string }
	Checkpoint     struct{ Timeout *string }
	Pages          *Pages
	FastLane       struct{ Compress, Sync, Prefault *string } `yaml:"fast_lane"`
	ForkedChildren *ForkedChildren                            `yaml:"forked_children"`
	Restore        struct {
		Timeout   *string
		OnFailure *OnFailure `yaml:"on_failure"`
	}
	Force []string
	Log   struct {
		Level  *string
		Format *Format
		File   *string
	}
}

type rules = []struct{ From, To side }

// side is one side of a rule: a UUID, or one of the fields.
type side struct{ UUID, PCI, Index string }

// UnmarshalYAML has the older of yaml.v3's two forms, because only that one keeps KnownFields.
func (s *side) UnmarshalYAML(unmarshal func(any) error) error {
	if unmarshal(&s.UUID) == nil {
		return nil
	}
	var fields struct{ UUID, PCI, Index string }
	err := unmarshal(&fields)
	*s = fields
	return err
}

func (p *parser) document(data []byte) error {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	var document, second yaml.Node
	switch err := decoder.Decode(&document); {
	case err != nil && !errors.Is(err, io.EOF):
		return p.syntax(err)
	case err != nil || len(document.Content) != 1 || document.Content[0].ShortTag() == "!!null":
		return p.fail("", "the file is empty", versionRemedy)
	}
	switch err := decoder.Decode(&second); {
	case err == nil:
		return p.refuse(second.Line, "", "a second document begins here", "remove it and the --- before it: one file holds one configuration")
	case !errors.Is(err, io.EOF):
		return p.syntax(err)
	}
	if err := p.list("", document.Content[0]); err != nil {
		return err
	}

	c := &p.cfg
	var f content
	f.GPUs.Unmapped, f.Driver.Library, f.Driver.Root, f.Pages = &c.GPUs.Unmapped, &c.Driver.Library, &c.Driver.Root, &c.Pages
	f.ForkedChildren, f.Restore.OnFailure, f.Log.Format, f.Log.File = &c.ForkedChildren, &c.Restore.OnFailure, &c.Log.Format, &c.Log.File
	strict := yaml.NewDecoder(bytes.NewReader(data))
	strict.KnownFields(true)
	err := strict.Decode(&f)
	var mistakes *yaml.TypeError
	switch {
	case f.Version != nil && *f.Version != "1":
		return p.fail("version", fmt.Sprintf("unknown version %q", *f.Version), `this program reads "version: 1"`)
	case errors.As(err, &mistakes):
		return p.mistake(mistakes.Errors[0])
	case err != nil:
		return p.syntax(err)
	case f.Version == nil:
		return p.fail("", "the field version is missing", versionRemedy)
	}
	c.File = p.source
	return p.convert(&f)
}

// convert reads the values that are more than text.
func (p *parser) convert(f *content) (err error) {
	const duration, boolean = "a number and its unit, such as 500ms, 10s or 2m", "true or false"
	c := &p.cfg
	for _, v := range []struct {
		field  string
		text   *string
		read   func(text string) error
		expect string
	}{
		{"lock.timeout", f.Lock.Timeout, into(&c.Lock.Timeout, time.ParseDuration), duration},
		{"lock.try", f.Lock.Try, into(&c.Lock.Try, time.ParseDuration), duration},
		{"checkpoint.timeout", f.Checkpoint.Timeout, into(&c.Checkpoint.Timeout, time.ParseDuration), duration},
		{"fast_lane.compress", f.FastLane.Compress, into(&c.FastLane.Compress, pages.ParseCodec), "none, zstd or s2"},
		{"fast_lane.sync", f.FastLane.Sync, into(&c.FastLane.Sync, strconv.ParseBool), boolean},
		{"fast_lane.prefault", f.FastLane.Prefault, into(&c.FastLane.Prefault, strconv.ParseBool), boolean},
		{"restore.timeout", f.Restore.Timeout, into(&c.Restore.Timeout, time.ParseDuration), duration},
		{"log.level", f.Log.Level, into(&c.Log.Level, parseLevel), levelNames},
	} {
		if v.text != nil && v.read(*v.text) != nil {
			return p.fail(v.field, fmt.Sprintf("%q is not valid", *v.text), "write "+v.expect)
		}
	}
	if f.Lock.Try == nil {
		c.Lock.Try = min(c.Lock.Try, c.Lock.Timeout)
	}
	c.Force = append(c.Force, f.Force...)
	if len(f.Hosts) > 0 {
		c.Hosts = make(map[string]Host)
	}
	for name, host := range f.Hosts {
		rules, err := p.rules("hosts."+name+".map", host.Map)
		if err != nil {
			return err
		}
		c.Hosts[name] = Host{rules}
	}
	c.GPUs.Map, err = p.rules("gpus.map", f.GPUs.Map)
	return err
}

func into[T any](target *T, parse func(string) (T, error)) func(string) error {
	return func(text string) (err error) {
		*target, err = parse(text)
		return err
	}
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

func (p *parser) rules(path string, from rules) (to []gpumap.Rule, err error) {
	for i, r := range from {
		at := entry(path, i)
		rule := gpumap.Rule{Line: p.origins[at].line}
		if rule.From, err = p.selector(at+".from", r.From); err == nil {
			rule.To, err = p.selector(at+".to", r.To)
		}
		if err != nil {
			return nil, err
		}
		to = append(to, rule)
	}
	return to, nil
}

func (p *parser) selector(path string, s side) (gpumap.Selector, error) {
	selector := gpumap.Selector{PCI: s.PCI}
	if s.UUID != "" {
		uuid, err := cudackpt.ParseUUID(s.UUID)
		if err != nil {
			return selector, p.fail(path, err.Error(), "write it as nvidia-smi -L prints it, or as {pci: …} or {index: …}")
		}
		selector.UUID = &uuid
	}
	if s.Index != "" {
		index, err := strconv.Atoi(s.Index)
		if err != nil {
			return selector, p.fail(path+".index", fmt.Sprintf("%q is not a whole number", s.Index), "write a position, counted from 0")
		}
		selector.Index = &index
	}
	return selector, nil
}

// list records the lines of the fields below n. It refuses what yaml.v3 would accept, or pass
// over in silence: merges, tags, and names and entries that are empty.
func (p *parser) list(path string, n *yaml.Node) error {
	add := func(below string, key, value *yaml.Node) error {
		p.fields = append(p.fields, field{path, below, key, value})
		p.origins[below] = origin{p.source, key.Line}
		return p.list(below, value)
	}
	if n.Kind == yaml.ScalarNode && n.Style&yaml.TaggedStyle != 0 {
		return p.refuse(n.Line, path, "expected a plain value, found one with the tag "+n.Tag, "remove the tag")
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if key.Kind != yaml.ScalarNode {
			return p.refuse(key.Line, path, "the name of a field is "+kindOf(key.ShortTag(), key.Value), fieldsRemedy)
		}
		if tag := key.ShortTag(); tag == "!!null" || tag == "!!merge" {
			return p.refuse(key.Line, path, fmt.Sprintf("unknown field %q", key.Value), fieldsRemedy)
		}
		if err := add(strings.TrimPrefix(path+"."+key.Value, "."), key, n.Content[i+1]); err != nil {
			return err
		}
	}
	for i := 0; n.Kind == yaml.SequenceNode && i < len(n.Content); i++ {
		item := n.Content[i]
		if resolve(item).ShortTag() == "!!null" {
			return p.refuse(item.Line, entry(path, i), "expected a value, found nothing", "write one after the -, or remove it")
		}
		if err := add(entry(path, i), item, item); err != nil {
			return err
		}
	}
	return nil
}

const versionRemedy = `begin it with "version: 1"`

const fieldsRemedy = "see docs/configuration.md for the fields, with examples"

// entry returns the name that errors use for an entry of a list.
func entry(list string, i int) string { return fmt.Sprintf("%s[%d]", list, i) }

// resolve follows an alias to the node that it stands for, which is never an alias itself.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

// fail makes an error about the value at path.
func (p *parser) fail(path, cause, remedy string) error {
	return p.refuse(p.origins[path].line, path, cause, remedy)
}

func (p *parser) refuse(line int, path, cause, remedy string) error {
	return &Error{Source: p.source, Line: line, Field: path, Cause: cause, Remedy: remedy}
}

var syntaxError = regexp.MustCompile(`(?s)^(?:yaml: )?(?:line (\d+): )?(.*)$`)

// syntax adds the line to yaml.v3's message. It can be the line before the fault: yaml.v3's
// parser counts lines from 0, its scanner from 1.
func (p *parser) syntax(err error) error {
	m := syntaxError.FindStringSubmatch(err.Error())
	line, _ := strconv.Atoi(m[1]) // 0 if there is none
	return p.refuse(line, "", "this is not YAML: "+m[2], "look at this line and those after it: indentation, brackets, quotes")
}

var typeError = regexp.MustCompile("(?s)^line (\\d+): (?:field (.*) not found in type .*|mapping key (\".*\") already defined at line (\\d+)|cannot unmarshal (!!\\S+)(?: `(.*)`)? into (.*))$")

// mistake says in the user's terms what the decoder says in Go's types, and adds the field. If
// several on the same line could be meant, it names none.
func (p *parser) mistake(text string) error {
	m := typeError.FindStringSubmatch(text)
	if m == nil {
		return p.fail("", text, fieldsRemedy)
	}
	line, _ := strconv.Atoi(m[1])
	name, twice, first, tag, value, into := m[2], m[3], m[4], m[5], m[6], m[7]
	cause := fmt.Sprintf("unknown field %q", name)
	switch {
	case twice != "":
		cause = "given twice, first on line " + first
	case strings.HasPrefix(into, "[]"):
		cause = "expected a list, found " + kindOf(tag, value)
	case strings.HasPrefix(into, "struct"), strings.HasPrefix(into, "map"):
		cause = "expected fields, found " + kindOf(tag, value)
	case tag != "":
		cause = "expected a plain value, found " + kindOf(tag, value)
	}
	var paths []string
	for _, f := range p.fields {
		at := resolve(f.value)
		switch {
		case tag != "" && at.Line == line && at.ShortTag() == tag && strings.HasPrefix(at.Value, strings.TrimSuffix(value, "...")):
			// The innermost one is meant: those around it hold fields, as they should.
			paths = append(slices.DeleteFunc(paths, func(outer string) bool { return strings.HasPrefix(f.path, outer+".") }), f.path)
		case tag == "" && twice == "" && f.key.Line == line && f.key.Value == name:
			paths = append(paths, f.section)
		case twice != "" && f.key.Line == line && strconv.Quote(f.key.Value) == twice:
			paths = append(paths, f.path)
		}
	}
	if paths = slices.Compact(paths); len(paths) != 1 {
		paths = []string{""}
	}
	return p.refuse(line, paths[0], cause, fieldsRemedy)
}

func kindOf(tag, value string) string {
	switch tag {
	case "!!map":
		return "fields"
	case "!!seq":
		return "a list"
	}
	return fmt.Sprintf("the value %q", value)
}
