package resume_test

import (
	"io"
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

// tagged is header with a strong validator.
func tagged(namesAndValues ...string) http.Header {
	return header(append([]string{"ETag", `"v1"`}, namesAndValues...)...)
}

// partial returns a 206 with a strong validator.
func partial(length int64, contentRange string, namesAndValues ...string) *http.Response {
	h := tagged(append([]string{"Content-Range", contentRange}, namesAndValues...)...)
	return response(206, length, h)
}

// dated returns the last 90 of 100 bytes, with these lines of Last-Modified and
// no other validator.
func dated(lines ...string) *http.Response {
	h := header("Content-Range", "bytes 10-99/100")
	h["Last-Modified"] = lines
	return response(206, 90, h)
}

func TestPartOf(t *testing.T) {
	plain, one := request(nil), request(header("Range", "bytes=5-9"))
	whole, part := response(200, 10, tagged()), partial(5, "bytes 5-9/20")
	with := func(change func(*http.Response)) *http.Response {
		resp := response(200, 10, tagged())
		change(resp)
		return resp
	}
	for _, tt := range []struct {
		name string
		req  *http.Request
		resp *http.Response
		want resume.Obstacle
	}{
		{"200", plain, whole, ""},
		{"no method", &http.Request{}, whole, ""},
		{"POST", &http.Request{Method: "POST"}, whole, resume.OtherRequest},
		{"get", &http.Request{Method: "get"}, whole, resume.OtherRequest},
		{"with a body", &http.Request{Method: "GET", Body: io.NopCloser(strings.NewReader("q"))},
			whole, resume.OtherRequest},
		{"with http.NoBody", &http.Request{Method: "GET", Body: http.NoBody}, whole, ""},
		{"200 with a range", one, response(200, 5, tagged("Content-Range", "bytes 5-9/20")),
			resume.RangeOf200},
		{"no length", plain, response(200, -1, tagged()), resume.NoLength},
		{"no byte", plain, response(200, 0, tagged()), resume.NoLength},
		{"203", plain, response(203, 10, tagged()), resume.NotWhole},
		{"unpacked", plain, with(func(r *http.Response) { r.Uncompressed = true }),
			resume.Unpacked},
		{"no body", plain, with(func(r *http.Response) { r.Body = nil }), resume.NoBody},
		{"trailers", plain, with(func(r *http.Response) { r.Trailer = header("Sum", "") }),
			resume.Trailers},
		{"tunnel", plain, with(func(r *http.Response) { r.Body = tunnel{} }), resume.NoBody},
		{"events", plain,
			response(200, 10, tagged("Content-Type", "Text/Event-Stream ; charset=utf-8")),
			resume.EventStream},
		{"another request's", plain,
			with(func(r *http.Response) { r.Request = &http.Request{Method: "POST"} }),
			resume.OtherRequest},
		{"206", one, part, ""},
		{"206 of an unknown length", one, partial(5, "bytes 5-9/*"), ""},
		{"206 to a request without Range", plain, part, resume.BadRange},
		{"206 to two ranges", request(header("Range", "bytes=5-9,11-12")), part, resume.BadRange},
		{"206 to two lines", request(header("Range", "bytes=5-9", "Range", "bytes=11-12")), part,
			resume.BadRange},
		{"206 to bytes without positions", request(header("Range", "bytes")), part,
			resume.BadRange},
		{"206 to another unit", request(header("Range", "lines=5-9")), part, resume.BadRange},
		{"206 of one byte without Content-Range", one, response(206, 1, tagged()),
			resume.BadRange},
		{"206 with two", one, partial(5, "bytes 5-9/20", "Content-Range", "bytes 5-9/20"),
			resume.BadRange},
		{"206 of another length", one, partial(6, "bytes 5-9/20"), resume.BadRange},
		{"206 in parts", one,
			partial(5, "bytes 5-9/20", "Content-Type", "multipart/byteranges; boundary=x"),
			resume.Multipart},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, resume.PartOf(tt.req, tt.resp).Obstacle)
		})
	}
}

type tunnel struct{ io.ReadWriteCloser }

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
		{"two", header("ETag", `"v1"`, "ETag", `"v1"`), "", resume.BadTag},
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
	for _, tag := range []string{`w/"v1"`, `v1`, `"`, `""`, ``, `"a"b"`, `"a b"`, "\"a\tb\"",
		"\"a\x7fb\"", `"v1", "v2"`} {
		p := resume.PartOf(request(nil), response(200, 10, header("ETag", tag)))
		assert.Equal(t, resume.BadTag, p.Unverified(), tag)
		_, ifRange := p.Headers(3)
		assert.Empty(t, ifRange, tag)
	}
}

