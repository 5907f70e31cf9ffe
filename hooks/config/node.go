package config

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"gopkg.in/yaml.v3"

	"cucriu/hooks/gpumap"
)

// The file is read as a tree of nodes and not decoded into structures. That way every value
// keeps its line. yaml.v3's KnownFields has gaps (it lets a null key pass, and anything below a
// custom unmarshaler), and it names Go's types in its errors. The walk goes only as deep as the
// fields here, so an alias that contains itself ends as a value of the wrong kind.

// field is one known field of a mapping, with the function that reads its value.
type field struct {
	name string
	read func(p *parser, path string, value *yaml.Node) error
}

// mapping reads the fields of n. A field that is absent or empty ("timeout:") keeps the value
// that it had before.
func (p *parser) mapping(path string, n *yaml.Node, fields ...field) error {
	n = resolve(n)
	if n.Kind != yaml.MappingNode {
		return p.fail(n, path, "expected fields, found "+kindOf(n), "write "+fieldNames(fields)+", each followed by a colon and its value")
	}
	seen := make(map[string]int)
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		if key.Kind != yaml.ScalarNode {
			return p.fail(key, path, "the name of a field is "+kindOf(key), "known here: "+fieldNames(fields))
		}
		if first, twice := seen[key.Value]; twice {
			return p.fail(key, join(path, key.Value), fmt.Sprintf("given twice, first on line %d", first), "remove one of them")
		}
		seen[key.Value] = key.Line
		known := find(fields, key.Value)
		if known == nil {
			return p.fail(key, path, fmt.Sprintf("unknown field %q", key.Value), "known here: "+fieldNames(fields))
		}
		below := join(path, key.Value)
		p.origins[below] = origin{p.source, key.Line}
		if isNull(value) {
			continue
		}
		if err := known.read(p, below, value); err != nil {
			return err
		}
	}
	return nil
}

func find(fields []field, name string) *field {
	for i := range fields {
		if fields[i].name == name {
			return &fields[i]
		}
	}
	return nil
}

func fieldNames(fields []field) string {
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.name
	}
	return strings.Join(names, ", ")
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

// section makes a field that holds fields.
func section(name string, fields ...field) field {
	return field{name, func(p *parser, path string, n *yaml.Node) error { return p.mapping(path, n, fields...) }}
}

// scalar makes a field that holds one value and passes it to set.
func scalar(name, remedy string, set func(text string) error) field {
	return field{name, func(p *parser, path string, n *yaml.Node) error {
		n = resolve(n)
		if n.Kind != yaml.ScalarNode || n.Style&yaml.TaggedStyle != 0 {
			return p.fail(n, path, "expected a plain value, found "+kindOf(n), remedy)
		}
		if err := set(n.Value); err != nil {
			return p.fail(n, path, err.Error(), remedy)
		}
		return nil
	}}
}

func text(name string, target *string) field {
	return scalar(name, "write a text", func(value string) error {
		*target = value
		return nil
	})
}

func duration(name string, target *time.Duration) field {
	return scalar(name, "write a number and its unit, such as 500ms, 10s or 2m", func(value string) error {
		d, err := time.ParseDuration(value)
		if err != nil {
			return fmt.Errorf("%q is not a duration", value)
		}
		*target = d
		return nil
	})
}

func boolean(name string, target *bool) field {
	return scalar(name, "write true or false", func(value string) error {
		if value != "true" && value != "false" {
			return fmt.Errorf("%q is neither true nor false", value)
		}
		*target = value == "true"
		return nil
	})
}

func index(name string, target *gpumap.Selector) field {
	return scalar(name, "write a position, counted from 0", func(value string) error {
		i, err := strconv.Atoi(value)
		if err != nil {
			return fmt.Errorf("%q is not a whole number", value)
		}
		target.Index = &i
		return nil
	})
}

// fail makes an error about the value at n.
func (p *parser) fail(n *yaml.Node, path, cause, remedy string) error {
	return &Error{Source: p.source, Line: n.Line, Field: path, Cause: cause, Remedy: remedy}
}

// resolve follows an alias to the node that it stands for, which is never an alias itself.
func resolve(n *yaml.Node) *yaml.Node {
	if n.Kind == yaml.AliasNode && n.Alias != nil {
		return n.Alias
	}
	return n
}

func isNull(n *yaml.Node) bool {
	n = resolve(n)
	return n.Kind == yaml.ScalarNode && n.Style&yaml.TaggedStyle == 0 && n.ShortTag() == "!!null"
}

func kindOf(n *yaml.Node) string {
	switch {
	case isNull(n):
		return "nothing"
	case n.Kind == yaml.MappingNode:
		return "fields"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.Kind == yaml.ScalarNode && n.Style&yaml.TaggedStyle != 0:
		return "a value with the tag " + n.Tag
	case n.Kind == yaml.ScalarNode:
		return fmt.Sprintf("the value %q", n.Value)
	}
	return "an alias"
}
