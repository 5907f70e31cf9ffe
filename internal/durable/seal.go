package durable

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
)

// Castagnoli is the polynomial of all our checksums of files.
var Castagnoli = crc32.MakeTable(crc32.Castagnoli)

// A sealed value is JSON with a version and a checksum of its own: nothing else would show that, for
// example, a time in it is damaged. The checksum is that of the value's compact form.

// Seal returns the text of a sealed value, which has a name in it.
func Seal(name string, version int, value any) ([]byte, error) {
	inner, err := json.Marshal(value)
	if err != nil {
		return nil, err
	}
	return json.MarshalIndent(map[string]any{
		"version": version, "crc32c": crc32.Checksum(inner, Castagnoli), name: json.RawMessage(inner),
	}, "", "\t")
}

// Unseal reads a sealed value that has no unknown fields, and returns the checksum in it.
func Unseal(data []byte, name string, version int, value any) (uint32, error) {
	var outer map[string]json.RawMessage
	var sum uint32
	var found int
	err := decode(data, &outer, false)
	if err == nil {
		err = decode(outer["version"], &found, false)
	}
	if err == nil && found != version {
		return 0, fmt.Errorf("of version %d, but this cucriu reads version %d", found, version)
	}
	if err == nil {
		err = decode(outer["crc32c"], &sum, false)
	}
	var compact bytes.Buffer
	if err == nil {
		err = json.Compact(&compact, outer[name])
	}
	if err == nil && crc32.Checksum(compact.Bytes(), Castagnoli) != sum {
		err = errors.New("checksum mismatch")
	}
	if err == nil {
		err = decode(outer[name], value, true)
	}
	if err != nil {
		return 0, fmt.Errorf("damaged: %w", err)
	}
	return sum, nil
}

func decode(data []byte, value any, strict bool) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	if strict {
		decoder.DisallowUnknownFields()
	}
	if err := decoder.Decode(value); err != nil {
		return err
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return errors.New("trailing data")
	}
	return nil
}
