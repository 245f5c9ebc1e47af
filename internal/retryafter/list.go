package retryafter

import (
	"strconv"
	"strings"
)

// A scanner parses a List of Items (RFC 9651 section 4.2). An Inner List, a Date
// and a Display String, which a RateLimit field does not have, are errors. Each
// method removes what it parses from the beginning of rest, and reports whether
// that is valid.
type scanner struct{ rest string }

// bareItem is a bare item. Of other types than an Integer, only the syntax
// matters.
type bareItem struct {
	isInteger bool
	integer   int64
}

const (
	digits = "0123456789"
	lower  = "abcdefghijklmnopqrstuvwxyz"
	alpha  = lower + "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
)

// item parses an Item, and returns its parameters r and t.
func (s *scanner) item() (r, t bareItem, ok bool) {
	_, ok = s.bareItem()
	for ok && s.take(';') {
		s.span(" ")
		if !s.at(lower + "*") {
			return r, t, false
		}
		key := s.span(lower + digits + "_-.*")
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
	s.span(" \t")
	ok = s.take(',')
	s.span(" \t")
	return ok && s.rest != ""
}

func (s *scanner) bareItem() (item bareItem, ok bool) {
	switch {
	case s.at("-" + digits):
		return s.number()
	case s.take('"'):
		return item, s.text()
	case s.take(':'):
		return item, s.bytes()
	case s.take('?'): // a Boolean
		return item, s.take('0') || s.take('1')
	}
	return item, s.at(alpha+"*") && s.span(alpha+digits+"!#$%&'*+-.^_`|~:/") != "" // a Token
}

// number parses an Integer or a Decimal.
func (s *scanner) number() (item bareItem, ok bool) {
	negative := s.take('-')
	whole := s.span(digits)
	if s.take('.') {
		places := len(s.span(digits))
		return item, 1 <= len(whole) && len(whole) <= 12 && 1 <= places && places <= 3
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if negative {
		n = -n
	}
	return bareItem{isInteger: true, integer: n}, err == nil && len(whole) <= 15
}

// text parses a String after its first quotation mark.
func (s *scanner) text() (ok bool) {
	for s.rest != "" {
		switch c := s.rest[0]; {
		case s.take('"'):
			return true
		case c < ' ' || '~' < c:
			return false
		case s.take('\\'):
			if !s.at(`"\`) {
				return false
			}
		}
		s.rest = s.rest[1:]
	}
	return false
}

// bytes parses a Byte Sequence after its first colon. Its padding may be
// missing.
func (s *scanner) bytes() (ok bool) {
	missing := -len(s.span(alpha+digits+"+/")) & 3 // of four characters
	padding := len(s.span("="))
	return s.take(':') && missing < 3 && (padding == 0 || padding == missing)
}

// at reports whether the next byte is one of chars.
func (s *scanner) at(chars string) bool {
	return s.rest != "" && strings.IndexByte(chars, s.rest[0]) >= 0
}

// take removes c if it is the next byte.
func (s *scanner) take(c byte) bool {
	if s.rest == "" || s.rest[0] != c {
		return false
	}
	s.rest = s.rest[1:]
	return true
}

// span removes the bytes until the first that is not one of chars.
func (s *scanner) span(chars string) string {
	before := s.rest[:len(s.rest)-len(strings.TrimLeft(s.rest, chars))]
	s.rest = s.rest[len(before):]
	return before
}
