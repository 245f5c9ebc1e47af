// Command conformance runs HTTP clients against a server that fails, and
// reports what each of them does. README.md describes the results, PROTOCOL.md
// how to add a client.
package main

import (
	"crypto/tls"
	"encoding/pem"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
)

func main() {
	var o options
	flag.StringVar(&o.command, "client", "", "run this `command` instead of the clients of this folder")
	flag.StringVar(&o.clients, "clients", "", "run the clients, in all languages, that match this `regexp`")
	flag.StringVar(&o.cases, "run", "", "run the cases whose id matches this `regexp`")
	flag.BoolVar(&o.all, "all", false, "run the clients in other languages, too")
	flag.StringVar(&o.write, "write", "", "write RESULTS.md and results.html into this `folder`")
	flag.BoolVar(&o.verbose, "v", false, "print the result of each case")
	flag.Parse()
	if err := o.run(); err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

type options struct {
	command, clients, cases, write string
	all, verbose                   bool
}

// Spec is a client of this folder.
type Spec struct {
	Name     string
	Command  []string
	Language string
	Best     bool // with the best settings of its documentation
}

// specs returns the clients of this folder. golang is the program for those in
// Go.
func specs(golang string) (all []Spec) {
	for _, name := range []string{
		"httpretry", "net/http", "go-retryablehttp", "rehttp", "failsafe-go", "resty v3",
	} {
		all = append(all, pair(name, "Go", golang, name)...)
	}
	all = append(all, pair("curl", "C", "/usr/bin/python3", "clients/curl.py")...)
	all = append(all, pair("requests", "Python", "/usr/bin/python3", "clients/python/requests_client.py")...)
	all = append(all, pair("httpx", "Python", "/usr/bin/python3", "clients/python/httpx_client.py")...)
	all = append(all, pair("undici", "JavaScript", "node", "clients/node/undici.mjs")...)
	all = append(all, pair("got", "JavaScript", "node", "clients/node/got.mjs")...)
	all = append(all, pair("ky", "JavaScript", "node", "clients/node/ky.mjs")...)
	return slices.DeleteFunc(all, func(s Spec) bool { return s.Name == "net/http, best" }) // it has none
}

// pair returns a client with its defaults and with its best settings.
func pair(name, language string, command ...string) []Spec {
	best := append(slices.Clone(command), "-best")
	return []Spec{{name, command, language, false}, {name + ", best", best, language, true}}
}

func (o options) run() error {
	cases, err := load()
	if err != nil {
		return err
	}
	match, err := regexp.Compile(o.cases)
	if err != nil {
		return fmt.Errorf("-run: %w", err)
	}
	cases = slices.DeleteFunc(cases, func(c *Case) bool { return !match.MatchString(c.ID) })
	if len(cases) == 0 {
		return fmt.Errorf("-run %q: no case matches", o.cases)
	}
	temp, err := os.MkdirTemp("", "conformance")
	if err != nil {
		return err
	}
	defer os.RemoveAll(temp)
	selected, err := o.selected(temp)
	if err != nil {
		return err
	}
	cfg, der := certificate()
	roots := filepath.Join(temp, "roots.pem")
	block := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	if err := os.WriteFile(roots, block, 0o600); err != nil {
		return err
	}
	results, err := runClients(selected, cases, cfg, roots)
	if err != nil {
		return err
	}
	return o.report(results, cases)
}

// selected returns the clients to run. It builds those in Go.
func (o options) selected(temp string) ([]Spec, error) {
	if o.command != "" {
		return []Spec{{Name: o.command, Command: strings.Fields(o.command)}}, nil
	}
	match, err := regexp.Compile(o.clients)
	if err != nil {
		return nil, fmt.Errorf("-clients: %w", err)
	}
	golang := filepath.Join(temp, "golang")
	build := exec.Command("go", "build", "-o", golang, "./clients/golang")
	if output, err := build.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w: %s", err, output)
	}
	selected := slices.DeleteFunc(specs(golang), func(s Spec) bool {
		return !match.MatchString(s.Name) || o.clients == "" && !o.all && s.Language != "Go"
	})
	if len(selected) == 0 {
		return nil, fmt.Errorf("-clients %q: no client matches", o.clients)
	}
	return selected, nil
}

// Result is what one client does.
type Result struct {
	Spec
	Version  string    // as the client says
	Skipped  error     // why it could not be run
	Verdicts []Verdict // by case
}

// runClients runs some clients at the same time, because they mostly wait. It
// runs those in Go first. The others work more.
func runClients(selected []Spec, cases []*Case, cfg *tls.Config, roots string) ([]Result, error) {
	results, errs := make([]Result, len(selected)), make([]error, len(selected))
	slots := make(chan struct{}, 6)
	var wg sync.WaitGroup
	for i, spec := range selected {
		share, parallel := 2, 24
		if spec.Language != "Go" {
			share, parallel = 3, 12
		}
		for range share {
			slots <- struct{}{}
		}
		wg.Go(func() {
			defer func() {
				for range share {
					<-slots
				}
			}()
			results[i] = Result{Spec: spec}
			cl, err := startClient(spec.Command, roots)
			if err != nil {
				results[i].Skipped = err
				fmt.Fprintf(os.Stderr, "%s: skipped: %v\n", spec.Name, err)
				return
			}
			results[i].Version = cl.name
			trials, err := runAll(cl, cases, cfg, parallel)
			if err = errors.Join(err, cl.stop()); err != nil {
				errs[i] = fmt.Errorf("%s: %w", spec.Name, err)
				return
			}
			for _, t := range trials {
				results[i].Verdicts = append(results[i].Verdicts, judge(t))
			}
			fmt.Fprintf(os.Stderr, "%s: done\n", spec.Name)
		})
	}
	wg.Wait()
	return results, errors.Join(errs...)
}
