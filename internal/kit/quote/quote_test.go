package quote

import "testing"

func TestNothingUnprintableIsLeft(t *testing.T) {
	for text, want := range map[string]struct{ name, line, lines string }{
		"/data/a b.txt":      {"/data/a b.txt", "/data/a b.txt", "/data/a b.txt"},
		"/données/文":         {"/données/文", "/données/文", "/données/文"},
		"a\x1b[2Jb":          {`"a\x1b[2Jb"`, `a\x1b[2Jb`, `a\x1b[2Jb`},
		"one\ntwo":           {`"one\ntwo"`, `one\ntwo`, "one\ntwo"},
		"\tindented":         {`"\tindented"`, `\tindented`, "\tindented"},
		"no\xffUTF-8":        {`"no\xffUTF-8"`, `no\xffUTF-8`, `no\xffUTF-8`},
		"\ufffd":             {"\ufffd", "\ufffd", "\ufffd"},
		"right\u202eto left": {`"right\u202eto left"`, `right\u202eto left`, `right\u202eto left`},
		`say "it"`:           {`"say \"it\""`, `say "it"`, `say "it"`},
		"\u009b31m\x7f\r":    {`"\u009b31m\x7f\r"`, `\u009b31m\x7f\r`, `\u009b31m\x7f\r`},
	} {
		if got := Name(text); got != want.name {
			t.Errorf("Name(%q) = %s, want %s", text, got, want.name)
		}
		if got := Line(text); got != want.line {
			t.Errorf("Line(%q) = %s, want %s", text, got, want.line)
		}
		if got := Lines(text); got != want.lines {
			t.Errorf("Lines(%q) = %s, want %s", text, got, want.lines)
		}
	}
}

func TestNamesSayHowManyMoreThereAre(t *testing.T) {
	nine := []string{"1", "2", "3", "4", "5", "6", "7", "8", "9"}
	for want, names := range map[string][]string{
		"": nil, "1, 2": nine[:2], "1, 2, 3, 4, 5, 6, 7, 8": nine[:8], "1, 2, 3, 4, 5, 6, 7, 8, and 1 more": nine,
		`a, "b\n"`: {"a", "b\n"},
	} {
		if got := Names(names); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
