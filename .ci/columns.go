//go:build ignore

// Columns checks that the code of the root module, tests included, has at most
// 100 columns, with tabs of 4. Prose.go checks comments. A line may be longer
// if it contains a URL, a long string literal, or a part of a raw string of
// several lines.
//
//	go run .ci/columns.go
package main

import (
	"fmt"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

const (
	maxColumns = 100
	maxLiteral = 50 // a longer literal need not be split
)

func main() {
	files, lines := 0, 0
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != "." && isForeign(path):
			return filepath.SkipDir
		case d.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		source, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		files++
		for _, line := range tooLong(source) {
			lines++
			fmt.Printf("%s:%d: more than %d columns\n", path, line, maxColumns)
		}
		return nil
	})
	if err != nil {
		fmt.Fprintln(os.Stderr, "columns:", err)
		os.Exit(2)
	}
	fmt.Printf("columns: %d files, %d lines are too long\n", files, lines)
	if files == 0 || lines > 0 {
		os.Exit(1)
	}
}

// isForeign reports whether dir has no code of the root module.
func isForeign(dir string) bool {
	_, err := os.Stat(filepath.Join(dir, "go.mod"))
	name := filepath.Base(dir)
	return err == nil || name == "testdata" || strings.HasPrefix(name, ".")
}

// tooLong returns the numbers of the lines that are too long.
func tooLong(source []byte) (numbers []int) {
	exempt := exemptions(source)
	n := 0
	for line := range strings.Lines(string(source)) {
		n++
		text := strings.ReplaceAll(strings.TrimRight(line, "\n"), "\t", "    ")
		isComment := strings.HasPrefix(strings.TrimSpace(line), "//")
		if utf8.RuneCountInString(text) > maxColumns && !isComment && !exempt[n] &&
			!strings.Contains(text, "://") {
			numbers = append(numbers, n)
		}
	}
	return numbers
}

// exemptions returns the lines that contain a long literal, or a part of a raw
// string of several lines.
func exemptions(source []byte) map[int]bool {
	exempt := map[int]bool{}
	fset := token.NewFileSet()
	file := fset.AddFile("", -1, len(source))
	var s scanner.Scanner
	s.Init(file, source, nil, 0)
	for {
		pos, tok, literal := s.Scan()
		if tok == token.EOF {
			return exempt
		}
		breaks := strings.Count(literal, "\n")
		if tok != token.STRING || breaks == 0 && utf8.RuneCountInString(literal) <= maxLiteral {
			continue
		}
		first := file.Line(pos)
		for n := first; n <= first+breaks; n++ {
			exempt[n] = true
		}
	}
}
