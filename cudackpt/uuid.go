package cudackpt

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
)

// UUID identifies one GPU, on any host. The zero UUID identifies none.
type UUID [16]byte

// uuidHyphens are the positions of the hyphens in the 8-4-4-4-12 form.
var uuidHyphens = [...]int{8, 13, 18, 23}

// ParseUUID reads a GPU's UUID as nvidia-smi, NVML and /proc/driver/nvidia print it
// ("GPU-5a3c…"), in upper or lower case. The prefix and the hyphens may be missing. It refuses
// a MIG instance ("MIG-…") by name, because the driver cannot checkpoint processes that use
// one.
func ParseUUID(text string) (UUID, error) {
	if len(text) >= 4 && strings.EqualFold(text[:4], "MIG-") {
		return UUID{}, fmt.Errorf("%w: %q names a MIG instance: the driver cannot checkpoint processes that use MIG; name a whole GPU (nvidia-smi -L)", ErrInvalidArgument, text)
	}
	digits := text
	if len(digits) >= 4 && strings.EqualFold(digits[:4], "GPU-") {
		digits = digits[4:]
	}
	var u UUID
	switch len(digits) {
	case 36:
		for _, at := range uuidHyphens {
			if digits[at] != '-' {
				return UUID{}, uuidError(text)
			}
		}
		digits = digits[:8] + digits[9:13] + digits[14:18] + digits[19:23] + digits[24:]
	case 32:
	default:
		return UUID{}, uuidError(text)
	}
	if _, err := hex.Decode(u[:], []byte(digits)); err != nil {
		return UUID{}, uuidError(text)
	}
	return u, nil
}

func uuidError(text string) error {
	return fmt.Errorf("%w: %q is not the UUID of a GPU: want GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx, as nvidia-smi -L prints it", ErrInvalidArgument, text)
}

// String returns the UUID as nvidia-smi prints it, with "GPU-" and in lower case.
func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
}

// IsZero reports whether u identifies no GPU.
func (u UUID) IsZero() bool { return u == UUID{} }

// Compare orders UUIDs by their bytes, for use with slices.SortFunc.
func (u UUID) Compare(other UUID) int { return bytes.Compare(u[:], other[:]) }

// MarshalText returns the form of String.
func (u UUID) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

// UnmarshalText reads every form that ParseUUID reads.
func (u *UUID) UnmarshalText(text []byte) error {
	parsed, err := ParseUUID(string(text))
	if err != nil {
		return err
	}
	*u = parsed
	return nil
}
