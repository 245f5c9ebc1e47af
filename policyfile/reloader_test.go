package policyfile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/policyfile"
)

// attemptsFile returns the contents of a file with a number of attempts.
func attemptsFile(n int) string {
	return fmt.Sprintf(
		`{"default": {"maxAttempts": %d, "backoff": "Constant Wait=1ms", "budget": "unlimited"}}`, n)
}

// watched is a Reloader with its file and its reports.
type watched struct {
	t         *testing.T
	path      string
	transport *httpretry.RetryTransport
	reloader  *policyfile.Reloader

	mu      sync.Mutex
	reports []error // since the last call of take
}

// newWatched returns a Reloader of a file that does not exist yet.
func newWatched(t *testing.T) *watched {
	w := &watched{t: t, path: filepath.Join(t.TempDir(), "policies.json")}
	w.transport = contract.Unchecked(t, httpretry.Config{
		Base: contract.Play(contract.Status(503)), Policy: contract.RetryEvery(0)})
	w.reloader = &policyfile.Reloader{Path: w.path, Transport: w.transport,
		Report: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reports = append(w.reports, err)
		}}
	return w
}

// take returns the reports since the last call of it.
func (w *watched) take() []error {
	w.mu.Lock()
	defer w.mu.Unlock()
	reports := w.reports
	w.reports = nil
	return reports
}

// watch runs a Reloader of a new file in virtual time, and waits until it has
// read the file.
func watch(t *testing.T, contents string) *watched {
	w := newWatched(t)
	w.write(contents)
	w.run()
	return w
}

// run runs the Reloader until the end of the test.
func (w *watched) run() {
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error)
	go func() { done <- w.reloader.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, <-done)
	})
	// From here on, each look is a second before the end of reported.
	time.Sleep(time.Second)
	require.Equal(w.t, []error{nil}, w.reported())
}

func (w *watched) write(contents string) {
	require.NoError(w.t, os.WriteFile(w.path, []byte(contents), 0o600))
}

// reported returns the reports until after the next look.
func (w *watched) reported() []error {
	time.Sleep(policyfile.DefaultInterval)
	synctest.Wait()
	return w.take()
}

// attempts returns the number of attempts of a request.
func (w *watched) attempts() int {
	resp, err := w.transport.RoundTrip(contract.Request(w.t, "GET", "http://a.test/", ""))
	require.NoError(w.t, err)
	contract.ReadBody(w.t, resp)
	return httpretry.ResultOf(resp).Attempts
}

// A change of the file gets into effect, however it is made. Other events do
// not count.
func TestReloaderFollowsTheContents(t *testing.T) {
	for name, change := range map[string]func(w *watched){
		"written in place": func(w *watched) { w.write(attemptsFile(4)) },
		"renamed": func(w *watched) { // as editors do
			next := w.path + "~"
			require.NoError(w.t, os.WriteFile(next, []byte(attemptsFile(4)), 0o600))
			require.NoError(w.t, os.Rename(next, w.path))
		},
		"removed and written": func(w *watched) {
			require.NoError(w.t, os.Remove(w.path))
			w.write(attemptsFile(4))
		},
		"with the same time and size": func(w *watched) {
			info, err := os.Stat(w.path)
			require.NoError(w.t, err)
			w.write(attemptsFile(4))
			require.NoError(w.t, os.Chtimes(w.path, info.ModTime(), info.ModTime()))
		},
	} {
		contract.Bubble(t, name, func(t *testing.T) {
			w := watch(t, attemptsFile(2))
			require.Equal(t, 2, w.attempts())
			change(w)
			require.Equal(t, []error{nil}, w.reported())
			assert.Equal(t, 4, w.attempts())

			later := time.Now().Add(time.Hour)
			require.NoError(t, os.Chtimes(w.path, later, later))
			assert.Empty(t, w.reported(), "the contents are the same")
		})
	}
}

// The layout of a ConfigMap: the file is a link to a folder that is a link,
// which is replaced by a rename.
func TestReloaderFollowsLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("symbolic links need rights")
	}
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		dir := filepath.Dir(w.path)
		version := func(name string, attempts int) {
			require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name, "policies.json"),
				[]byte(attemptsFile(attempts)), 0o600))
			require.NoError(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
			require.NoError(t,
				os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		}
		version("..1", 2)
		require.NoError(t, os.Symlink(filepath.Join("..data", "policies.json"), w.path))
		w.run()
		require.Equal(t, 2, w.attempts())
		version("..2", 4)
		require.NoError(t, os.RemoveAll(filepath.Join(dir, "..1")))
		require.Equal(t, []error{nil}, w.reported())
		assert.Equal(t, 4, w.attempts())
	})
}

