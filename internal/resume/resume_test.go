package resume_test

import (
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/resume"
)

const modified = "Mon, 02 Jan 2006 15:04:05 GMT"

func header(namesAndValues ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(namesAndValues); i += 2 {
		h.Add(namesAndValues[i], namesAndValues[i+1])
	}
	return h
}

func response(status int, length int64, h http.Header) *http.Response {
	return &http.Response{StatusCode: status, ContentLength: length, Header: h,
		Body: io.NopCloser(strings.NewReader(""))}
}

func request(h http.Header) *http.Request { return &http.Request{Method: "GET", Header: h} }

func TestPartOf(t *testing.T) {
	strong := func(namesAndValues ...string) http.Header {
		return header(append([]string{"ETag", `"v1"`}, namesAndValues...)...)
	}
	one := request(header("Range", "bytes=5-9"))
	for _, tt := range []struct {
		name string
		req  *http.Request
		resp *http.Response
		want resume.Obstacle
	}{
		{"200", request(nil), response(200, 10, strong()), ""},
		{"no method", &http.Request{}, response(200, 10, strong()), ""},
		{"HEAD", &http.Request{Method: "HEAD"}, response(200, 10, strong()), resume.OtherRequest},
		{"POST", &http.Request{Method: "POST"}, response(200, 10, strong()), resume.OtherRequest},
		{"get", &http.Request{Method: "get"}, response(200, 10, strong()), resume.OtherRequest},
		{"with a body", &http.Request{Method: "GET", Body: io.NopCloser(strings.NewReader("q"))},
			response(200, 10, strong()), resume.OtherRequest},
		{"with http.NoBody", &http.Request{Method: "GET", Body: http.NoBody},
			response(200, 10, strong()), ""},
		{"200 with a range", one, response(200, 5, strong("Content-Range", "bytes 5-9/20")),
			resume.RangeOf200},
		{"no length", request(nil), response(200, -1, strong()), resume.NoLength},
		{"no byte", request(nil), response(200, 0, strong()), resume.NoLength},
		{"203", request(nil), response(203, 10, strong()), resume.NotWhole},
		{"404", request(nil), response(404, 10, strong()), resume.NotWhole},
		{"unpacked", request(nil), &http.Response{StatusCode: 200, ContentLength: 10,
			Uncompressed: true, Header: strong(), Body: http.NoBody}, resume.Unpacked},
		{"no body", request(nil),
			&http.Response{StatusCode: 200, ContentLength: 10, Header: strong()}, resume.NoBody},
		{"trailers", request(nil), &http.Response{StatusCode: 200, ContentLength: 10,
			Trailer: header("Sum", ""), Header: strong(), Body: http.NoBody}, resume.Trailers},
		{"tunnel", request(nil), &http.Response{
			StatusCode: 200, ContentLength: 10, Header: strong(), Body: tunnel{}}, resume.NoBody},
		{"events", request(nil),
			response(200, 10, strong("Content-Type", "Text/Event-Stream ; charset=utf-8")),
			resume.EventStream},
		{"another request's", request(nil), &http.Response{StatusCode: 200, ContentLength: 10,
			Header: strong(), Body: http.NoBody, Request: &http.Request{Method: "POST"}},
			resume.OtherRequest},
		{"206", one, response(206, 5, strong("Content-Range", "bytes 5-9/20")), ""},
		{"206 of an unknown length", one, response(206, 5, strong("Content-Range", "bytes 5-9/*")),
			""},
		{"206 to a request without Range", request(nil),
			response(206, 5, strong("Content-Range", "bytes 5-9/20")), resume.BadRange},
		{"206 to two ranges", request(header("Range", "bytes=5-9,11-12")),
			response(206, 5, strong("Content-Range", "bytes 5-9/20")), resume.BadRange},
		{"206 to two lines", request(header("Range", "bytes=5-9", "Range", "bytes=11-12")),
			response(206, 5, strong("Content-Range", "bytes 5-9/20")), resume.BadRange},
		{"206 in another unit", request(header("Range", "lines=5-9")),
			response(206, 5, strong("Content-Range", "lines 5-9/20")), resume.BadRange},
		{"206 to bytes without positions", request(header("Range", "bytes")),
			response(206, 5, strong("Content-Range", "bytes 5-9/20")), resume.BadRange},
		{"206 to another unit", request(header("Range", "lines=5-9")),
			response(206, 5, strong("Content-Range", "bytes 5-9/20")), resume.BadRange},
		{"206 of one byte without Content-Range", one, response(206, 1, strong()), resume.BadRange},
		{"206 without Content-Range", one, response(206, 5, strong()), resume.BadRange},
		{"206 with two", one,
			response(206, 5,
				strong("Content-Range", "bytes 5-9/20", "Content-Range", "bytes 5-9/20")),
			resume.BadRange},
		{"206 of another length", one, response(206, 6, strong("Content-Range", "bytes 5-9/20")),
			resume.BadRange},
		{"206 in parts", one,
			response(
				206, 5,
				strong("Content-Range", "bytes 5-9/20", "Content-Type",
					"multipart/byteranges; boundary=x")), resume.Multipart},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, resume.PartOf(tt.req, tt.resp).Obstacle)
		})
	}
}

