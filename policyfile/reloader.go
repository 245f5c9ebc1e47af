package policyfile

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/seed421102f4/httpretry"
)

// DefaultInterval is how long a [Reloader] waits before it rereads its file.
const DefaultInterval = 5 * time.Second

// A Reloader gives a RetryTransport the policies of a file, and again whenever
// the contents of the file change. It reads the file each time and compares its
// contents, so a file may also be written in place, renamed, or be a symbolic
// link that changes, as in a ConfigMap of Kubernetes.
//
// If the file cannot be read or is not valid, all policies remain as they are.
// Requests keep the policies that they began with. Budgets, cool-downs and
// connections remain.
//
// A file that is not written as a whole, by a rename, may be missing or not
// valid when the Reloader reads it. Then the Reloader reports the error, and
// reads the whole file an Interval later.
//
// A Reloader must not be copied or changed after first use.
type Reloader struct {
	// Path is the name of the file.
	Path string

	// Transport gets the policies.
	Transport *httpretry.RetryTransport

	// Loader reads the file. Nil means a Loader of the Reloader's own.
	Loader *Loader

	// Interval is how long Run waits before it reads the file again, at least a
	// millisecond. 0 means DefaultInterval.
	Interval time.Duration

	// Report is called once for each change that the Reloader has read: with nil
	// if the policies of the file are in effect, and else with the error. It is
	// not called concurrently, and must not call Reload. Nil means that changes
	// and errors are logged with [slog.Default].
	Report func(error)

	// Warn is called after Report(nil) with the warnings of a file that has
	// any, whose policies are in effect (see [File.Warnings]). It is not called
	// concurrently, and must not call Reload. Nil means that warnings are
	// logged with [slog.Default].
	Warn func([]*Error)

	mu   sync.Mutex
	own  Loader            // if Loader is nil
	seen [sha256.Size]byte // of the last contents, or of the error of reading them
	file *File             // whose policies are in effect, or nil
	at   time.Time         // of the last change
	err  error             // of the last change
}

// Reload reads the file now, such as at the start of a program or after a
// signal. It returns nil if the policies of the file are in effect, and else
// the reason why they are not. It may be called concurrently.
func (r *Reloader) Reload() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	data, err := r.read()
	seen := sha256.Sum256(data)
	if err != nil {
		seen = sha256.Sum256([]byte(err.Error()))
	}
	// Each change is reported once, an error included.
	if seen == r.seen {
		return r.err
	}
	var file *File
	if err == nil {
		file, err = r.apply(data)
	}
	r.seen, r.at, r.err = seen, time.Now(), err
	r.report(err)
	if err == nil {
		r.file = file
		r.warn(file.Warnings())
	}
	return err
}

// Last returns the File whose policies are in effect, or nil if there is none
// yet, and when the Reloader read the last change of the file's contents. If
// that change is not in effect, err says why. Before the first Reload, at is
// zero.
func (r *Reloader) Last() (f *File, at time.Time, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.file, r.at, r.err
}

// Run calls Reload, and then once per Interval, until ctx is done, and returns
// nil. It returns an error at once if a field is not valid. The errors of files
// are passed to Report only.
func (r *Reloader) Run(ctx context.Context) error {
	if err := r.validate(); err != nil {
		return err
	}
	interval := r.Interval
	if interval == 0 {
		interval = DefaultInterval
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		_ = r.Reload() // was reported
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Reloader) validate() error {
	var errs []error
	if r.Path == "" {
		errs = append(errs, errors.New(`Reloader.Path: "": want the name of a file`))
	}
	if r.Transport == nil {
		errs = append(errs, errors.New("Reloader.Transport: nil: want a RetryTransport"))
	}
	if r.Interval != 0 && r.Interval < time.Millisecond {
		errs = append(errs, fmt.Errorf("Reloader.Interval: %v: want at least 1ms, or 0 for %v",
			r.Interval, DefaultInterval))
	}
	return errors.Join(errs...)
}

// read returns the contents of the file, or the beginning of contents that are
// too long.
func (r *Reloader) read() ([]byte, error) {
	// Reload may be called without Run, which checks the fields first.
	if err := r.validate(); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(r.Path, openFlags, 0)
	if err != nil {
		return nil, err
	}
	data, err := readRegular(f)
	return data, errors.Join(err, f.Close())
}

// readRegular reads a regular file. To read another one, such as a named pipe,
// could block forever. Only the opened file shows which it is, because another
// one may get its name at any time.
func readRegular(f *os.File) ([]byte, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: %v: want a regular file", f.Name(), info.Mode())
	}
	return io.ReadAll(io.LimitReader(f, MaxSize+1))
}

// apply gives the transport the policies of a file, and returns it.
func (r *Reloader) apply(data []byte) (*File, error) {
	loader := r.Loader
	if loader == nil {
		loader = &r.own
	}
	// Only the beginning was read, so Parse would state a wrong size.
	if len(data) > MaxSize {
		return nil, &namedError{r.Path + ":", &Error{Line: 1, Column: 1,
			Problem: fmt.Sprintf("more than %d bytes: want at most that many", MaxSize)}}
	}
	file, err := loader.Parse(data)
	if err != nil {
		return nil, &namedError{r.Path + ":", err}
	}
	if err := r.Transport.SetPolicies(file.Policy(), file.Policies()); err != nil {
		return nil, &namedError{r.Path + ":", file.located(data, err)}
	}
	return file, nil
}

// A namedError begins each line of an error with the name of the file. Editors
// and terminals find the place of "name:line:column:".
type namedError struct {
	prefix string
	err    error
}

func (e *namedError) Error() string {
	return e.prefix + strings.ReplaceAll(e.err.Error(), "\n", "\n"+e.prefix)
}

func (e *namedError) Unwrap() error { return e.err }

func (r *Reloader) report(err error) {
	switch {
	case r.Report != nil:
		r.Report(err)
	case err != nil:
		slog.Error("the retry policies remain as they are", "error", err)
	default:
		slog.Info("the retry policies have changed", "file", r.Path)
	}
}

func (r *Reloader) warn(warnings []*Error) {
	switch {
	case len(warnings) == 0:
	case r.Warn != nil:
		r.Warn(warnings)
	default:
		all := &namedError{r.Path + ":", errors.Join(asErrors(warnings)...)}
		slog.Warn("the retry policies have warnings", "warnings", all.Error())
	}
}
