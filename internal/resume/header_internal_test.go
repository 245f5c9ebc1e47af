package resume

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

// RFC 9110 section 14.4.
func TestParseContentRange(t *testing.T) {
	for value, want := range map[string]byteRange{
		"bytes 42-1233/1234": {42, 1233, 1234},
		"Bytes 42-1233/1234": {42, 1233, 1234},
		"bytes 42-1233/*":    {42, 1233, -1},
		"bytes 0-0/1":        {0, 0, 1},
		"bytes 007-8/10":     {7, 8, 10},
		"bytes 0-922337203685477579/922337203685477580": {
			0, 922337203685477579, 922337203685477580},
		"bytes 0-9223372036854775799/*": {0, 9223372036854775799, -1},
	} {
		got, ok := parseContentRange(value)
		assert.True(t, ok, value)
		assert.Equal(t, want, got, value)
	}
	for _, value := range []string{
		"bytes 0-0/0", "bytes */1234", "bytes */*", "bytes 5-4/10", "bytes 5-10/10",
		"bytes 5-/10", "bytes -5/10", "bytes 5-6", "bytes 5-6/", "bytes 5-6/7/8", "bytes 5-6-7/8",
		"bytes=5-6/7", "bytes  5-6/7", " bytes 5-6/7", "bytes 5-6/7 ", "bytes 5 - 6/7",
		"bytes +5-6/7", "bytes 5-6/0x7", "bytes 5_0-60/70",
		"bytes 0-9223372036854775806/9223372036854775807", "bytes 0-99999999999999999999/*",
		"bytes 5-6/7, bytes 8-9/10", "lines 5-6/7", "5-6/7", "",
	} {
		got, ok := parseContentRange(value)
		assert.False(t, ok, value)
		assert.Zero(t, got, value)
	}
}

// A range that is accepted can be satisfied, and it has the numbers of the
// value.
func FuzzContentRange(f *testing.F) {
	for _, seed := range []string{"bytes 42-1233/1234", "bytes 0-0/*", "bytes */5", "bytes 5-4/3",
		"", "bytes 0-99999999999999999999/*"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		r, ok := parseContentRange(value)
		if !ok {
			return
		}
		assert.True(t, 0 <= r.first && r.first <= r.last && r.length() > 0, value)
		assert.True(t, r.complete == -1 || r.last < r.complete, value)
		text := fmt.Sprintf("bytes %d-%d/*", r.first, r.last)
		if r.complete >= 0 {
			text = fmt.Sprintf("bytes %d-%d/%d", r.first, r.last, r.complete)
		}
		again, ok := parseContentRange(text)
		assert.True(t, ok, text)
		assert.Equal(t, r, again, value)
	})
}

// A strong validator contains no bytes that would change the rest of a request.
func FuzzValidators(f *testing.F) {
	f.Add(`"v1"`, "", "")
	f.Add("", "Mon, 02 Jan 2006 15:04:05 GMT", "Mon, 02 Jan 2006 15:05:05 GMT")
	f.Add(`W/"v1"`, "Mon, 02 Jan 2006 15:04:05 GMT", "Mon, 02 Jan 2006 15:05:05 GMT")
	f.Fuzz(func(t *testing.T, tag, modified, date string) {
		h := http.Header{"Last-Modified": {modified}, "Date": {date}}
		if tag != "" {
			h["Etag"] = []string{tag}
		}
		etag, lastModified, missing := validators(h)
		assert.Equal(t, etag == "" && lastModified == "", missing != "")
		assert.True(t, etag == "" || lastModified == "")
		assert.True(t, etag == "" || etag == tag && etag[0] == '"')
		assert.True(t, lastModified == "" || tag == "")
		for _, c := range []byte(etag + lastModified) {
			assert.True(t, c >= ' ' && c != 0x7f, "%q", etag+lastModified)
		}
	})
}