type tunnel struct{ io.ReadWriteCloser }

// The length of a part with an obstacle is that of the body, if it is known.
func TestLength(t *testing.T) {
	for length, want := range map[int64]int64{-1: math.MaxInt64, 1: 1, 9: 9} {
		p := resume.PartOf(&http.Request{Method: "POST"}, response(200, length, header()))
		assert.NotEmpty(t, p.Obstacle)
		assert.Equal(t, want, p.Length())
	}
}

// RFC 9110 sections 8.8.2.2, 8.8.3 and 13.1.5.
func TestValidators(t *testing.T) {
	const minuteLater, almost = "Mon, 02 Jan 2006 15:05:05 GMT", "Mon, 02 Jan 2006 15:05:04 GMT"
	for _, tt := range []struct {
		name   string
		header http.Header
		want   string // If-Range
		lacks  resume.Obstacle
	}{
		{"strong", header("ETag", `"v1"`), `"v1"`, ""},
		{"strong, of bytes beyond ASCII", header("ETag", "\"\xe9\""), "\"\xe9\"", ""},
		{"weak", header("ETag", `W/"v1"`), "", resume.WeakTag},
		{"weak in lower case", header("ETag", `w/"v1"`), "", resume.BadTag},
		{"no quotes", header("ETag", `v1`), "", resume.BadTag},
		{"one quote", header("ETag", `"`), "", resume.BadTag},
		{"empty tag", header("ETag", `""`), "", resume.BadTag},
		{"empty line", header("ETag", ``), "", resume.BadTag},
		{"quote inside", header("ETag", `"a"b"`), "", resume.BadTag},
		{"space inside", header("ETag", `"a b"`), "", resume.BadTag},
		{"control inside", header("ETag", "\"a\tb\""), "", resume.BadTag},
		{"DEL inside", header("ETag", "\"a\x7fb\""), "", resume.BadTag},
		{"two", header("ETag", `"v1"`, "ETag", `"v1"`), "", resume.BadTag},
		{"list", header("ETag", `"v1", "v2"`), "", resume.BadTag},
		{"strong and a date",
			header("ETag", `"v1"`, "Last-Modified", modified, "Date", minuteLater), `"v1"`, ""},
		{"weak and a date",
			header("ETag", `W/"v1"`, "Last-Modified", modified, "Date", minuteLater), "",
			resume.WeakTag},
		{"date a minute later",
			header("Last-Modified", modified, "Date", minuteLater), modified, ""},
		{"date 59 s later", header("Last-Modified", modified, "Date", almost), "", resume.Young},
		{"date before", header("Last-Modified", minuteLater, "Date", modified), "", resume.Young},
		{"no Date", header("Last-Modified", modified), "", resume.Young},
		{"no date at all",
			header("Last-Modified", "yesterday", "Date", minuteLater), "", resume.Young},
		{"invalid Date", header("Last-Modified", modified, "Date", "today"), "", resume.Young},
		{"two Last-Modified",
			header("Last-Modified", modified, "Last-Modified", modified, "Date", minuteLater), "",
			resume.Young},
		{"nothing", header(), "", resume.NoValidator},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := resume.PartOf(request(nil), response(200, 10, tt.header))
			require.Empty(t, p.Obstacle)
			assert.Equal(t, tt.lacks, p.Unverified())
			byteRange, ifRange := p.Headers(3)
			assert.EqualValues(t, 10, p.Length())
			assert.Equal(t, "bytes=3-9", byteRange)
			assert.Equal(t, tt.want, ifRange)
		})
	}
}

