package files

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"cucriu/internal/kit/quote"
)

// name is a path. Any byte but NUL may be in it. In the list it is a string if it is valid
// UTF-8, and else an object with the bytes in base64.
type name string

type rawName struct {
	Base64 string `json:"base64"`
}

func (n name) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(n)) {
		return json.Marshal(string(n))
	}
	return json.Marshal(rawName{base64.StdEncoding.EncodeToString([]byte(n))})
}

func (n *name) UnmarshalJSON(data []byte) error {
	var text string
	if json.Unmarshal(data, &text) == nil {
		*n = name(text)
		return nil
	}
	var raw rawName
	if err := json.Unmarshal(data, &raw); err != nil {
		return err
	}
	bytes, err := base64.StdEncoding.DecodeString(raw.Base64)
	*n = name(bytes)
	return err
}

// String returns the path for a message.
func (n name) String() string { return quote.Name(n) }

// checkAbsolute refuses what is not the path of a file below the root directory.
func (n name) checkAbsolute() error {
	if !strings.HasPrefix(string(n), "/") || n == "/" || filepath.Clean(string(n)) != string(n) || strings.Contains(string(n), "\x00") {
		return fmt.Errorf("%q is not the path of a file", string(n))
	}
	return nil
}