// A file that is not valid changes nothing. It is reported once, and so is the
// next valid one.
func TestReloaderKeepsPoliciesOfABrokenFile(t *testing.T) {
	for _, tt := range []struct {
		name  string
		spoil func(w *watched)
		want  string
	}{
		{"a typo", func(w *watched) { w.write(`{"default": {"maxAttemps": 4}}`) },
			"policies.json:1:14: default.maxAttemps: unknown"},
		{"empty", func(w *watched) { w.write("") }, "policies.json:1:1: "},
		{"half", func(w *watched) { w.write(attemptsFile(4)[:40]) }, "policies.json:1:"},
		{"garbage", func(w *watched) { w.write(strings.Repeat("x", 10<<20)) },
			"policies.json:1:1: more than 1048576 bytes: want at most that many"},
		{"not for this transport", func(w *watched) {
			w.write(`{"default": {"idempotencyHeader": "Retry-Attempt"}}`)
		}, "policies.json:1:35: default.idempotencyHeader: "},
		{"a dangling link", func(w *watched) {
			if runtime.GOOS == "windows" {
				w.t.Skip("symbolic links need rights")
			}
			require.NoError(w.t, os.Remove(w.path))
			require.NoError(w.t, os.Symlink("missing", w.path))
		}, "policies.json: "},
		{"removed", func(w *watched) { require.NoError(w.t, os.Remove(w.path)) },
			"policies.json: "},
		{"a folder", func(w *watched) {
			require.NoError(w.t, os.Remove(w.path))
			require.NoError(w.t, os.Mkdir(w.path, 0o700))
		}, "want a regular file"},
		{"without bytes", func(w *watched) {
			if runtime.GOOS != "linux" {
				w.t.Skip("only Linux has such a file")
			}
			require.NoError(w.t, os.Remove(w.path))
			require.NoError(w.t, os.Symlink("/proc/self/mem", w.path))
		}, "read "},
	} {
		contract.Bubble(t, tt.name, func(t *testing.T) {
			w := watch(t, attemptsFile(2))
			tt.spoil(w)
			reports := w.reported()
			require.Len(t, reports, 1)
			require.ErrorContains(t, reports[0], tt.want)
			assert.Equal(t, reports[0], w.reloader.Reload(), "the same error, not reported")
			assert.Empty(t, w.reported(), "once")
			assert.Equal(t, 2, w.attempts())

			require.NoError(t, os.RemoveAll(w.path))
			w.write(attemptsFile(2))
			assert.Equal(t, []error{nil}, w.reported())
			assert.NoError(t, w.reloader.Reload())
		})
	}
}

// A file that is being written is an error until its last byte, and then valid,
// wherever a Reload finds it. Each error is reported, even if one follows
// another, and Last returns the last change.
func TestReloaderIgnoresPartsOfAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := attemptsFile(4)
		w := newWatched(t)
		r := w.reloader
		for n := range whole {
			w.write(whole[:n])
			err := r.Reload()
			require.Error(t, err, "%s", whole[:n])
			require.Equal(t, []error{err}, w.take())
			file, at, last := r.Last()
			assert.Nil(t, file)
			assert.Equal(t, err, last)
			assert.Equal(t, time.Now(), at)
		}
		assert.Equal(t, 5, w.attempts())

		w.write(whole)
		require.NoError(t, r.Reload())
		assert.Equal(t, []error{nil}, w.take())
		written := time.Now()
		assert.Equal(t, 4, w.attempts())
		time.Sleep(time.Minute)
		require.NoError(t, r.Reload(), "the same contents")
		file, at, err := r.Last()
		require.NoError(t, err)
		assert.Equal(t, 4, file.Policy().MaxAttempts)
		assert.Equal(t, written, at)

		w.write(whole[:1])
		require.Error(t, r.Reload())
		kept, at, err := r.Last()
		require.Error(t, err)
		assert.Same(t, file, kept)
		assert.Equal(t, time.Now(), at)
	})
}

