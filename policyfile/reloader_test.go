package policyfile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
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

// watched is a Reloader in virtual time, with its file and its reports.
type watched struct {
	t         *testing.T
	path      string
	transport *httpretry.RetryTransport
	reloader  *policyfile.Reloader

	mu      sync.Mutex
	reports []error // since the last call of reported
}

// watch starts a Reloader of a file in a new folder, and waits until it has
// read the file.
func watch(t *testing.T, contents string) *watched {
	w := &watched{t: t, path: filepath.Join(t.TempDir(), "policies.json")}
	w.write(contents)
	w.run()
	require.Equal(t, []error{nil}, w.reported())
	return w
}

// run starts the Reloader, and stops it at the end of the test.
func (w *watched) run() {
	base := contract.BaseFunc(func(req *http.Request) (*http.Response, error) {
		return contract.Play(contract.Status(503)).RoundTrip(req)
	})
	var err error
	w.transport, err = httpretry.New(httpretry.Config{Base: base})
	require.NoError(w.t, err)
	w.reloader = &policyfile.Reloader{Path: w.path, Transport: w.transport,
		Report: func(err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reports = append(w.reports, err)
		}}
	ctx, cancel := context.WithCancel(w.t.Context())
	done := make(chan error)
	go func() { done <- w.reloader.Run(ctx) }()
	w.t.Cleanup(func() {
		cancel()
		require.NoError(w.t, <-done)
	})
	// From here on, each look is a second before the end of reported.
	time.Sleep(time.Second)
	synctest.Wait()
}

func (w *watched) write(contents string) {
	require.NoError(w.t, os.WriteFile(w.path, []byte(contents), 0o600))
}

// reported returns the reports until after the next look.
func (w *watched) reported() []error {
	time.Sleep(policyfile.DefaultInterval)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	reports := w.reports
	w.reports = nil
	return reports
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
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, attemptsFile(2))
				require.Equal(t, 2, w.attempts())
				change(w)
				require.Equal(t, []error{nil}, w.reported())
				assert.Equal(t, 4, w.attempts())

				later := time.Now().Add(time.Hour)
				require.NoError(t, os.Chtimes(w.path, later, later))
				assert.Empty(t, w.reported(), "the contents are the same")
			})
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
		dir := t.TempDir()
		version := func(name string, attempts int) {
			require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
			require.NoError(t, os.WriteFile(filepath.Join(dir, name, "policies.json"),
				[]byte(attemptsFile(attempts)), 0o600))
			require.NoError(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")))
			require.NoError(t,
				os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
		}
		version("..1", 2)
		w := &watched{t: t, path: filepath.Join(dir, "policies.json")}
		require.NoError(t, os.Symlink(filepath.Join("..data", "policies.json"), w.path))
		w.run()
		require.Equal(t, []error{nil}, w.reported())
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
		{"without rights", func(w *watched) {
			if os.Getuid() <= 0 {
				w.t.Skip("the user may read all files, or the system has no such rights")
			}
			require.NoError(w.t, os.Chmod(w.path, 0))
		}, "permission denied"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
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
		})
	}
}

// A file that is being written is an error until its last byte, and then valid,
// wherever a Reload finds it. Each error is reported, even if one follows
// another, and Last returns the last change.
func TestReloaderIgnoresPartsOfAFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := attemptsFile(4)
		var reports []error
		transport := contract.Unchecked(t, httpretry.Config{
			Base: contract.Play(contract.Status(503)), Policy: contract.RetryEvery(0)})
		w := &watched{t: t, path: filepath.Join(t.TempDir(), "policies.json"), transport: transport}
		r := &policyfile.Reloader{Path: w.path, Transport: transport,
			Report: func(err error) { reports = append(reports, err) }}
		for n := range whole {
			w.write(whole[:n])
			require.Error(t, r.Reload(), "%s", whole[:n])
			require.Len(t, reports, n+1)
			require.Error(t, reports[n])
		}
		file, at, err := r.Last()
		assert.Nil(t, file)
		assert.Equal(t, reports[len(whole)-1], err)
		assert.Equal(t, time.Now(), at)
		assert.Equal(t, 5, w.attempts())

		w.write(whole)
		require.NoError(t, r.Reload())
		assert.NoError(t, reports[len(whole)])
		written := time.Now()
		assert.Equal(t, 4, w.attempts())
		time.Sleep(time.Minute)
		require.NoError(t, r.Reload(), "the same contents")
		file, at, err = r.Last()
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
	path := filepath.Join(t.TempDir(), "policies.json")
	require.NoError(t, os.WriteFile(path, bytes.Repeat([]byte("x"), 10*policyfile.MaxSize), 0o600))
	r := &policyfile.Reloader{Path: path, Transport: new(httpretry.RetryTransport),
		Report: func(error) {}}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := r.Reload()
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "more than 1048576 bytes")
	// io.ReadAll allocates a few times the bytes that it reads.
	assert.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(6*policyfile.MaxSize))

	largest := attemptsFile(2)
	largest += strings.Repeat(" ", policyfile.MaxSize-len(largest))
	require.NoError(t, os.WriteFile(path, []byte(largest), 0o600))
	assert.NoError(t, r.Reload())
}

