package main

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
)

const (
	headLen    = 16        // of a payload
	maxPayload = 100 << 10 // bytes
	magic      = 0x50a4    // tells a payload's head from other bytes
)

// A payload is a body that describes itself. Its receiver can tell whether it
// is whole without the header of the message, because the server of HTTP/2 does
// not decode headers.
type payload struct {
	id   uint64
	size int  // in bytes, headLen at least
	once bool // it must not arrive twice
}

// filling has the content of payloads after their heads.
var filling = newFilling()

func newFilling() []byte {
	b := make([]byte, 2*maxPayload)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(b) // never fails
	return b
}

// rest is the content after the head. It depends on the id, so that bytes of
// another payload are noticed.
func (p payload) rest() []byte {
	from := int(p.id % maxPayload)
	return filling[from : from+p.size-headLen]
}

func (p payload) bytes() []byte {
	once := uint16(0)
	if p.once {
		once = 1
	}
	b := make([]byte, 0, p.size)
	b = binary.BigEndian.AppendUint64(b, p.id)
	b = binary.BigEndian.AppendUint32(b, uint32(p.size))
	b = binary.BigEndian.AppendUint16(b, magic)
	b = binary.BigEndian.AppendUint16(b, once)
	return append(b, p.rest()...)
}

// parseHead returns the payload that begins with head, of which headLen bytes
// are there. ok reports whether it is one.
func parseHead(head []byte) (p payload, ok bool) {
	size, once := binary.BigEndian.Uint32(head[8:]), binary.BigEndian.Uint16(head[14:])
	p = payload{binary.BigEndian.Uint64(head), int(size), once == 1}
	return p, binary.BigEndian.Uint16(head[12:]) == magic && once <= 1 && size >= headLen && size <= maxPayload
}

// parse returns the payload that b is. ok reports whether b is a whole one.
func parse(b []byte) (p payload, ok bool) {
	if len(b) < headLen {
		return payload{}, false
	}
	p, ok = parseHead(b)
	return p, ok && len(b) == p.size && bytes.Equal(b[headLen:], p.rest())
}
