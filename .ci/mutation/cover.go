package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"
)

// goPackage has the fields that go list prints of a package.
type goPackage struct {
	ImportPath, Dir                    string
	GoFiles, TestGoFiles, XTestGoFiles []string
	Deps, TestImports, XTestImports    []string
}

// A suite is the tests of one package, with the places that each one reaches,
// and its time.
type suite struct {
	Path  string // the import path
	Dir   string // relative to the root of the module
	Key   string // a hash of all files that the tests are made of
	Tests []*test

	Blocks []string // "file:line.column,line.column" of all that is linked

	mu sync.Mutex
}

type test struct {
	Name    string
	Cost    time.Duration
	Reached []int // indexes of Blocks
	Broken  bool  // it fails without a change

	blocks map[string]bool // made from Reached
	files  map[string]bool
}

type block struct {
	name     string
	from, to position
}

// project is the module whose code is changed.
type project struct {
	root     string
	cache    string
	module   string
	packages map[string]*goPackage
	suites   []*suite
	blocks   map[string][]block // of each file, whether a test reaches them or not
	tests    string             // folders of the suites that are used; "": all
	jobs     int
	limit    time.Duration
}

func (pr *project) relative(dir string) string {
	rel, err := filepath.Rel(pr.root, dir)
	if err != nil {
		return dir
	}
	return filepath.ToSlash(rel)
}

// load asks the go command for the packages of the module, those that tests
// import included.
func (pr *project) load() error {
	out, err := command(pr.root, "go", "list", "-json=ImportPath,Dir,GoFiles,TestGoFiles,XTestGoFiles,Deps,TestImports,XTestImports", "./...")
	if err != nil {
		return err
	}
	pr.packages = map[string]*goPackage{}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		p := &goPackage{}
		if err := dec.Decode(p); err == io.EOF {
			break
		} else if err != nil {
			return err
		}
		pr.packages[p.ImportPath] = p
		if p.Dir == pr.root {
			pr.module = p.ImportPath
		}
	}
	for _, p := range pr.packages {
		used := pr.tests == "" || slices.Contains(strings.Split(pr.tests, ","), pr.relative(p.Dir))
		if used && len(p.TestGoFiles)+len(p.XTestGoFiles) > 0 {
			key, err := pr.key(p)
			if err != nil {
				return err
			}
			pr.suites = append(pr.suites, &suite{Path: p.ImportPath, Dir: pr.relative(p.Dir), Key: key})
		}
	}
	slices.SortFunc(pr.suites, func(a, b *suite) int { return strings.Compare(a.Path, b.Path) })
	return nil
}

// targets returns the packages whose code is changed: the root, strategies,
// policyfile, and the leaves that are not helpers of tests.
func (pr *project) targets() []*goPackage {
	var all []*goPackage
	for _, p := range pr.packages {
		dir := pr.relative(p.Dir)
		leaf := strings.HasPrefix(dir, "internal/") && dir != "internal/contract" && dir != "internal/faults"
		if dir == "." || dir == "strategies" || dir == "policyfile" || leaf {
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b *goPackage) int { return strings.Compare(a.ImportPath, b.ImportPath) })
	return all
}

// key hashes the files that the tests of a package are made of: its folder,
// the code of the packages of this module that it imports, the requirements,
// and the version of Go.
func (pr *project) key(p *goPackage) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, goVersion(), p.ImportPath)
	files := []string{filepath.Join(pr.root, "go.mod"), filepath.Join(pr.root, "go.sum")}
	for _, q := range pr.packages {
		if pr.imports(p, q) {
			for _, file := range q.GoFiles {
				files = append(files, filepath.Join(q.Dir, file))
			}
		}
	}
	for _, file := range slices.Concat(p.GoFiles, p.TestGoFiles, p.XTestGoFiles) {
		files = append(files, filepath.Join(p.Dir, file))
	}
	err := filepath.WalkDir(filepath.Join(p.Dir, "testdata"), func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			files = append(files, file)
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	slices.Sort(files)
	for _, file := range slices.Compact(files) {
		data, err := os.ReadFile(file)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(hash, "%s %x\n", pr.relative(file), sha256.Sum256(data))
	}
	return hex.EncodeToString(hash.Sum(nil))[:24], nil
}

// treeKey hashes the keys of all suites.
func (pr *project) treeKey() string {
	hash := sha256.New()
	for _, s := range pr.suites {
		fmt.Fprintln(hash, s.Key)
	}
	return hex.EncodeToString(hash.Sum(nil))[:24]
}

// imports reports whether p or its tests import q, directly or not.
func (pr *project) imports(p, q *goPackage) bool {
	if slices.Contains(p.Deps, q.ImportPath) {
		return true
	}
	for _, path := range slices.Concat(p.TestImports, p.XTestImports) {
		if r := pr.packages[path]; path == q.ImportPath || r != nil && slices.Contains(r.Deps, q.ImportPath) {
			return true
		}
	}
	return false
}

// cover fills in the tests of each suite, from the cache if it knows them.
func (pr *project) cover() error {
	for _, s := range pr.suites {
		file := filepath.Join(pr.cache, "cover-"+s.Key+".json")
		data, err := os.ReadFile(file)
		if err == nil && json.Unmarshal(data, s) == nil {
			pr.report(s)
			continue
		}
		fmt.Printf("measuring the places that each test of %s reaches\n", s.Path)
		if err := pr.measure(s); err != nil {
			return err
		}
		if data, err = json.Marshal(s); err != nil {
			return err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return err
		}
		pr.report(s)
	}
	return pr.index()
}