func TestCheck(t *testing.T) {
	const big = 3 << 20
	whole := resume.PartOf(request(nil), response(200, 100, tagged()))
	large := resume.PartOf(request(nil), response(200, big, tagged()))
	packed := resume.PartOf(request(nil), response(200, 100, tagged("Content-Encoding", "br")))
	aged := resume.PartOf(request(nil), response(
		200, 100, header("Last-Modified", modified, "Date", "Tue, 03 Jan 2006 15:04:05 GMT")))
	part := resume.PartOf(request(header("Range", "bytes=50-")), partial(50, "bytes 50-99/100"))
	far := resume.PartOf(request(header("Range", "bytes=3000000-")),
		partial(50, "bytes 3000000-3000049/3000050"))
	unknown := resume.PartOf(request(header("Range", "bytes=50-59")), partial(10, "bytes 50-59/*"))
	rest := func(namesAndValues ...string) *http.Response {
		return partial(90, "bytes 10-99/100", namesAndValues...)
	}
	type row struct {
		name   string
		part   resume.Part
		offset int64
		resp   *http.Response
	}
	for _, tt := range []struct {
		row
		skip int64
	}{
		{row{"rest", whole, 10, rest()}, 0},
		{row{"rest of a part", part, 10, partial(40, "bytes 60-99/100")}, 0},
		{row{"rest of an unknown length", unknown, 1, partial(9, "bytes 51-59/*")}, 0},
		{row{"rest whose length is known now", unknown, 1, partial(9, "bytes 51-59/70")}, 0},
		{row{"rest, dated", aged, 10, dated(modified)}, 0},
		{row{"rest, packed", packed, 10, rest("Content-Encoding", " BR\t")}, 0},
		{row{"rest, packed, not repeated", packed, 10, rest()}, 0},
		{row{"rest, identity", whole, 10, rest("Content-Encoding", "identity")}, 0},
		{row{"whole", whole, 10, response(200, 100, tagged())}, 10},
		{row{"whole for a part", part, 10, response(200, 100, tagged())}, 60},
		{row{"whole for an unknown length", unknown, 1, response(200, 70, tagged())}, 51},
		{row{"whole, at the limit", large, resume.MaxSkip, response(200, big, tagged())},
			resume.MaxSkip},
	} {
		t.Run(tt.name, func(t *testing.T) {
			skip, err := tt.part.Check(tt.resp, tt.offset, nil)
			assert.Equal(t, tt.skip, skip)
			assert.NoError(t, err)
		})
	}
	for want, rows := range map[resume.Verdict][]row{
		resume.TooLong: {
			{"whole, beyond the limit", large, resume.MaxSkip + 1, response(200, big, tagged())},
			{"whole for a part beyond the limit", far, 10, response(200, 3_000_050, tagged())},
		},
		resume.OtherVersion: {
			{"whole of another version", whole, 10, response(200, 100, header("ETag", `"v2"`))},
			{"whole, weak", whole, 10, response(200, 100, header("ETag", `W/"v1"`))},
			{"rest of another version", whole, 10,
				response(206, 90, header("ETag", `"v2"`, "Content-Range", "bytes 10-99/100"))},
			{"rest without a tag", whole, 10, dated()},
			{"rest with two tags", whole, 10, rest("ETag", `"v1"`)},
			{"rest, modified", aged, 10, dated("Mon, 02 Jan 2006 15:04:06 GMT")},
			{"rest, modified twice", aged, 10, dated(modified, modified)},
		},
		resume.OtherEncoding: {
			{"rest, packed now", whole, 10, rest("Content-Encoding", "gzip")},
			{"rest, packed otherwise", packed, 10, rest("Content-Encoding", "gzip")},
			{"rest, packed twice", packed, 10,
				rest("Content-Encoding", "br", "Content-Encoding", "gzip")},
			{"rest, not packed now", packed, 10, rest("Content-Encoding", "identity")},
			{"rest, unpacked by a layer", packed, 10, unpacked(rest())},
			{"whole, not packed now", packed, 10, response(200, 100, tagged())},
		},
		resume.OtherRange: {
			{"whole with a range", whole, 10,
				response(200, 100, tagged("Content-Range", "bytes 0-99/100"))},
			{"no range", whole, 10, response(206, 90, tagged())},
			{"range from the start", whole, 10, partial(100, "bytes 0-99/100")},
			{"range shifted by one", whole, 10, partial(89, "bytes 11-99/100")},
			{"range that ends early", whole, 10, partial(89, "bytes 10-98/100")},
			{"range of something longer", whole, 10, partial(90, "bytes 10-99/101")},
			{"range of something unknown", whole, 10, partial(90, "bytes 10-99/*")},
			{"two ranges", whole, 10, rest("Content-Range", "bytes 10-99/100")},
			{"parts", whole, 10, rest("Content-Type", "multipart/byteranges; boundary=x")},
		},
		resume.OtherLength: {
			{"whole, longer", whole, 10, response(200, 101, tagged())},
			{"whole, shorter than the part", unknown, 1, response(200, 59, tagged())},
			{"whole, of unknown length", whole, 10, response(200, -1, tagged())},
			{"more than the range", whole, 10, partial(91, "bytes 10-99/100")},
			{"length not stated", whole, 10, partial(-1, "bytes 10-99/100")},
		},
		resume.OtherStatus: {
			{"203", whole, 10, response(203, 100, tagged())},
			{"redirect", whole, 10, response(302, 0, tagged())},
			{"forbidden", whole, 10,
				response(403, 90, tagged("Content-Range", "bytes 10-99/100"))},
			{"not satisfiable", whole, 10,
				response(416, 0, tagged("Content-Range", "bytes */100"))},
		},
	} {
		for _, tt := range rows {
			t.Run(tt.name, func(t *testing.T) {
				skip, err := tt.part.Check(tt.resp, tt.offset, nil)
				assert.Zero(t, skip)
				var mismatch *resume.Mismatch
				require.ErrorAs(t, err, &mismatch)
				assert.Equal(t, want, mismatch.Verdict)
			})
		}
	}
}

