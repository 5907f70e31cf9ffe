package hooks

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
		{"a refusal", fmt.Errorf("job 1: %w", refused(plain)), true},
		{"a refusal beside a failure", errors.Join(refused(plain), plain), true},
		{"findings after something was touched", touched(findings), false},
		{"a refusal after something was touched", fmt.Errorf("of two jobs: %w", touched(refused(plain))), false},
		{"beside another that comes later", errors.Join(touched(plain), findings), false},
		{"nothing refused", refused(nil), false},
		{"nothing touched", touched(nil), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := Refused(test.err); got != test.want {
				t.Errorf("Refused(%v) = %v", test.err, got)
			}
		})
	}
	if err := refused(plain); err.Error() != plain.Error() || !errors.Is(err, plain) {
		t.Errorf("a refusal hides its cause: %v", err)
	}
}