func (pr *project) report(s *suite) {
	for _, t := range s.Tests {
		if t.Broken {
			fmt.Printf("%s of %s fails without a change, and is not used\n", t.Name, s.Path)
		}
	}
}

// measure runs each test of a suite alone.
func (pr *project) measure(s *suite) error {
	var packages []string
	for _, p := range pr.targets() {
		packages = append(packages, p.ImportPath)
	}
	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	binary := filepath.Join(work, "cover.test")
	if _, err := command(pr.root, "go", "test", "-c", "-vet=off", "-covermode=atomic",
		"-coverpkg="+strings.Join(packages, ","), "-o", binary, s.Path); err != nil {
		return err
	}
	out, err := command(filepath.Join(pr.root, s.Dir), binary, "-test.list", ".")
	if err != nil {
		return err
	}
	for _, name := range strings.Fields(string(out)) {
		if regexp.MustCompile(`^(Test|Fuzz|Example)`).MatchString(name) {
			s.Tests = append(s.Tests, &test{Name: name})
		}
	}
	var wg sync.WaitGroup
	slots, errs := make(chan struct{}, pr.jobs), make([]error, len(s.Tests))
	for i, t := range s.Tests {
		slots <- struct{}{}
		wg.Go(func() {
			errs[i] = pr.measureTest(s, t, binary, fmt.Sprintf("%s.%d", binary, i))
			<-slots
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// measureTest runs one test, and once more if it fails.
func (pr *project) measureTest(s *suite, t *test, binary, profile string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	for range 2 {
		started := time.Now()
		cmd := exec.CommandContext(ctx, binary, "-test.run", "^"+t.Name+"$", "-test.coverprofile", profile)
		cmd.Dir = filepath.Join(pr.root, s.Dir)
		err := cmd.Run()
		t.Cost, t.Broken = time.Since(started), err != nil
		if err == nil {
			break
		}
	}
	if t.Broken {
		return nil
	}
	return s.read(t, pr.module, profile)
}

// read adds the places in a coverage profile to t.
func (s *suite) read(t *test, module, profile string) error {
	data, err := os.ReadFile(profile)
	if err != nil {
		return err
	}
	_, text, _ := strings.Cut(string(data), "\n") // the mode
	var blocks []string
	for line := range strings.Lines(text) {
		fields := strings.Fields(strings.TrimPrefix(line, module+"/")) // file:12.3,14.5 statements count
		if len(fields) != 3 {
			return fmt.Errorf("%s: the coverage of %s has a line %q", s.Path, t.Name, line)
		}
		if fields[2] != "0" {
			t.Reached = append(t.Reached, len(blocks))
		}
		blocks = append(blocks, fields[0])
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.Blocks == nil {
		s.Blocks = blocks
	}
	if !slices.Equal(s.Blocks, blocks) {
		return fmt.Errorf("%s: the coverage of %s has other blocks than that of the test before", s.Path, t.Name)
	}
	return os.Remove(profile)
}

// index makes the blocks searchable.
func (pr *project) index() error {
	pr.blocks = map[string][]block{}
	seen := map[string]bool{}
	for _, s := range pr.suites {
		for _, t := range s.Tests {
			t.blocks, t.files = map[string]bool{}, map[string]bool{}
			for _, i := range t.Reached {
				file, _, _ := strings.Cut(s.Blocks[i], ":")
				t.blocks[s.Blocks[i]], t.files[file] = true, true
			}
		}
		for _, name := range s.Blocks {
			if seen[name] {
				continue
			}
			seen[name] = true
			b := block{name: name}
			file, at, _ := strings.Cut(name, ":")
			if _, err := fmt.Sscanf(at, "%d.%d,%d.%d", &b.from.line, &b.from.column, &b.to.line, &b.to.column); err != nil {
				return fmt.Errorf("coverage has a block %q: %w", name, err)
			}
			pr.blocks[file] = append(pr.blocks[file], b)
		}
	}
	return nil
}

// blockOf returns the block that decides whether a place is executed: the
// innermost that contains it, or else the last before it in its function. It
// returns "" if there is none, and a place belongs to the whole file.
func (pr *project) blockOf(p *place) string {
	var found block
	for _, b := range pr.blocks[p.File] {
		if p.clause != (position{}) { // the first block of the clause
			if !b.from.before(p.at) && b.from.before(p.clause) && (found.name == "" || b.from.before(found.from)) {
				found = b
			}
			continue
		}
		inside, found1 := p.at.before(b.to), p.at.before(found.to)
		if p.at.before(b.from) || b.from.before(p.function) || found1 && !inside {
			continue
		}
		if inside && !found1 || found.from.before(b.from) {
			found = b
		}
	}
	if p.anywhere {
		return ""
	}
	return found.name
}

// reaches reports whether a test executes a place.
func (pr *project) reaches(t *test, p *place) bool {
	if name := pr.blockOf(p); name != "" {
		return t.blocks[name]
	}
	return t.files[p.File]
}