// If a file is too large, no more of it is read than shows that.
func TestReloaderMemory(t *testing.T) {
	w := newWatched(t)
	w.write(strings.Repeat("x", 10*policyfile.MaxSize))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := w.reloader.Reload()
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "more than 1048576 bytes")
	// io.ReadAll allocates a few times the bytes that it reads.
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(6*policyfile.MaxSize))

	largest := attemptsFile(2)
	w.write(largest + strings.Repeat(" ", policyfile.MaxSize-len(largest)))
	assert.NoError(t, w.reloader.Reload())
}

// Editors and terminals open "name:line:column" at the mistake, in each line of
// an error.
func TestReloaderNamesTheFileInEachLine(t *testing.T) {
	w := newWatched(t)
	path := w.path
	w.reloader.Loader = &policyfile.Loader{Presets: map[string]httpretry.Policy{
		"p": {IdempotencyHeader: "Retry-Attempt"},
	}}
	for contents, want := range map[string][]string{
		"{\"default\": {\"maxAttemps\": 4,\n\"maxElapsed\": 5}}": {
			path + ":1:14: default.maxAttemps: ", path + ":2:15: default.maxElapsed: 5: ",
		},
		// These values are valid for other transports. The policies of b.test
		// and c.test inherit that of the default.
		`{"default": {"idempotencyHeader": "retry-attempt"},
"policies": {"a.test": {"idempotencyHeader": "Retry-Attempt"}, "b.test": {}, "c.test": {}}}`: {
			path + `:1:35: default.idempotencyHeader: "Retry-Attempt": want another header than`,
			path + `:2:46: policies["a.test"].idempotencyHeader: "Retry-Attempt": want another`,
		},
		`{"policies": {"a.test": {"preset": "p"}, "b.test": {"idempotencyHeader": "X-Key", "preset": "p"}}}`: {
			path + `:1:36: policies["a.test"].preset: IdempotencyHeader: "Retry-Attempt": want another`,
		},
	} {
		w.write(contents)
		err := w.reloader.Reload()
		require.Error(t, err)
		lines := strings.Split(err.Error(), "\n")
		require.Len(t, lines, len(want), err)
		for i, line := range lines {
			assert.True(t, strings.HasPrefix(line, want[i]), line)
		}
		_, ok := errors.AsType[*policyfile.Error](err)
		assert.True(t, ok)
	}
}

// A budget whose fields are the same remains as it is.
func TestReloaderKeepsBudgets(t *testing.T) {
	file := func(attempts, burst int) string {
		return fmt.Sprintf(`{"default": {"maxAttempts": %d, "backoff": "Constant Wait=1ms",
			"budget": {"burst": %d}}}`, attempts, burst)
	}
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, file(3, 3))
		assert.Equal(t, []int{3, 2, 1}, []int{w.attempts(), w.attempts(), w.attempts()})
		w.write(file(4, 3))
		require.Equal(t, []error{nil}, w.reported())
		assert.Equal(t, 1, w.attempts(), "the budget is used up")
		w.write(file(4, 4))
		require.Equal(t, []error{nil}, w.reported())
		assert.Equal(t, 4, w.attempts(), "another budget")
	})
}

// A ConfigMap is shared by programs of two releases. Its new field stands for
// one that the older program does not know.
const newField = `{"default": {"maxAttempts": %d, "backoff": "Constant Wait=1ms",
  "hedgeAfter": "50ms"}}`

// With IgnoreUnknown, the older program starts with the new file and follows
// it.
func TestReloaderOfAnOlderProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		r := w.reloader
		r.Loader = &policyfile.Loader{IgnoreUnknown: true}
		var warnings []string
		r.Warn = func(all []*policyfile.Error) {
			require.Equal(t, []error{nil}, w.reports, "after the report")
			warnings = append(warnings, lines(all))
		}
		for _, n := range []int{4, 2} {
			w.write(fmt.Sprintf(newField, n))
			for range 2 {
				require.NoError(t, r.Reload())
			}
			assert.Equal(t, []error{nil}, w.take(), "once")
			assert.Equal(t, []string{"2:3: default.hedgeAfter: unknown field, " +
				"which is ignored: " + wantFields}, warnings, "once")
			warnings = nil
			assert.Equal(t, n, w.attempts())
		}
		// A file without unknown fields has no warning.
		w.write(attemptsFile(3))
		require.NoError(t, r.Reload())
		assert.Equal(t, []error{nil}, w.take())
		assert.Empty(t, warnings)

		// A file that cannot be used is an error, and no warning.
		for _, text := range []string{
			`{"version": 2, "default": {"maxAttempts": 7}}`,
			`{"default": {"hedgeAfter": "50ms", "idempotencyHeader": "Retry-Attempt"}}`,
		} {
			w.write(text)
			err := r.Reload()
			require.Error(t, err)
			assert.Equal(t, []error{err}, w.take())
			assert.Empty(t, warnings)
			assert.Equal(t, 3, w.attempts())
		}
	})
}