func TestCheck(t *testing.T) {
	const big = 3 << 20
	whole := resume.PartOf(request(nil), response(200, 100, header("ETag", `"v1"`)))
	large := resume.PartOf(request(nil), response(200, big, header("ETag", `"v1"`)))
	packed := resume.PartOf(
		request(nil), response(200, 100, header("ETag", `"v1"`, "Content-Encoding", "br")))
	dated := resume.PartOf(
		request(nil),
		response(
			200, 100, header("Last-Modified", modified, "Date", "Tue, 03 Jan 2006 15:04:05 GMT")))
	part := resume.PartOf(request(header("Range", "bytes=50-")),
		response(206, 50, header("ETag", `"v1"`, "Content-Range", "bytes 50-99/100")))
	far := resume.PartOf(request(header("Range", "bytes=3000000-")),
		response(206, 50, header("ETag", `"v1"`, "Content-Range", "bytes 3000000-3000049/3000050")))
	unknown := resume.PartOf(request(header("Range", "bytes=50-59")),
		response(206, 10, header("ETag", `"v1"`, "Content-Range", "bytes 50-59/*")))
	v1 := func(namesAndValues ...string) http.Header {
		return header(append([]string{"ETag", `"v1"`}, namesAndValues...)...)
	}
	for _, tt := range []struct {
		name   string
		part   resume.Part
		offset int64
		resp   *http.Response
		want   resume.Verdict
		skip   int64
	}{
		{"rest", whole, 10, response(206, 90, v1("Content-Range", "bytes 10-99/100")),
			resume.Rest, 0},
		{"rest of a part", part, 10, response(206, 40, v1("Content-Range", "bytes 60-99/100")),
			resume.Rest, 0},
		{"rest of an unknown length", unknown, 1,
			response(206, 9, v1("Content-Range", "bytes 51-59/*")), resume.Rest, 0},
		{"rest whose length is known now", unknown, 1,
			response(206, 9, v1("Content-Range", "bytes 51-59/70")), resume.Rest, 0},
		{"rest, dated", dated, 10,
			response(
				206, 90, header("Last-Modified", modified, "Content-Range", "bytes 10-99/100")),
			resume.Rest, 0},
		{"rest, packed", packed, 10,
			response(206, 90, v1("Content-Range", "bytes 10-99/100", "Content-Encoding", "BR")),
			resume.Rest, 0},
		{"rest, packed, not repeated", packed, 10,
			response(206, 90, v1("Content-Range", "bytes 10-99/100")), resume.Rest, 0},
		{"rest, packed, with space", packed, 10,
			response(206, 90, v1("Content-Range", "bytes 10-99/100", "Content-Encoding", " br\t")),
			resume.Rest, 0},
		{"rest, identity", whole, 10,
			response(
				206, 90, v1("Content-Range", "bytes 10-99/100", "Content-Encoding", "identity")),
			resume.Rest, 0},
		{"whole", whole, 10, response(200, 100, v1()), resume.Rest, 10},
		{"whole for a part", part, 10, response(200, 100, v1()), resume.Rest, 60},
		{"whole for a part of an unknown length", unknown, 1, response(200, 70, v1()),
			resume.Rest, 51},
		{"whole, at the limit", large, resume.MaxSkip, response(200, big, v1()), resume.Rest,
			resume.MaxSkip},

		{"whole, beyond the limit", large, resume.MaxSkip + 1, response(200, big, v1()),
			resume.TooLong, 0},
		{"whole for a part beyond the limit", far, 10, response(200, 3_000_050, v1()),
			resume.TooLong, 0},
		{"whole of another version", whole, 10, response(200, 100, header("ETag", `"v2"`)),
			resume.OtherVersion, 0},
		{"whole, weak", whole, 10, response(200, 100, header("ETag", `W/"v1"`)),
			resume.OtherVersion, 0},
		{"whole, longer", whole, 10, response(200, 101, v1()), resume.OtherLength, 0},
		{"whole, shorter than the part", unknown, 1, response(200, 59, v1()),
			resume.OtherLength, 0},
		{"whole, of unknown length", whole, 10, response(200, -1, v1()), resume.OtherLength, 0},
		{"whole with a range", whole, 10, response(200, 100, v1("Content-Range", "bytes 0-99/100")),
			resume.OtherRange, 0},
		{"rest of another version", whole, 10,
			response(206, 90, header("ETag", `"v2"`, "Content-Range", "bytes 10-99/100")),
			resume.OtherVersion, 0},
		{"rest without a tag", whole, 10,
			response(206, 90, header("Content-Range", "bytes 10-99/100")), resume.OtherVersion, 0},
		{"rest with two tags", whole, 10,
			response(206, 90, v1("ETag", `"v1"`, "Content-Range", "bytes 10-99/100")),
			resume.OtherVersion, 0},
		{"rest, modified", dated, 10,
			response(206, 90, header("Last-Modified", "Mon, 02 Jan 2006 15:04:06 GMT",
				"Content-Range", "bytes 10-99/100")), resume.OtherVersion, 0},
		{"rest, modified twice", dated, 10,
			response(206, 90, header("Last-Modified", modified, "Last-Modified", modified,
				"Content-Range", "bytes 10-99/100")), resume.OtherVersion, 0},
		{"rest, packed now", whole, 10,
			response(206, 90, v1("Content-Range", "bytes 10-99/100", "Content-Encoding", "gzip")),
			resume.OtherEncoding, 0},
		{"rest, packed otherwise", packed, 10,
			response(206, 90, v1("Content-Range", "bytes 10-99/100", "Content-Encoding", "gzip")),
			resume.OtherEncoding, 0},
		{"rest, packed twice", packed, 10,
			response(206, 90, v1("Content-Range", "bytes 10-99/100", "Content-Encoding", "br",
				"Content-Encoding", "gzip")), resume.OtherEncoding, 0},
		{"rest, not packed now", packed, 10,
			response(
				206, 90, v1("Content-Range", "bytes 10-99/100", "Content-Encoding", "identity")),
			resume.OtherEncoding, 0},
		{"rest, unpacked by a layer", packed, 10,
			&http.Response{StatusCode: 206, ContentLength: 90, Uncompressed: true, Header: v1(
				"Content-Range", "bytes 10-99/100"), Body: http.NoBody}, resume.OtherEncoding, 0},
		{"whole, not packed now", packed, 10, response(200, 100, v1()), resume.OtherEncoding, 0},
		{"no range", whole, 10, response(206, 90, v1()), resume.OtherRange, 0},
		{"range from the start", whole, 10,
			response(206, 100, v1("Content-Range", "bytes 0-99/100")), resume.OtherRange, 0},
		{"range shifted by one", whole, 10,
			response(206, 89, v1("Content-Range", "bytes 11-99/100")), resume.OtherRange, 0},
		{"range that ends early", whole, 10,
			response(206, 89, v1("Content-Range", "bytes 10-98/100")), resume.OtherRange, 0},
		{"range of something longer", whole, 10,
			response(206, 90, v1("Content-Range", "bytes 10-99/101")), resume.OtherRange, 0},
		{"range of something unknown", whole, 10,
			response(206, 90, v1("Content-Range", "bytes 10-99/*")), resume.OtherRange, 0},
		{"two ranges", whole, 10,
			response(
				206, 90,
				v1("Content-Range", "bytes 10-99/100", "Content-Range", "bytes 10-99/100")),
			resume.OtherRange, 0},
		{"parts", whole, 10,
			response(206, 90, v1("Content-Range", "bytes 10-99/100", "Content-Type",
				"multipart/byteranges; boundary=x")), resume.OtherRange, 0},
		{"more than the range", whole, 10,
			response(206, 91, v1("Content-Range", "bytes 10-99/100")), resume.OtherLength, 0},
		{"length not stated", whole, 10, response(206, -1, v1("Content-Range", "bytes 10-99/100")),
			resume.OtherLength, 0},
		{"redirect", whole, 10, response(302, 0, v1()), resume.OtherStatus, 0},
		{"not modified", whole, 10, response(304, 0, v1()), resume.OtherStatus, 0},
		{"forbidden", whole, 10, response(403, 90, v1("Content-Range", "bytes 10-99/100")),
			resume.OtherStatus, 0},
		{"precondition failed", whole, 10, response(412, 0, v1()), resume.OtherStatus, 0},
		{"not satisfiable", whole, 10, response(416, 0, v1("Content-Range", "bytes */100")),
			resume.OtherStatus, 0},
		{"203", whole, 10, response(203, 100, v1()), resume.OtherStatus, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			skip, err := tt.part.Check(tt.resp, tt.offset, nil)
			assert.Equal(t, tt.skip, skip)
			if tt.want == resume.Rest {
				assert.NoError(t, err)
				return
			}
			var mismatch *resume.Mismatch
			require.True(t, errors.As(err, &mismatch), "%v", err)
			assert.Equal(t, tt.want, mismatch.Verdict)
			assert.Contains(t, err.Error(), "status ")
		})
	}
}

