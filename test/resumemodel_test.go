package test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// resumeModel is a server and a link, of which script decides everything: the
// changes of the file, the places where transfers break off, and the mistakes
// of the server. But it never sends one version with the validator of another,
// which nobody could notice.
type resumeModel struct {
	script   []byte
	versions [][]byte
	current  int
	requests int
}

// draw returns a number below n. A script that has ended is an honest server.
func (m *resumeModel) draw(n int) int {
	if len(m.script) == 0 {
		return 0
	}
	v := int(m.script[0]) % n
	m.script = m.script[1:]
	return v
}

func (m *resumeModel) tag() string { return fmt.Sprintf(`"v%d"`, m.current) }

func (m *resumeModel) RoundTrip(req *http.Request) (*http.Response, error) {
	m.requests++
	if m.draw(8) == 1 {
		m.current = (m.current + 1) % len(m.versions)
	}
	switch m.draw(12) {
	case 1:
		return nil, contract.ErrReset
	case 2:
		return m.respond(503, nil, "Etag", m.tag()), nil
	case 3:
		return m.respond([]int{204, 302, 304, 403, 404, 412, 416}[m.draw(7)], nil, "Etag", m.tag()),
			nil
	}
	data := m.versions[m.current]
	var first, last int
	_, err := fmt.Sscanf(req.Header.Get("Range"), "bytes=%d-%d", &first, &last)
	obeys := req.Header.Get("If-Range") == m.tag() || m.draw(4) == 1 // some ignore If-Range
	if err != nil || !obeys || m.draw(10) == 1 || first >= len(data) {
		return m.respond(200, data, "Etag", m.tag()), nil
	}
	return m.part(data, first, min(last, len(data)-1)), nil
}

// part returns a 206, with or without a mistake in it.
func (m *resumeModel) part(data []byte, first, last int) *http.Response {
	complete := fmt.Sprint(len(data))
	tag := m.tag()
	switch m.draw(16) {
	case 1:
		first = max(first-1, 0)
	case 2:
		first = min(first+1, last)
	case 3:
		last = max(last-1, first)
	case 4:
		first, last = 0, len(data)-1
	case 5:
		complete = "*"
	case 6:
		complete = fmt.Sprint(len(data) + 1)
	case 7:
		tag = "W/" + tag
	case 8:
		tag = ""
	}
	header := []string{
		"Etag", tag, "Content-Range", fmt.Sprintf("bytes %d-%d/%s", first, last, complete)}
	switch m.draw(12) {
	case 1:
		header = header[:2]
	case 2:
		header = append(header, "Content-Encoding", "br")
	case 3:
		header[3] = "bytes */" + complete
	}
	return m.respond(206, data[first:last+1], header...)
}

// respond returns a response whose body may break off.
func (m *resumeModel) respond(status int, body []byte, header ...string) *http.Response {
	resp := &http.Response{
		StatusCode: status, ProtoMajor: 1, Header: http.Header{}, ContentLength: int64(len(body))}
	for i := 0; i < len(header); i += 2 {
		if header[i+1] != "" {
			resp.Header.Set(header[i], header[i+1])
		}
	}
	if m.draw(20) == 1 {
		resp.ContentLength = -1
	}
	end := io.EOF
	if n := m.draw(4); n > 0 {
		end = []error{io.ErrUnexpectedEOF, contract.ErrReset, io.ErrClosedPipe}[n-1]
		body = body[:(m.draw(256)*256+m.draw(256))%(len(body)+1)]
	}
	resp.Body = &modelBody{rest: body, end: end, together: m.draw(2) == 0}
	return resp
}

// modelBody returns its error with the last bytes or after them, and delivers
// bytes in pieces.
type modelBody struct {
	rest     []byte
	end      error
	together bool
}

func (b *modelBody) Read(p []byte) (int, error) {
	n := copy(p[:min(len(p), 1000)], b.rest)
	b.rest = b.rest[n:]
	if len(b.rest) == 0 && (b.together || n == 0) {
		return n, b.end
	}
	return n, nil
}

func (b *modelBody) Close() error { return nil }

// checkResumeModel plays a script. The caller gets the bytes of one version,
// all of them or the first and an error, whatever the script says.
func checkResumeModel(t *testing.T, script []byte) (complete bool, requests int) {
	t.Helper()
	m := &resumeModel{script: script,
		versions: [][]byte{randomBytes(1, 5000), randomBytes(2, 5000), randomBytes(3, 6000)}}
	policy := resumeEagerly()
	policy.MaxAttempts = 6 - m.draw(6)
	policy.ReadAhead = []int64{0, 1, 2000, 10_000}[m.draw(4)]
	budget := contract.Audit{Budget: policy.Budget}
	policy.Budget = &budget
	defer func() { budget.Check(t, m.requests) }()
	resp, err := contract.Unchecked(t, httpretry.Config{Base: m, Policy: policy}).
		RoundTrip(newGet(t))
	if err != nil {
		return false, m.requests
	}
	version := -1
	for i := range m.versions {
		if resp.Header.Get("Etag") == fmt.Sprintf(`"v%d"`, i) {
			version = i
		}
	}
	length := resp.ContentLength
	got, err := io.ReadAll(resp.Body)
	require.NoError(t, resp.Body.Close())
	if len(got) > 0 {
		require.GreaterOrEqual(t, version, 0)
		require.True(t, bytes.HasPrefix(m.versions[version], got),
			"bytes of another version, or at another place")
	}
	if err == nil && length > 0 {
		require.Len(t, got, int(length), "incomplete without an error")
	}
	if e, ok := errors.AsType[*httpretry.Error](err); ok {
		require.NotEqual(t, httpretry.ReasonNone, e.Reason)
		require.NotEqual(t, httpretry.ReasonSuccess, e.Reason)
	}
	result := httpretry.ResultOf(resp)
	require.LessOrEqual(t, result.Attempts, m.requests, "attempts and requests")
	if err == nil && resp.StatusCode < 400 {
		require.Equal(t, httpretry.ReasonSuccess, result.Reason)
	}
	return err == nil && resp.StatusCode == 200, m.requests
}

// Hazard 0.5: whatever a server and a link do, the caller gets the right bytes
// or an error.
func TestResumeModel(t *testing.T) {
	const downloads = 5000
	completed, resumed := 0, 0
	rnd := rand.New(rand.NewPCG(1, 2))
	for range downloads {
		script := make([]byte, rnd.IntN(100))
		for i := range script {
			// Zeros are the truth. Too many lies end a download at once.
			if rnd.IntN(3) > 0 {
				script[i] = byte(rnd.Uint32())
			}
		}
		if complete, requests := checkResumeModel(t, script); complete {
			completed++
			if requests > 1 {
				resumed++
			}
		}
	}
	t.Logf("%d of %d downloads completed, %d of them after several requests", completed,
		downloads, resumed)
	assert.Greater(t, completed, downloads/3)
	assert.Greater(t, resumed, downloads/20)
}

func FuzzResume(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{3, 0, 0, 1, 1, 200, 10, 0})
	f.Add([]byte{5, 0, 0, 0, 2, 3, 10, 0, 0, 0, 0, 0, 0, 2, 7, 7})
	f.Fuzz(func(t *testing.T, script []byte) { checkResumeModel(t, script) })
}
