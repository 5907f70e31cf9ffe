package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// word stands for a value of an option.
type word[T any] struct {
	text  string
	value T
}

// choice is an option that is one of several words.
type choice[T comparable] struct {
	to    *T
	words []word[T]
}

// choose adds such an option to a command. The first word is what it is if it is not given.
func choose[T comparable](cmd *cobra.Command, to *T, name, usage string, words ...word[T]) {
	*to = words[0].value
	c := choice[T]{to, words}
	cmd.Flags().Var(c, name, usage)
	// It fails only for an option that does not exist.
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.texts(), cobra.ShellCompDirectiveNoFileComp))
}

func (c choice[T]) texts() []string {
	var texts []string
	for _, w := range c.words {
		texts = append(texts, w.text)
	}
	return texts
}

// Set implements pflag's Value.
func (c choice[T]) Set(text string) error {
	at := slices.IndexFunc(c.words, func(w word[T]) bool { return w.text == text })
	if at < 0 {
		return fmt.Errorf("want one of %s", strings.Join(c.texts(), ", "))
	}
	*c.to = c.words[at].value
	return nil
}

// String implements pflag's Value.
func (c choice[T]) String() string {
	at := slices.IndexFunc(c.words, func(w word[T]) bool { return w.value == *c.to })
	if at < 0 {
		return ""
	}
	return c.words[at].text
}

// Type implements pflag's Value.
func (c choice[T]) Type() string { return "word" }