// The caller's function replaces validators, and no other check.
func TestSame(t *testing.T) {
	p := resume.PartOf(request(nil), response(200, 100, header()))
	require.Empty(t, p.Obstacle)
	yes, no := func() bool { return true }, func() bool { return false }
	rest := response(206, 90, header("Content-Range", "bytes 10-99/100"))
	_, err := p.Check(rest, 10, yes)
	assert.NoError(t, err)
	_, err = p.Check(rest, 10, no)
	assert.Error(t, err)
	_, err = p.Check(rest, 10, nil)
	assert.Error(t, err)
	_, err = p.Check(response(206, 89, header("Content-Range", "bytes 11-99/100")), 10, yes)
	assert.Error(t, err)
	_, err = p.Check(response(404, 89, header()), 10, yes)
	assert.Error(t, err)
	// An empty validator does not count.
	_, err = p.Check(
		response(206, 90, header("Last-Modified", "", "Content-Range", "bytes 10-99/100")), 10, no)
	assert.Error(t, err)
	// Without a validator there was no If-Range, so the response may not omit
	// headers.
	packed := resume.PartOf(request(nil), response(200, 100, header("Content-Encoding", "br")))
	_, err = packed.Check(rest, 10, yes)
	assert.Error(t, err)
}

func TestMismatchTexts(t *testing.T) {
	p := resume.PartOf(request(nil), response(200, 3<<20, header("ETag", `"v1"`)))
	v1 := func(name, value string) http.Header { return header("ETag", `"v1"`, name, value) }
	for want, resp := range map[string]*http.Response{
		"status 404": response(404, 9, nil),
		"status 206 without the validator of the first response": response(206, 9, nil),
		"status 206 in another content coding": response(
			206, 9, v1("Content-Encoding", "br")),
		`status 206 with Content-Range "bytes 0-8/9"`: response(
			206, 9, v1("Content-Range", "bytes 0-8/9")),
		"status 200 with another length": response(200, 9, v1("Server", "a")),
		"status 200, of which 2000000 bytes would have to be discarded": response(
			200, 3<<20, v1("Server", "a")),
	} {
		_, err := p.Check(resp, 2_000_000, nil)
		assert.EqualError(t, err, want)
	}
}

// Headers of a server do not make an error long.
func TestMismatchIsBounded(t *testing.T) {
	p := resume.PartOf(request(nil), response(200, 100, header("ETag", `"v1"`)))
	long := header("ETag", `"v1"`, "Content-Range", strings.Repeat("x\n", 10_000))
	_, err := p.Check(response(206, 90, long), 10, nil)
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 500)
	assert.NotContains(t, err.Error(), "\n")
}
