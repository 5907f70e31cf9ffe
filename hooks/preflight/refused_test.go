package preflight

import (
	"errors"
	"fmt"
	"testing"
)

func TestRefused(t *testing.T) {
	plain := errors.New("no such process")
	findings := Findings{{Name: FindingForkedChild, Severity: SeverityError, Message: "a child"}}.Err()
	for _, test := range []struct {
		name string
		err  error
		want bool
	}{
		{"no error", nil, false},
		{"an error that says nothing of it", plain, false},
		{"findings", findings, true},
		{"wrapped findings", fmt.Errorf("job 1: %w", findings), true},
		{"a refusal", fmt.Errorf("job 1: %w", AsRefusal(plain)), true},
		{"a refusal beside a failure", errors.Join(AsRefusal(plain), plain), true},
		{"findings after something was touched", AsFailure(findings), false},
		{"a refusal after something was touched", fmt.Errorf("of two jobs: %w", AsFailure(AsRefusal(plain))), false},
		{"beside another that comes later", errors.Join(AsFailure(plain), findings), false},
		{"nothing refused", AsRefusal(nil), false},
		{"nothing touched", AsFailure(nil), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Refused(test.err); got != test.want {
				t.Errorf("Refused(%v) = %v", test.err, got)
			}
		})
	}
	if err := AsRefusal(plain); err.Error() != plain.Error() || !errors.Is(err, plain) {
		t.Errorf("a refusal hides its cause: %v", err)
	}
}
