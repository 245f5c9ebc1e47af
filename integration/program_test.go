package integration

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// program returns the path of a program that install.sh installs. Without it
// the test is skipped, but not where everything is meant to run.
func program(t testing.TB, name string) string {
	t.Helper()
	for _, candidate := range []string{name, "/usr/sbin/" + name} {
		if path, err := exec.LookPath(candidate); err == nil {
			return path
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed: run integration/install.sh", name)
	}
	t.Skipf("%s is not installed: run integration/install.sh", name)
	return ""
}

// process is a program that runs until it is stopped, at the latest with the
// test.
type process struct {
	*exec.Cmd
	name   string
	log    string // path of its output
	exited chan struct{}
}

// start runs a program and waits until it listens at addr. Its output is shown
// if the test fails.
func start(t testing.TB, addr, path string, args ...string) *process {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	require.NoError(t, err)
	defer log.Close()

	p := &process{exec.Command(path, args...), filepath.Base(path), log.Name(), make(chan struct{})}
	p.Stdout, p.Stderr = log, log
	p.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM} // should this process be killed
	require.NoError(t, p.Start())
	go func() {
		defer close(p.exited)
		_ = p.Wait() // how it ended shows in its log
	}()
	t.Cleanup(func() {
		p.finish(t, syscall.SIGTERM)
		if t.Failed() {
			showLog(t, p.name, p.log)
		}
	})
	require.True(t, p.listens(addr), "%s does not listen at %s", p.name, addr)
	return p
}

func (p *process) listens(addr string) bool {
	for range 1000 {
		conn, err := net.Dial("tcp", addr)
		if err == nil {
			_ = conn.Close()
			return true
		}
		select {
		case <-p.exited:
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
	return false
}

// finish tells the program to end, with the signal that it takes for that, and
// waits.
func (p *process) finish(t testing.TB, signal os.Signal) {
	t.Helper()
	_ = p.Process.Signal(signal) // it may have ended by itself
	select {
	case <-p.exited:
		return
	case <-time.After(30 * time.Second):
	}
	_ = p.Process.Kill()
	<-p.exited
	t.Errorf("%s had to be killed", p.name)
}

const shownLog = 8 << 10 // bytes

func showLog(t testing.TB, name, path string) {
	log, err := os.ReadFile(path)
	if err != nil {
		log = []byte(err.Error())
	}
	t.Logf("the end of %s's log:\n%s", name, log[max(0, len(log)-shownLog):])
}

// freeAddr returns an address to listen at, with a port that the system does
// not give to outgoing connections meanwhile.
func freeAddr(t testing.TB) string {
	t.Helper()
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", 15000+mathrand.IntN(15000)))
		if err == nil {
			require.NoError(t, l.Close())
			return l.Addr().String()
		}
	}
	t.Fatal("no free port")
	return ""
}

// writeFile writes a file that lives as long as the test.
func writeFile(t testing.TB, name, content string) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
	return path
}

// identity is a certificate for 127.0.0.1, from an authority that client
// trusts.
type identity struct {
	certificate, key string // PEM
	client           *tls.Config
}

func newIdentity(t testing.TB) identity {
	t.Helper()
	caKey, ca := issue(t, &x509.Certificate{
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
		Subject:               pkix.Name{CommonName: "integration authority"},
	}, nil, nil)
	key, cert := issue(t, &x509.Certificate{
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		Subject:     pkix.Name{CommonName: "127.0.0.1"},
	}, ca, caKey)

	der, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(t, err)
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return identity{
		certificate: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw})),
		key:         string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		client:      &tls.Config{RootCAs: roots},
	}
}

// issue signs a certificate with the issuer's key, or without one with its own.
func issue(t testing.TB, template, issuer *x509.Certificate, issuerKey *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	if issuer == nil {
		issuer, issuerKey = template, key
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(24 * time.Hour)
	der, err := x509.CreateCertificate(rand.Reader, template, issuer, &key.PublicKey, issuerKey)
	require.NoError(t, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	return key, cert
}
