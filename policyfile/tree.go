package policyfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"unicode/utf8"
)

// A node is a JSON value and its position.
type node struct {
	offset  int
	kind    byte     // '{', '[', '"', '0', 't' for true and false, or 'n' for null
	text    string   // of a string, the value; of a number, its digits; of true and false, the name
	members []member // of an object
	items   []*node  // of an array
}

// A member is a field of an object.
type member struct {
	offset int
	name   string
	value  *node
}

// String returns a short text of n for errors.
func (n *node) String() string {
	switch n.kind {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return quote(n.text)
	}
	if len(n.text) > maxQuoted {
		return n.text[:maxQuoted] + "..."
	}
	return n.text
}

// maxQuoted bounds the values in errors, so that the size of all errors
// together is at most proportional to that of the file.
const maxQuoted = 80

// quote quotes the beginning of s.
func quote(s string) string {
	if len(s) <= maxQuoted {
		return strconv.Quote(s)
	}
	end := maxQuoted
	for !utf8.RuneStart(s[end]) {
		end--
	}
	return strconv.Quote(s[:end]) + "..."
}

// A syntaxError is a text that is not JSON.
type syntaxError struct {
	offset int
	text   string
}

func (e *syntaxError) Error() string { return e.text }

// readTree reads a JSON text. Its errors are of the type *syntaxError.
func readTree(data []byte) (*node, error) {
	if bytes.HasPrefix(data, []byte("\ufeff")) {
		return nil, &syntaxError{0, "a byte order mark: want JSON without one"}
	}
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		// encoding/json would replace it by U+FFFD.
		if r == utf8.RuneError && size == 1 {
			return nil, &syntaxError{i, fmt.Sprintf("byte 0x%02x: want UTF-8", data[i])}
		}
		i += size
	}
	// Unmarshal rejects text after the value, and more than 10,000 levels. The
	// tokens of a Decoder can have both.
	var all json.RawMessage
	if err := json.Unmarshal(data, &all); err != nil {
		offset := len(data) // of an unexpected end
		if e, ok := errors.AsType[*json.SyntaxError](err); ok && int(e.Offset) <= len(data) &&
			e.Error() != "unexpected end of JSON input" {
			offset = max(0, int(e.Offset)-1) // Offset counts the byte that is wrong
		}
		return nil, &syntaxError{offset, err.Error() + ": want JSON"}
	}
	r := treeReader{data: data, decoder: json.NewDecoder(bytes.NewReader(data))}
	r.decoder.UseNumber() // for the digits of large integers
	return r.node(), nil
}

// A treeReader makes a tree of the tokens of a text that is known to be JSON,
// and so to have a depth of at most 10,000.
type treeReader struct {
	data    []byte
	decoder *json.Decoder
}

// next returns the next token and its offset. The decoder knows only the end of
// the token before.
func (r *treeReader) next() (json.Token, int) {
	offset := int(r.decoder.InputOffset())
	for bytes.IndexByte([]byte(" \t\r\n,:"), r.data[offset]) >= 0 {
		offset++
	}
	token, err := r.decoder.Token()
	if err != nil {
		panic(err) // the text is JSON, and has another token
	}
	return token, offset
}

func (r *treeReader) node() *node {
	token, offset := r.next()
	n := &node{offset: offset}
	switch token := token.(type) {
	case json.Delim:
		n.kind = byte(token)
		r.readInto(n)
	case string:
		n.kind, n.text = '"', token
	case json.Number:
		n.kind, n.text = '0', token.String()
	case bool:
		n.kind, n.text = 't', strconv.FormatBool(token)
	case nil:
		n.kind, n.text = 'n', "null"
	}
	return n
}

// readInto reads the rest of n, an object or an array.
func (r *treeReader) readInto(n *node) {
	for r.decoder.More() {
		if n.kind == '[' {
			n.items = append(n.items, r.node())
			continue
		}
		name, offset := r.next()
		// A member may repeat another one, which reading.members reports.
		n.members = append(n.members, member{offset, name.(string), r.node()})
	}
	r.next()
}
