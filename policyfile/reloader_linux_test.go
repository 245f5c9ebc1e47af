package policyfile_test

import (
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
	"github.com/seed421102f4/httpretry/policyfile"
)

// reloadAsNobody calls Reload with the rights of a user that has none. Linux
// has these rights for each thread. The thread ends with the goroutine, since
// it is locked.
func reloadAsNobody(r *policyfile.Reloader) error {
	result := make(chan error)
	go func() {
		runtime.LockOSThread()
		if os.Getuid() == 0 {
			if err := syscall.Setfsuid(65534); err != nil {
				result <- err
				return
			}
		}
		result <- r.Reload()
	}()
	return <-result
}

// A file that exists and that the process may not open, or cannot read, changes
// nothing. Other tests of rights are skipped for root, which may open all
// files.
func TestReloaderOfUnreadableFiles(t *testing.T) {
	for _, tt := range []struct {
		name   string
		spoil  func(t *testing.T, path string)
		reload func(*policyfile.Reloader) error
		want   string
	}{
		{"without rights", func(t *testing.T, path string) {
			// Others may enter the folder, so it is not that which fails.
			require.NoError(t, os.Chmod(filepath.Dir(path), 0o755))
			require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(path)), 0o755))
			require.NoError(t, os.WriteFile(path, []byte(attemptsFile(4)), 0o200))
			require.NoError(t, os.Chmod(path, 0o200))
		}, reloadAsNobody, ""}, // "open ", or "stat " if a folder above cannot be entered
		{"without bytes", func(t *testing.T, path string) {
			if _, err := os.ReadFile("/proc/self/mem"); err == nil {
				t.Skip("the first page of memory can be read")
			}
			require.NoError(t, os.Remove(path))
			require.NoError(t, os.Symlink("/proc/self/mem", path))
		}, (*policyfile.Reloader).Reload, "read "},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var reports []error
			transport := contract.Unchecked(t,
				httpretry.Config{Base: contract.Play(contract.Status(503))})
			w := &watched{t: t, path: filepath.Join(t.TempDir(), "policies.json"),
				transport: transport}
			r := &policyfile.Reloader{Path: w.path, Transport: transport,
				Report: func(err error) { reports = append(reports, err) }}
			w.write(attemptsFile(2))
			require.NoError(t, r.Reload())

			tt.spoil(t, w.path)
			err := tt.reload(r)
			require.ErrorContains(t, err, tt.want+w.path)
			assert.Equal(t, err, tt.reload(r))
			assert.Equal(t, []error{nil, err}, reports, "once")
			assert.Equal(t, 2, w.attempts())

			require.NoError(t, os.Remove(w.path))
			w.write(attemptsFile(4))
			require.NoError(t, r.Reload())
			assert.Equal(t, []error{nil, err, nil}, reports)
			assert.Equal(t, 4, w.attempts())
		})
	}
}

// A file that becomes a named pipe at any time, even while it is opened, does
// not stop the Reloader.
func TestReloaderDoesNotWaitForAPipe(t *testing.T) {
	dir := t.TempDir()
	path, file := filepath.Join(dir, "policies.json"), filepath.Join(dir, "file")
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	require.NoError(t, os.WriteFile(file, []byte(attemptsFile(2)), 0o600))
	swap := func(name string) { // as rename does, and keeps name
		require.NoError(t, os.Link(name, path+"~"))
		require.NoError(t, os.Rename(path+"~", path))
	}
	r := &policyfile.Reloader{Path: path, Transport: new(httpretry.RetryTransport),
		Report: func(error) {}}
	// reload calls Reload n times, and meanwhile calls change.
	reload := func(n int, change func()) (err error) {
		done := make(chan bool)
		go func() {
			defer close(done)
			for range n {
				err = r.Reload()
			}
		}()
		stuck := time.After(10 * time.Second)
		for {
			change()
			select {
			case <-done:
				return err
			case <-stuck:
				t.Fatal("Reload waits for a writer of the pipe")
			default:
			}
		}
	}
	swap(pipe)
	require.ErrorContains(t, reload(1, runtime.Gosched), path+": prw-------: want a regular file")
	_ = reload(5000, func() { swap(file); swap(pipe) })
	swap(file)
	require.NoError(t, reload(1, runtime.Gosched))
}
