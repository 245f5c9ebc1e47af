//go:build !plan9

package test

import (
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/internal/contract"
)

// The texts of errors of Windows. The numbers are those of Winsock, in package
// syscall on Windows; other systems have no text for them.
func TestWindowsErrors(t *testing.T) {
	const (
		wsaeNetUnreach  = syscall.Errno(10051)
		wsaeConnAborted = syscall.Errno(10053)
		wsaeConnReset   = syscall.Errno(10054)
		wsaeTimedOut    = syscall.Errno(10060)
		wsaeConnRefused = syscall.Errno(10061)
		wsaeHostUnreach = syscall.Errno(10065)
		wsaHostNotFound = syscall.Errno(11001)
	)
	failed := func(op, call string, errno syscall.Errno) error {
		return &net.OpError{Op: op, Net: "tcp", Err: os.NewSyscallError(call, errno)}
	}
	for _, tt := range []struct {
		name string
		err  error
		want httpretry.Outcome
	}{
		{"connection reset", failed("read", "wsarecv", wsaeConnReset), transient},
		{"connection aborted", failed("read", "wsarecv", wsaeConnAborted), transient},
		{"reset while writing", failed("write", "wsasend", wsaeConnReset), transient},
		{"aborted while writing", failed("write", "wsasend", wsaeConnAborted), transient},
		{"timeout of a read", failed("read", "wsarecv", wsaeTimedOut), transient},
		{"connection refused", failed("dial", "connectex", wsaeConnRefused), unprocessed},
		{"dial timed out", failed("dial", "connectex", wsaeTimedOut), unprocessed},
		{"network unreachable", failed("dial", "connectex", wsaeNetUnreach), unprocessed},
		{"host unreachable", failed("dial", "connectex", wsaeHostUnreach), unprocessed},
		{"unknown host", &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{
			Err: "no such host", Name: "a.test", IsNotFound: true,
			UnwrapErr: os.NewSyscallError("getaddrinfow", wsaHostNotFound),
		}}, final},
		{"idle connection reset", fmt.Errorf(
			"readLoopPeekFailLocked: %w", failed("read", "wsarecv", wsaeConnReset)), unprocessed},
		{"wrapped", fmt.Errorf("layer: %w", failed("dial", "connectex", wsaeConnRefused)),
			unprocessed},
		{"through a proxy", &net.OpError{Op: "proxyconnect", Net: "tcp",
			Err: failed("dial", "connectex", wsaeConnRefused)}, unprocessed},
	} {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, httpretry.Classify(nil, nil, tt.err), "%v", tt.err)
			sent := map[httpretry.Outcome]int{final: 1, transient: 1, unprocessed: 5}[tt.want]
			base := contract.Play(contract.Fails(tt.err))
			err := sendFails(t, retrying(t, base), newRequest(t, "POST", "text"))
			require.ErrorIs(t, err, tt.err)
			assert.Len(t, base.Attempts(), sent)
		})
	}
}
