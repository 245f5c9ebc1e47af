package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// standardPackages are the packages of the standard library whose tests run.
var standardPackages = []string{
	"net/http", "net/http/httputil", "net/http/httptest",
	"net/http/cookiejar", "net/http/httptrace", "net/rpc",
}

// goLine is the line of a go.mod file that has its version of Go.
var goLine = regexp.MustCompile(`(?m)^go .*$`)

// standardLibrary returns the suite of the standard library. Its module is an
// empty one, because within GOROOT/src the go command would compare the vendor
// folder with modules.txt.
func (r *runner) standardLibrary(context.Context) (*suite, error) {
	s := &suite{name: "standard library", module: filepath.Join(r.temp, "module")}
	if err := os.Mkdir(s.module, 0o777); err != nil {
		return nil, err
	}
	// The module's version of Go selects the defaults of GODEBUG.
	std, err := os.ReadFile(filepath.Join(r.goroot, "src", "go.mod"))
	if err != nil {
		return nil, err
	}
	text := "module empty\n" + goLine.FindString(string(std))
	if err := os.WriteFile(filepath.Join(s.module, "go.mod"), []byte(text), 0o666); err != nil {
		return nil, err
	}
	for i, path := range standardPackages {
		s.packages = append(s.packages, testPackage{
			path: path, name: filepath.Base(path), dir: path, std: true,
			built: filepath.Join(r.temp, "std", strconv.Itoa(i)),
		})
	}
	return s, nil
}

// module returns the suite of a module, of which it makes a copy.
func (r *runner) module(ctx context.Context, version string) (*suite, error) {
	downloaded, err := output(ctx, r.temp, "go", "mod", "download", "-json", version)
	if err != nil {
		return nil, err
	}
	var source struct{ Dir string }
	if err := json.Unmarshal([]byte(downloaded), &source); err != nil {
		return nil, err
	}
	folder := strings.NewReplacer("/", "_", "@", "_").Replace(version)
	s := &suite{name: version, module: filepath.Join(r.temp, folder)}
	if err := os.CopyFS(s.module, os.DirFS(source.Dir)); err != nil {
		return nil, err
	}
	cmd := r.goCommand(ctx, r.goroot, s.module, "list",
		"-json=ImportPath,Name,Dir,TestGoFiles,XTestGoFiles", "./...")
	list, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("listing the packages of %s: %w\n%s", version, err, stderrOf(err))
	}
	for decoder := json.NewDecoder(bytes.NewReader(list)); ; {
		var p struct {
			ImportPath, Name, Dir     string
			TestGoFiles, XTestGoFiles []string
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			return s, nil
		} else if err != nil {
			return nil, err
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			s.packages = append(s.packages, testPackage{
				path: p.ImportPath, name: p.Name, dir: p.Dir,
				built: filepath.Join(r.temp, folder+"_tests", strconv.Itoa(len(s.packages))),
			})
		}
	}
}

// folder returns the folder of a package.
func (p testPackage) folder(goroot string) string {
	if p.std {
		return filepath.Join(goroot, "src", p.dir)
	}
	return p.dir
}

// binary returns the path of the test binary of a package.
func (r *runner) binary(p testPackage, goroot string) string {
	if goroot == r.changed {
		return filepath.Join(p.built, "wrapped.test")
	}
	return filepath.Join(p.built, "bare.test")
}

// build builds the tests of a suite with a GOROOT.
func (r *runner) build(ctx context.Context, s *suite, goroot string) error {
	for _, p := range s.packages {
		args := []string{"test", "-c", "-vet=off", "-o", r.binary(p, goroot)}
		if r.race {
			args = append(args, "-race")
		}
		cmd := r.goCommand(ctx, goroot, s.module, append(args, p.path)...)
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building the tests of %s with %s: %w\n%s", p.path, goroot, err, text)
		}
	}
	return nil
}

// goCommand returns a go command that runs from a GOROOT. The settings in the
// environment are for the module of this program.
func (r *runner) goCommand(ctx context.Context, goroot, dir string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(goroot, "bin", "go"), args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PWD="+dir, "GOROOT="+goroot, "GOTOOLCHAIN=local", "GOFLAGS=", "GOWORK=off")
	return cmd
}

// output runs a command and returns its output.
func output(ctx context.Context, dir, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", name, strings.Join(args, " "), err, stderrOf(err))
	}
	return string(out), nil
}

// stderrOf returns the standard error of a command.
func stderrOf(err error) []byte {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return exit.Stderr
	}
	return nil
}