// unpacked returns resp as a layer that has unpacked its body does.
func unpacked(resp *http.Response) *http.Response {
	resp.Uncompressed = true
	return resp
}

// The caller's function replaces validators, and no other check.
func TestSame(t *testing.T) {
	plain := resume.PartOf(request(nil), response(200, 100, header()))
	require.Empty(t, plain.Obstacle)
	packed := resume.PartOf(request(nil), response(200, 100, header("Content-Encoding", "br")))
	yes, no := func() bool { return true }, func() bool { return false }
	for name, tt := range map[string]struct {
		part resume.Part
		resp *http.Response
		same func() bool
		ok   bool
	}{
		"yes":     {plain, dated(), yes, true},
		"no":      {plain, dated(), no, false},
		"not set": {plain, dated(), nil, false},
		"another range": {
			plain, response(206, 89, header("Content-Range", "bytes 11-99/100")), yes, false},
		"another status":     {plain, response(404, 89, header()), yes, false},
		"an empty validator": {plain, dated(""), no, false},
		// Without a validator there was no If-Range, so the response may not omit
		// headers.
		"no coding": {packed, dated(), yes, false},
	} {
		_, err := tt.part.Check(tt.resp, 10, tt.same)
		assert.Equal(t, tt.ok, err == nil, "%s: %v", name, err)
	}
}

func TestMismatchTexts(t *testing.T) {
	p := resume.PartOf(request(nil), response(200, 3<<20, tagged()))
	for want, resp := range map[string]*http.Response{
		"status 404": response(404, 9, nil),
		"status 206 without the validator of the first response": response(206, 9, nil),
		"status 206 in another content coding": response(
			206, 9, tagged("Content-Encoding", "br")),
		`status 206 with Content-Range "bytes 0-8/9"`: partial(9, "bytes 0-8/9"),
		"status 200 with another length":              response(200, 9, tagged()),
		"status 200, of which 2000000 bytes would have to be discarded": response(
			200, 3<<20, tagged()),
	} {
		_, err := p.Check(resp, 2_000_000, nil)
		assert.EqualError(t, err, want)
	}
}

// Headers of a server do not make an error long.
func TestMismatchIsBounded(t *testing.T) {
	p := resume.PartOf(request(nil), response(200, 100, tagged()))
	_, err := p.Check(partial(90, strings.Repeat("x\n", 10_000)), 10, nil)
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 500)
	assert.NotContains(t, err.Error(), "\n")
}
