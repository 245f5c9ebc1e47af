package recipes_test

import (
	"bufio"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/retrytest"
)

// stream calls event with the data of each event, until event reports that it
// was the last one. If the stream breaks off, open requests the events that
// follow the one with the ID after.
func stream(open func(after string) (*http.Response, error),
	event func(data string) (isLast bool)) error {
	for after, progress := "", true; progress; {
		resp, err := open(after)
		if err != nil {
			return err
		}
		progress = false
		id, data := after, ""
		lines := bufio.NewScanner(resp.Body)
		for lines.Buffer(nil, 1<<20); lines.Scan(); {
			field, value, _ := strings.Cut(lines.Text(), ":")
			switch value = strings.TrimPrefix(value, " "); {
			case field == "id":
				id = value
			case field == "data":
				data += value
			case lines.Text() == "" && data != "": // the end of an event
				if event(data) {
					return resp.Body.Close()
				}
				after, data, progress = id, "", true
			}
		}
		resp.Body.Close()
	}
	return io.ErrUnexpectedEOF // even the rest has brought no event
}

// part answers with a part of a stream. Each part but those that end with [DONE]
// breaks off.
func part(text string) contract.Step {
	return retrytest.Func(func(*http.Request) (*http.Response, error) {
		var end io.Reader = strings.NewReader("")
		if !strings.HasSuffix(text, "[DONE]\n\n") {
			end = iotest.ErrReader(io.ErrUnexpectedEOF)
		}
		return &http.Response{
			StatusCode: 200, ProtoMajor: 1, ContentLength: -1,
			Header: http.Header{"Content-Type": {"text/event-stream"}},
			Body:   io.NopCloser(io.MultiReader(strings.NewReader(text), end)),
		}, nil
	})
}

// TestStream checks which events the caller gets, and after which ID a stream
// goes on that has broken off.
func TestStream(t *testing.T) {
	for name, tt := range map[string]struct {
		parts []string
		want  string
		after []string
		err   error
	}{
		"whole": {[]string{"id: 1\ndata: a\n\nid: 2\ndata: b\n\ndata: [DONE]\n\n"}, "a,b,", []string{""}, nil},
		"breaks off": {[]string{"id: 1\r\ndata: a\r\n\r\nid: 2\r\ndata: b", "id: 2\ndata:b\n\n",
			": nothing new\n\ndata: c\n\n", "data: [DONE]\n\n"}, "a,b,c,", []string{"", "1", "2", "2"}, nil},
		// The policy retries a stream without an event.
		"before the first event": {[]string{": hello\n\n", "data: a\n\ndata: [DONE]\n\n"},
			"a,", []string{"", ""}, nil},
		"no progress": {[]string{"id: 1\ndata: a\n\n", "data: b"}, "a,",
			[]string{"", "1", "1", "1"}, io.ErrUnexpectedEOF},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			var parts []contract.Step
			for _, text := range tt.parts {
				parts = append(parts, part(text))
			}
			server, got := script{contract.Play(parts...)}, ""
			client := newClient(t, httpretry.Config{
				Base: server, Policy: httpretry.Policy{ReadAhead: 64 << 10}})
			err := stream(func(after string) (*http.Response, error) {
				req := request(t, "GET", "")
				req.Header.Set("Last-Event-ID", after)
				return client.Do(req)
			}, func(data string) bool {
				if data != "[DONE]" {
					got += data + ","
				}
				return data == "[DONE]"
			})
			require.ErrorIs(t, err, tt.err)
			assert.Equal(t, tt.want, got)
			assert.Equal(t, tt.after, server.headers("Last-Event-ID"))
		})
	}
}
