package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

const (
	// messageMagic begins every message. No text begins with a zero byte.
	messageMagic = "\x00cuc"
	// maxMessage is the size of the largest message, in bytes.
	maxMessage = 4 << 20
	// maxKind is the length of the longest kind of message.
	maxKind = 64
	// bannerShown is how much of what is not a message is shown, in bytes.
	bannerShown = 160
)

// encodeMessage returns a frame: magic, length (4 bytes, big-endian), JSON.
func encodeMessage(kind string, body any) ([]byte, error) {
	m := Message{Kind: kind}
	var err error
	if body != nil {
		if m.Body, err = json.Marshal(body); err != nil {
			return nil, fmt.Errorf("control: the message %.40q: %w", kind, err)
		}
	}
	data, err := json.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("control: the message %.40q: %w", kind, err)
	}
	if len(kind) > maxKind || len(data) > maxMessage {
		return nil, fmt.Errorf("control: the message %.40q has %d bytes, and %d are allowed", kind, len(data), maxMessage)
	}
	frame := make([]byte, 0, len(messageMagic)+4+len(data))
	frame = append(frame, messageMagic...)
	frame = binary.BigEndian.AppendUint32(frame, uint32(len(data)))
	return append(frame, data...), nil
}

// readMessage reads a frame. first says that none was read before.
func readMessage(r *bufio.Reader, first bool) (Message, error) {
	if err := readMagic(r, first); err != nil {
		return Message{}, err
	}
	var length [4]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return Message{}, cutOff(err)
	}
	size := binary.BigEndian.Uint32(length[:])
	if size == 0 || size > maxMessage {
		return Message{}, fmt.Errorf("control: a message of %d bytes was announced, and %d are allowed", size, maxMessage)
	}
	// The buffer grows with what comes, not with what is announced.
	var data bytes.Buffer
	if _, err := io.CopyN(&data, r, int64(size)); err != nil {
		return Message{}, cutOff(err)
	}
	return parseMessage(data.Bytes())
}

// cutOff is the error of a stream that ends in the middle of a message.
func cutOff(err error) error {
	return fmt.Errorf("%w in the middle of a message: %w", ErrClosed, err)
}

// readMagic looks at each byte as it comes: what is not a message may be shorter than the magic.
func readMagic(r *bufio.Reader, first bool) error {
	for i := range len(messageMagic) {
		begin, err := r.Peek(i + 1)
		switch {
		case len(begin) > i && begin[i] == messageMagic[i]:
			continue
		case len(begin) > i:
			return notAMessage(r, first)
		case i > 0:
			return cutOff(err)
		case errors.Is(err, io.EOF):
			return ErrClosed
		default:
			return fmt.Errorf("%w: %w", ErrClosed, err)
		}
	}
	_, err := r.Discard(len(messageMagic))
	return err
}

// notAMessage is the error that shows what came instead of a message.
func notAMessage(r *bufio.Reader, first bool) error {
	shown, _ := r.Peek(min(r.Buffered(), bannerShown))
	if !first {
		return fmt.Errorf("control: between two messages came %+q: the connection is damaged, or something else writes to it", shown)
	}
	return fmt.Errorf("control: instead of cucriu, %+q came from the other host: a remote shell must print nothing for non-interactive commands; "+
		"look at its ~/.bashrc and /etc/profile.d until `ssh HOST true` prints nothing, and whether the remote command is cucriu", shown)
}

// parseMessage reads the JSON of a message.
func parseMessage(data []byte) (Message, error) {
	if err := refuseDuplicates(data); err != nil {
		return Message{}, fmt.Errorf("control: a message that cannot be read: %w", err)
	}
	// A struct would take "Kind" for "kind", too.
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return Message{}, fmt.Errorf("control: a message that cannot be read: %w", err)
	}
	m := Message{Body: fields["body"]}
	if err := json.Unmarshal(fields["kind"], &m.Kind); err != nil {
		return Message{}, fmt.Errorf("control: a message that cannot be read: its kind: %w", err)
	}
	if m.Kind == "" || len(m.Kind) > maxKind {
		return Message{}, fmt.Errorf("control: a message of the kind %.40q", m.Kind)
	}
	return m, nil
}

// refuseDuplicates refuses an object that has two fields of one name. encoding/json takes the
// last, others the first.
func refuseDuplicates(data []byte) error {
	type level struct {
		fields map[string]struct{} // nil in an array
		key    bool                // the next token is a name
	}
	var levels []level
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return nil // json.Unmarshal finds what is missing
		} else if err != nil {
			return err
		}
		var inside *level
		if len(levels) > 0 {
			inside = &levels[len(levels)-1]
		}
		if name, ok := token.(string); ok && inside != nil && inside.key {
			if _, twice := inside.fields[name]; twice {
				return fmt.Errorf("the field %.40q is there twice", name)
			}
			inside.fields[name] = struct{}{}
			inside.key = false
			continue
		}
		if token == json.Delim('}') || token == json.Delim(']') {
			levels = levels[:len(levels)-1]
			continue
		}
		if inside != nil {
			inside.key = inside.fields != nil
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{fields: make(map[string]struct{}), key: true})
		case json.Delim('['):
			levels = append(levels, level{})
		}
	}
}