// Editors and terminals open "name:line:column" at the mistake, in each line of
// an error.
func TestReloaderNamesTheFileInEachLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policies.json")
	r := &policyfile.Reloader{Path: path, Transport: new(httpretry.RetryTransport),
		Report: func(error) {}, Loader: &policyfile.Loader{Presets: map[string]httpretry.Policy{
			"p": {IdempotencyHeader: "Retry-Attempt"},
		}}}
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
		require.NoError(t, os.WriteFile(path, []byte(contents), 0o600))
		err := r.Reload()
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

func TestReloaderWithoutReport(t *testing.T) {
	defer slog.SetDefault(slog.Default())
	var out bytes.Buffer
	slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
	path := filepath.Join(t.TempDir(), "policies.json")
	r := &policyfile.Reloader{Path: path, Transport: new(httpretry.RetryTransport)}
	require.Error(t, r.Reload())
	assert.Contains(t, out.String(), `level=ERROR msg="the retry policies remain as they are"`)
	require.NoError(t, os.WriteFile(path, []byte(attemptsFile(2)), 0o600))
	require.NoError(t, r.Reload())
	assert.Contains(t, out.String(), `level=INFO msg="the retry policies have changed"`)
	assert.Equal(t, 2, strings.Count(out.String(), "\n"))
}

// A ConfigMap is shared by programs of two releases. Its new field stands for
// one that the older program does not know.
const newField = `{"default": {"maxAttempts": %d, "backoff": "Constant Wait=1ms",
  "hedgeAfter": "50ms"}}`

// older returns a Reloader of the older program, and its reports and warnings
// since the last call of the function.
func (w *watched) older(loader *policyfile.Loader) (
	r *policyfile.Reloader, next func() (reports []error, warnings []string),
) {
	var reports []error
	var warnings []string
	w.transport = contract.Unchecked(w.t, httpretry.Config{
		Base: contract.Play(contract.Status(503)), Policy: contract.RetryEvery(0)})
	r = &policyfile.Reloader{
		Path: w.path, Transport: w.transport, Loader: loader,
		Report: func(err error) { reports = append(reports, err) },
		Warn: func(all []*policyfile.Error) {
			require.Equal(w.t, []error{nil}, reports, "after the report")
			for _, warning := range all {
				text, _, _ := strings.Cut(warning.Error(), ": want ")
				warnings = append(warnings, text)
			}
		},
	}
	return r, func() ([]error, []string) {
		defer func() { reports, warnings = nil, nil }()
		return reports, warnings
	}
}

