package resume

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
)

// RFC 9110 section 14.4.
func TestParseContentRange(t *testing.T) {
	for _, tt := range []struct {
		value string
		want  byteRange
		ok    bool
	}{
		{"bytes 42-1233/1234", byteRange{42, 1233, 1234}, true},
		{"Bytes 42-1233/1234", byteRange{42, 1233, 1234}, true},
		{"bytes 42-1233/*", byteRange{42, 1233, -1}, true},
		{"bytes 0-0/1", byteRange{0, 0, 1}, true},
		{"bytes 007-8/10", byteRange{7, 8, 10}, true},
		{"bytes 0-922337203685477579/922337203685477580",
			byteRange{0, 922337203685477579, 922337203685477580}, true},
		{"bytes 0-9223372036854775799/*", byteRange{0, 9223372036854775799, -1}, true},
		{"bytes 0-0/0", byteRange{}, false},
		{"bytes */1234", byteRange{}, false},
		{"bytes */*", byteRange{}, false},
		{"bytes 5-4/10", byteRange{}, false},
		{"bytes 5-10/10", byteRange{}, false},
		{"bytes 5-/10", byteRange{}, false},
		{"bytes -5/10", byteRange{}, false},
		{"bytes 5-6", byteRange{}, false},
		{"bytes 5-6/", byteRange{}, false},
		{"bytes 5-6/7/8", byteRange{}, false},
		{"bytes 5-6-7/8", byteRange{}, false},
		{"bytes=5-6/7", byteRange{}, false},
		{"bytes  5-6/7", byteRange{}, false},
		{" bytes 5-6/7", byteRange{}, false},
		{"bytes 5-6/7 ", byteRange{}, false},
		{"bytes 5 - 6/7", byteRange{}, false},
		{"bytes +5-6/7", byteRange{}, false},
		{"bytes 5-6/0x7", byteRange{}, false},
		{"bytes 5_0-60/70", byteRange{}, false},
		{"bytes 0-9223372036854775806/9223372036854775807", byteRange{}, false},
		{"bytes 0-99999999999999999999/*", byteRange{}, false},
		{"bytes 5-6/7, bytes 8-9/10", byteRange{}, false},
		{"lines 5-6/7", byteRange{}, false},
		{"5-6/7", byteRange{}, false},
		{"", byteRange{}, false},
	} {
		got, ok := parseContentRange(tt.value)
		assert.Equal(t, tt.ok, ok, tt.value)
		assert.Equal(t, tt.want, got, tt.value)
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
