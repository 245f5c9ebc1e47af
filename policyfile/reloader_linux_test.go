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

// A file that exists and that the process may not open changes nothing.
func TestReloaderOfUnreadableFiles(t *testing.T) {
	w := newWatched(t)
	w.write(attemptsFile(2))
	require.NoError(t, w.reloader.Reload())

	// Others may enter the folder, so it is not that which fails.
	require.NoError(t, os.Chmod(filepath.Dir(w.path), 0o755))
	require.NoError(t, os.Chmod(filepath.Dir(filepath.Dir(w.path)), 0o755))
	w.write(attemptsFile(4))
	require.NoError(t, os.Chmod(w.path, 0o200))
	err := reloadAsNobody(w.reloader)
	require.ErrorContains(t, err, w.path) // "open ", or "stat " if a folder above cannot be entered
	assert.Equal(t, err, reloadAsNobody(w.reloader))
	assert.Equal(t, []error{nil, err}, w.take(), "once")
	assert.Equal(t, 2, w.attempts())

	require.NoError(t, os.Chmod(w.path, 0o600))
	require.NoError(t, w.reloader.Reload())
	assert.Equal(t, []error{nil}, w.take())
	assert.Equal(t, 4, w.attempts())
}

// A file that becomes a named pipe at any time, even while it is opened, does
// not stop the Reloader.
func TestReloaderDoesNotWaitForAPipe(t *testing.T) {
	w := newWatched(t)
	path, file, pipe := w.path, w.path+".file", w.path+".pipe"
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	require.NoError(t, os.WriteFile(file, []byte(attemptsFile(2)), 0o600))
	swap := func(name string) { // as rename does, and keeps name
		require.NoError(t, os.Link(name, path+"~"))
		require.NoError(t, os.Rename(path+"~", path))
	}
	// reload calls Reload n times, and meanwhile calls change.
	reload := func(n int, change func()) (err error) {
		done := make(chan bool)
		go func() {
			defer close(done)
			for range n {
				err = w.reloader.Reload()
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
