package retryafter

import (
	"strings"
	"unicode/utf8"
)

// A scanner parses a List of Items (RFC 9651 section 4.2). An Inner List, which
// a RateLimit field does not have, is an error. Each method removes what it
// parses from the beginning of rest, and reports whether that is valid.
type scanner struct{ rest string }

// bareItem is a bare item. Of other types than an Integer, only the syntax
// matters.
type bareItem struct {
	isInteger bool
	integer   int64
}

// item parses an Item, and returns its parameters r and t.
func (s *scanner) item() (r, t bareItem, ok bool) {
	_, ok = s.bareItem()
	for ok && s.take(';') {
		s.span(isSpace)
		var key string
		if key, ok = s.key(); !ok {
			break
		}
		var value bareItem // a Boolean, if it is missing
		if s.take('=') {
			value, ok = s.bareItem()
		}
		// If a parameter is repeated, its last value counts (RFC 9651 section
		// 4.2.3.2).
		switch key {
		case "r":
			r = value
		case "t":
			t = value
		}
	}
	return r, t, ok
}

// comma parses what is between two items.
func (s *scanner) comma() (ok bool) {
	s.span(isBlank)
	ok = s.take(',')
	s.span(isBlank)
	return ok && s.rest != ""
}

func (s *scanner) key() (key string, ok bool) {
	if c := s.peek(); c != '*' && !isLower(c) {
		return "", false
	}
	return s.span(isKey), true
}

func (s *scanner) bareItem() (item bareItem, ok bool) {
	switch c := s.peek(); {
	case c == '-' || isDigit(c):
		return s.number()
	case c == '"':
		return item, s.text()
	case c == '*' || isAlpha(c):
		return item, s.span(isToken) != ""
	case c == ':':
		return item, s.bytes()
	case c == '?':
		return item, s.take('?') && (s.take('0') || s.take('1'))
	case c == '@':
		s.next()
		date, ok := s.number()
		return item, ok && date.isInteger
	case c == '%':
		return item, s.displayText()
	}
	return item, false
}

// number parses an Integer or a Decimal.
func (s *scanner) number() (item bareItem, ok bool) {
	negative := s.take('-')
	digits := s.span(isDigit)
	if s.take('.') {
		places := len(s.span(isDigit))
		return item, 1 <= len(digits) && len(digits) <= 12 && 1 <= places && places <= 3
	}
	n, ok := parseNumber(digits)
	if negative {
		n.whole = -n.whole
	}
	return bareItem{isInteger: true, integer: n.whole}, ok && len(digits) <= 15
}

// text parses a String.
func (s *scanner) text() (ok bool) {
	s.next()
	for s.rest != "" {
		switch c := s.next(); {
		case c == '"':
			return true
		case c == '\\':
			if !s.take('"') && !s.take('\\') {
				return false
			}
		case !isPrintable(c):
			return false
		}
	}
	return false
}

// displayText parses a Display String.
func (s *scanner) displayText() (ok bool) {
	s.next()
	if !s.take('"') {
		return false
	}
	const digits = "0123456789abcdef"
	var text []byte
	for s.rest != "" {
		c := s.next()
		switch {
		case c == '"':
			return utf8.Valid(text)
		case c == '%':
			high := strings.IndexByte(digits, s.next())
			low := strings.IndexByte(digits, s.next())
			if high < 0 || low < 0 {
				return false
			}
			c = byte(high<<4 | low)
		case !isPrintable(c):
			return false
		}
		text = append(text, c)
	}
	return false
}

// bytes parses a Byte Sequence, whose padding may be missing.
func (s *scanner) bytes() (ok bool) {
	s.next()
	missing := -len(s.span(isBase64)) & 3 // of four characters
	padding := len(s.span(func(c byte) bool { return c == '=' }))
	return s.take(':') && missing < 3 && (padding == 0 || padding == missing)
}

// peek returns the next byte, or 0 at the end, which no item has.
func (s *scanner) peek() byte {
	if s.rest == "" {
		return 0
	}
	return s.rest[0]
}

// next removes the next byte. At the end, it returns 0.
func (s *scanner) next() byte {
	c := s.peek()
	s.rest = s.rest[min(1, len(s.rest)):]
	return c
}

// take removes c if it is the next byte.
func (s *scanner) take(c byte) bool {
	if s.rest == "" || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// span removes the bytes until the first that is not of a class.
func (s *scanner) span(class func(byte) bool) string {
	n := 0
	for n < len(s.rest) && class(s.rest[n]) {
		n++
	}
	before := s.rest[:n]
	s.rest = s.rest[n:]
	return before
}

func isSpace(c byte) bool     { return c == ' ' }
func isBlank(c byte) bool     { return c == ' ' || c == '\t' }
func isPrintable(c byte) bool { return ' ' <= c && c <= '~' }
func isLower(c byte) bool     { return 'a' <= c && c <= 'z' }
func isAlpha(c byte) bool     { return isLower(c) || 'A' <= c && c <= 'Z' }

func isKey(c byte) bool {
	return isLower(c) || isDigit(c) || strings.IndexByte("_-.*", c) >= 0
}

func isBase64(c byte) bool {
	return isAlpha(c) || isDigit(c) || c == '+' || c == '/'
}

func isToken(c byte) bool {
	return isAlpha(c) || isDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
}
