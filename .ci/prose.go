//go:build ignore

// Prose checks the comments of Go files and Markdown. Comments wrap at 80
// columns, with tabs of 4, and Markdown at 120. Spelling is American. Verbs
// that describe a program as a person are not used.
package main

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"unicode/utf8"
)

var (
	word    = regexp.MustCompile(`\b[A-Za-z][a-z]+\b`) // and no part of an identifier
	british = regexp.MustCompile(`^(?:(?:un|re|de|mis|inter)?(?:` +
		`behaviour|colour|honour|favour|neighbour|flavour|labell|travell|dialled|dialling|cancelled|cancelling|` +
		`modelled|modelling|signalled|signalling|canonicalis|internationalis|recognis|serialis|initialis|normalis|` +
		`synchronis|generalis|specialis|summaris|customis|authoris|utilis|finalis|randomis|tokenis|categoris|` +
		`parallelis|prioritis|(?:optim|organ|minim|maxim|real|emphas)is(?:e[ds]?$|ing|ation)|analys(?:e[dr]?$|ing))[a-z]*|` +
		`centred?|grey|fulfil|licence|defence|whilst|amongst|spelt|learnt|artefacts?|practised?|programmes?)$`)
	verb = regexp.MustCompile(`(?i)\b(?:hears?|heard|(?:is|are|was|were|be|being|been|gets?) told|tells? of|` +
		`hand(?:s|ed|ing)? back|lets? go|(?:leaves?|left|leaving) alone|(?:asks?|asked|wants?) to be|in vain|` +
		`for ever|speaks? (?:of|for)|(?:is|are|be|been) taken for|(?:leaves?|left|leaving) behind|` +
		`(?:says?|knows?|learns?) nothing|tells? the truth|takes? note|poses? as|its own business|nobody's)\b`)
	inlineCode = regexp.MustCompile("`[^`]*`")
	directive  = regexp.MustCompile(`^//[a-z]+:`)
	output     = regexp.MustCompile(`(?i)^// (?:unordered )?output:`)
	generated  = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
)

// findings counts what was found by kind.
type findings map[string]int

func (f findings) add(file string, line int, kind, text, message string) {
	f[kind]++
	fmt.Printf("%s:%d: %s: %s\n", file, line, text, message)
}

// line checks a line of prose. A phrase may end in the next one.
func (f findings) line(file string, number, width, limit int, text, next string) {
	if width > limit && !strings.Contains(text, "://") {
		f.add(file, number, "width", fmt.Sprintf("%d columns", width), fmt.Sprintf("wrap at %d", limit))
	}
	for _, w := range word.FindAllString(text, -1) {
		if british.MatchString(strings.ToLower(w)) {
			f.add(file, number, "spelling", w, "use the American spelling")
		}
	}
	for _, at := range verb.FindAllStringIndex(text+" "+next, -1) {
		if at[0] < len(text) {
			f.add(file, number, "verb", (text + " " + next)[at[0]:at[1]], "use a verb for programs")
		}
	}
}

func (f findings) goFile(path, src string) error {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.ParseComments)
	if err != nil || generated.MatchString(src) {
		return err
	}
	lines := strings.Split(src, "\n")
	for _, group := range file.Comments {
		limit := 80
		for i, comment := range group.List {
			if output.MatchString(comment.Text) {
				limit = 1000 // what an Example prints cannot be wrapped
			}
			at := fset.Position(comment.Pos())
			next := strings.TrimLeft(group.List[min(i+1, len(group.List)-1)].Text, "/ ")
			for n, text := range strings.Split(comment.Text, "\n") {
				whole := strings.ReplaceAll(lines[at.Line-1+n], "\t", "    ")
				if n == 0 && !strings.HasPrefix(strings.TrimSpace(whole), "/") || directive.MatchString(text) {
					whole = "" // the code before it, or what it instructs, cannot be wrapped
				}
				f.line(path, at.Line+n, utf8.RuneCountInString(whole), limit, text, next)
			}
		}
	}
	return nil
}

func (f findings) markdown(path, src string) {
	fenced := false
	lines := strings.Split(src+"\n", "\n")
	for i, text := range lines[:len(lines)-1] {
		fence := strings.HasPrefix(strings.TrimSpace(text), "```")
		fenced = fenced != fence // a fence begins a block of code or ends it
		if fence || fenced || strings.HasPrefix(text, "    ") {
			continue
		}
		width := utf8.RuneCountInString(text)
		if strings.HasPrefix(text, "|") { // a row of a table cannot be wrapped
			width = 0
		}
		f.line(path, i+1, width, 120, inlineCode.ReplaceAllString(text, "``"), strings.TrimSpace(lines[i+1]))
	}
}

func main() {
	list, err := exec.Command("git", "ls-files", "-co", "--exclude-standard", "*.go", "*.md").Output()
	found, errs := findings{}, []error{err}
	for _, path := range strings.Fields(string(list)) {
		src, err := os.ReadFile(path)
		switch {
		case err != nil && !os.IsNotExist(err): // git still knows what was just deleted
			errs = append(errs, err)
		case strings.HasSuffix(path, ".md"):
			found.markdown(path, string(src))
		case err == nil:
			errs = append(errs, found.goFile(path, string(src)))
		}
	}
	if err := errors.Join(errs...); err != nil || len(found) > 0 {
		fmt.Fprintln(os.Stderr, "prose:", found, err)
		os.Exit(1)
	}
}