// Without IgnoreUnknown, the older program keeps the policies that it has, and
// says why.
func TestReloaderOfAStrictOlderProgram(t *testing.T) {
	w := newWatched(t)
	w.reloader.Warn = func([]*policyfile.Error) { assert.Fail(t, "a warning") }
	w.write(attemptsFile(2))
	require.NoError(t, w.reloader.Reload())
	for text, want := range map[string]string{
		fmt.Sprintf(newField, 4): ":2:3: default.hedgeAfter: unknown field: " + wantFields,
		`{"version": 2}`:         ":1:13: version: 2: want 1, the version that this program reads",
	} {
		w.take()
		w.write(text)
		err := w.reloader.Reload()
		require.EqualError(t, err, w.path+want)
		assert.Equal(t, []error{err}, w.take())
		assert.Equal(t, 2, w.attempts())
	}
}

// Without Report and Warn, changes are logged. Warnings are logged as one, with
// the name of the file in each line.
func TestReloaderLogs(t *testing.T) {
	defer slog.SetDefault(slog.Default())
	var out bytes.Buffer
	slog.SetDefault(slog.New(slog.NewJSONHandler(&out, nil)))
	w := newWatched(t)
	w.reloader.Report, w.reloader.Loader = nil, &policyfile.Loader{IgnoreUnknown: true}
	require.Error(t, w.reloader.Reload())
	for _, contents := range []string{attemptsFile(2), "{\"a\": 1,\n\"b\": 2}"} {
		w.write(contents)
		require.NoError(t, w.reloader.Reload())
	}
	records := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, records, 4)
	assert.Contains(t, records[0], `"level":"ERROR","msg":"the retry policies remain as they are"`)
	assert.Contains(t, records[1], `"level":"INFO","msg":"the retry policies have changed"`)
	assert.Contains(t, records[2], `"level":"INFO","msg":"the retry policies have changed"`)
	var record struct{ Level, Msg, Warnings string }
	require.NoError(t, json.Unmarshal([]byte(records[3]), &record))
	assert.Equal(t, "WARN", record.Level)
	assert.Equal(t, "the retry policies have warnings", record.Msg)
	const text = ": unknown field, which is ignored: " + wantKnown
	assert.Equal(t, w.path+":1:2: a"+text+"\n"+w.path+":2:1: b"+text, record.Warnings)
}

func TestReloaderReportsItsFields(t *testing.T) {
	r := &policyfile.Reloader{Interval: time.Microsecond}
	err := r.Run(t.Context())
	require.EqualError(t, err, `Reloader.Path: "": want the name of a file
Reloader.Transport: nil: want a RetryTransport
Reloader.Interval: 1µs: want at least 1ms, or 0 for 5s`)
	shortest := &policyfile.Reloader{Interval: time.Millisecond}
	assert.NotContains(t, shortest.Run(t.Context()).Error(), "Interval")
	r.Report = func(error) {}
	assert.Equal(t, err.Error(), r.Reload().Error())
}

// The interval is kept, and Reload may be called while Run runs.
func TestReloaderInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWatched(t)
		w.reloader.Interval = time.Minute
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		done := make(chan error)
		go func() { done <- w.reloader.Run(ctx) }()
		time.Sleep(time.Second)
		require.Len(t, w.take(), 1, "the file is missing")
		w.write(attemptsFile(2))
		time.Sleep(time.Minute - time.Second - 1)
		assert.Empty(t, w.take())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, []error{nil}, w.take())
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { assert.NoError(t, w.reloader.Reload()) })
		}
		wg.Wait()
		assert.NoError(t, <-done)
		assert.Empty(t, w.take())
	})
}