// With IgnoreUnknown, the older program starts with the new file and follows
// it.
func TestReloaderOfAnOlderProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{t: t, path: filepath.Join(t.TempDir(), "policies.json")}
		r, next := w.older(&policyfile.Loader{IgnoreUnknown: true})
		for _, n := range []int{4, 2} {
			w.write(fmt.Sprintf(newField, n))
			for range 2 {
				require.NoError(t, r.Reload())
			}
			reports, warnings := next()
			assert.Equal(t, []error{nil}, reports, "once")
			assert.Equal(t, []string{
				"2:3: default.hedgeAfter: unknown field, which is ignored"}, warnings, "once")
			assert.Equal(t, n, w.attempts())
		}
		// A file without unknown fields has no warning.
		w.write(attemptsFile(3))
		require.NoError(t, r.Reload())
		reports, warnings := next()
		assert.Equal(t, []error{nil}, reports)
		assert.Empty(t, warnings)

		// A file that cannot be used is an error, and no warning.
		for _, text := range []string{
			`{"version": 2, "default": {"maxAttempts": 7}}`,
			`{"default": {"hedgeAfter": "50ms", "idempotencyHeader": "Retry-Attempt"}}`,
		} {
			w.write(text)
			err := r.Reload()
			require.Error(t, err)
			reports, warnings = next()
			assert.Equal(t, []error{err}, reports)
			assert.Empty(t, warnings)
			assert.Equal(t, 3, w.attempts())
		}
	})
}

// Without IgnoreUnknown, the older program keeps the policies that it has, and
// says why.
func TestReloaderOfAStrictOlderProgram(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{t: t, path: filepath.Join(t.TempDir(), "policies.json")}
		r, next := w.older(nil)
		w.write(attemptsFile(2))
		require.NoError(t, r.Reload())
		next()
		w.write(fmt.Sprintf(newField, 4))
		err := r.Reload()
		require.ErrorContains(t, err, "policies.json:2:3: default.hedgeAfter: unknown field: want ")
		reports, warnings := next()
		assert.Equal(t, []error{err}, reports)
		assert.Empty(t, warnings)
		assert.Equal(t, 2, w.attempts())

		w.write(`{"version": 2}`)
		assert.EqualError(t, r.Reload(),
			w.path+":1:13: version: 2: want 1, the version that this program reads")
		assert.Equal(t, 2, w.attempts())
	})
}

// A warning is logged as one, with the name of the file in each line.
func TestReloaderWithoutWarn(t *testing.T) {
	defer slog.SetDefault(slog.Default())
	var out bytes.Buffer
	slog.SetDefault(slog.New(slog.NewJSONHandler(&out, nil)))
	path := filepath.Join(t.TempDir(), "policies.json")
	r := &policyfile.Reloader{Path: path, Transport: new(httpretry.RetryTransport),
		Loader: &policyfile.Loader{IgnoreUnknown: true}}
	require.NoError(t, os.WriteFile(path, []byte("{\"a\": 1,\n\"b\": 2}"), 0o600))
	require.NoError(t, r.Reload())
	records := strings.Split(strings.TrimSpace(out.String()), "\n")
	require.Len(t, records, 2)
	assert.Contains(t, records[0], `"level":"INFO","msg":"the retry policies have changed"`)
	var record struct{ Level, Msg, Warnings string }
	require.NoError(t, json.Unmarshal([]byte(records[1]), &record))
	assert.Equal(t, "WARN", record.Level)
	assert.Equal(t, "the retry policies have warnings", record.Msg)
	const text = ": unknown field, which is ignored: want $schema, version, default or policies"
	assert.Equal(t, path+":1:2: a"+text+"\n"+path+":2:1: b"+text, record.Warnings)
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
		path := filepath.Join(t.TempDir(), "policies.json")
		var mu sync.Mutex
		reports := 0
		r := &policyfile.Reloader{Path: path, Transport: new(httpretry.RetryTransport),
			Interval: time.Minute, Report: func(error) {
				mu.Lock()
				defer mu.Unlock()
				reports++
			}}
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
		defer cancel()
		done := make(chan error)
		go func() { done <- r.Run(ctx) }()
		time.Sleep(time.Second)
		count := func() int { mu.Lock(); defer mu.Unlock(); return reports }
		require.Equal(t, 1, count(), "the file is missing")
		require.NoError(t, os.WriteFile(path, []byte(attemptsFile(2)), 0o600))
		time.Sleep(time.Minute - time.Second - 1)
		assert.Equal(t, 1, count())
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		assert.Equal(t, 2, count())
		var wg sync.WaitGroup
		for range 10 {
			wg.Go(func() { assert.NoError(t, r.Reload()) })
		}
		wg.Wait()
		assert.NoError(t, <-done)
		assert.Equal(t, 2, count())
	})
}
