//go:build ignore

// Prose checks the comments of Go files and Markdown: those of the repository,
// or of the files and folders in its arguments. Comments wrap at 80 columns,
// with tabs of 4, and Markdown at 120. Spelling is American. Verbs that
// describe a program as a person are not used. Two rules are about clauses:
//
//   - A clause with "what" is a question. In a statement, it follows a verb
//     such as "decides" or "shows" (see asks). It does not stand for a noun.
//   - A colon does not join two statements. A period does, or "because". A
//     colon may follow a label ("Hazard B7"), and may precede a list, a name, a
//     value or a quotation. See isStatement for the definition of a statement.
//
// Instead of the sentences on the left, write those on the right:
//
//	It returns what was read.              It returns the bytes read.
//	cfg is copied: what it points to       New makes a shallow copy of cfg.
//	is not.
//	The budget is empty: no retry is sent. If the budget is empty, no retry is
//	                                       sent.
//
// The rules know a few words and no grammar. So each run first checks that they
// find the right sentences of examples. In the comments of net/http and its
// subpackages in Go 1.26, without tests, they find 26 sentences.
package main

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"unicode"
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
	directive  = regexp.MustCompile(`^//[a-z]+:`)
	output     = regexp.MustCompile(`(?i)^// (?:unordered )?output:`)
	generated  = regexp.MustCompile(`(?m)^// Code generated .* DO NOT EDIT\.$`)
	inlineCode = regexp.MustCompile("`[^`]*`")
	listItem   = regexp.MustCompile(`^\s*(?:[-*•]|\d+[.)])\s+`)
	sentence   = regexp.MustCompile(`.+?(?:[.!?]["')*\]]*(?:\s+|$)|$)`)
	what       = regexp.MustCompile(`(?:^|[^"])\b[Ww]hat\b`)
	colon      = regexp.MustCompile(`:\s+`) // not that of a **label:**
	value      = regexp.MustCompile(`^["“\d]`)
	tokens     = regexp.MustCompile(`\w(?:[\w'’./-]*\w)?|[,;()–]`)

	// asks ends with a verb that an indirect question may follow. Between them
	// may be a person and an adverb: "tells you only what".
	asks = regexp.MustCompile(`(?i)\b(?:(?:describ|determin|decid|defin|stat|(?:not |n't |who )car)(?:e|es|ed|ing)|` +
		`(?:show|explain|document|learn|ask|understand)(?:s|n|ed|ing)?|know(?:s|n|ing)?|knew|understood|` +
		`say(?:s|ing)?|said|specif(?:y|ies|ied|ying)|tell(?:s|ing)?|told|sees?|seen|matter(?:s|ed)?|` +
		`(?:find|found|figure|figuring|work)(?:s|d|ing)? out)(?: (?:us|you|him|them|it))?(?: (?:exactly|only|just))?,? $`)
)

// The words that isStatement knows.
var (
	auxiliary = words(`is are was were has have had does do did can cannot may might must will
		would should could isn't aren't wasn't weren't hasn't haven't doesn't don't didn't can't
		won't wouldn't shouldn't it's that's there's came went began broke gave took became knew
		wrote saw lost kept got`)
	// These are verbs unless an article, a preposition or the like precedes
	// them.
	verbs = words(`accepts accumulate accumulates add adds agree allow allows answers appears
		applies apply arrive arrives asks begin begins belong belongs bounds breaks calls
		cancels changes checks closes comes compares concerns considers consists consumes
		contains continue continues copies costs counts covers decide decides delays depend
		depends describes determines differ differs drains drops ends exceed exceeds exist
		exists expires fails finds fits follows gets gives goes happen happens has helps holds
		ignores includes keeps knows lacks lasts leads leaves lets lies limits logs looks loses
		makes marks matches matters mean means measures moves multiplies multiply names need
		needs obtains occurs opens outlives overflows overlap owns panics passes points prefers
		prevents prints protects proves reaches reads receives recover recovers refers refills
		refuses rejects releases remain remains removes repeats replaces reports requires
		resends resets resumes returns runs saves says seems sends sets share shares shows signs
		sleeps spreads starts stays stops succeed succeeds supplies takes tells tests throws
		tries turns uses wait waits wants wins works writes`)
	notBeforeVerb = words(`a an the its his her their our these those this no not of for in on
		at with by to from as than all any some each both many several most few two three four
		ten and or own other such first last next same between whose per into without until`)
	// A subordinate clause begins with one of these, and has a verb.
	subordinate = words(`that which who whose whom if when because while where what how whether
		unless although though till since whatever whoever wherever so lest once`)
	pronoun = words(`it they he she you we one this these nobody nothing somebody`)
	// A command begins with one of these, or is after one of the others and a
	// comma: "To retry, send it again".
	beforeImperative = words(`if when where to for with without in before after`)
	imperative       = words(`add ask avoid call check choose close count do don't give ignore keep
		leave let limit make never pass prefer put read run send set share start test treat try
		use wait write`)
)

// words returns the set of the words in list.
func words(list string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(list) {
		set[w] = true
	}
	return set
}

// clauses calls found with the kind and the offset of each clause in a
// paragraph that breaks a rule.
func clauses(paragraph string, found func(kind string, at int)) {
	for _, span := range sentence.FindAllStringIndex(paragraph, -1) {
		text := strings.TrimRight(paragraph[span[0]:span[1]], ` *_)"`)
		if strings.HasSuffix(text, "?") {
			continue
		}
		for _, at := range what.FindAllStringIndex(text, -1) {
			if !asks.MatchString(text[:at[1]-len("what")]) {
				found("what", span[0]+at[0])
			}
		}
		for _, at := range colon.FindAllStringIndex(text, -1) {
			left, right := text[:at[0]], text[at[1]:]
			left = left[strings.LastIndex(left, ";")+1:]
			if !value.MatchString(right) && isStatement(left, true) && isStatement(right, false) {
				found("colon", span[0]+at[0])
			}
		}
	}
}

// isStatement reports whether text has a verb that is not that of a subordinate
// clause, or is a command. At the beginning of a sentence, any verb is enough,
// since that of a relative clause is often unknown. There, the second word may
// be an unknown verb, as in "retryAfter parses the header".
func isStatement(text string, beginsSentence bool) bool {
	tokens := tokens.FindAllString(text, -1)
	open := 0 // subordinate clauses without a verb so far
	before := ""
	for i, token := range tokens {
		lower := strings.ToLower(token)
		isVerb := auxiliary[lower] && token != "May" || i > 0 && !notBeforeVerb[before] &&
			(verbs[lower] || i == 1 && beginsSentence && strings.HasSuffix(lower, "s"))
		switch {
		case imperative[lower] &&
			(i == 0 || before == "," && beforeImperative[strings.ToLower(tokens[0])]):
			return true
		case isVerb && (open == 0 || beginsSentence):
			return true
		case isVerb:
			open--
		case token == "," || token == ";":
			open = 0
		case beginsClause(lower, before, tokens[i+1:]):
			open++
		}
		before = lower
	}
	return false
}

// beginsClause reports whether a word, between the one before and those after
// it, begins a subordinate clause.
func beginsClause(word, before string, after []string) bool {
	switch word {
	case "that": // or a pronoun, the subject of a statement
		return before != "" && before != ","
	case "than", "as", "after", "before": // or a preposition
		return len(after) > 0 && (pronoun[after[0]] || unicode.IsUpper(rune(after[0][0])))
	}
	return subordinate[word]
}

// findings are printed, and counted by their kinds.
type findings struct {
	out   io.Writer
	kinds map[string]int
}

func (f findings) add(file string, line int, kind, text, message string) {
	f.kinds[kind]++
	fmt.Fprintf(f.out, "%s:%d: %s: %s\n", file, line, text, message)
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

// paragraphs checks the clauses of consecutive lines, from the line number on.
// Blocks of code in them are indented.
func (f findings) paragraphs(path string, number int, lines []string) {
	var text strings.Builder
	var starts []int // of lines in text
	first, inList := 0, false
	flush := func() {
		clauses(text.String(), func(kind string, at int) {
			line := first + len(starts) - 1
			for starts[line-first] > at {
				line--
			}
			around := text.String()[max(0, at-20):min(at+30, text.Len())]
			message := map[string]string{
				"what":  "use a noun",
				"colon": "write two sentences, or give the reason",
			}
			f.add(path, line, kind, strings.ToValidUTF8(around, ""), message[kind])
		})
		text.Reset()
		starts = nil
	}
	for i, line := range append(lines, "") {
		item := listItem.FindString(line)
		indented := strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "  ")
		blank := strings.TrimSpace(line) == ""
		inList = item != "" || inList && (indented || blank)
		isCode := indented && !inList
		if blank || isCode || item != "" {
			flush()
		}
		if blank || isCode {
			continue
		}
		if len(starts) == 0 {
			first = number + i
		}
		starts = append(starts, text.Len())
		text.WriteString(strings.TrimSpace(line[len(item):]) + " ")
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
		var prose []string
		for i, comment := range group.List {
			if output.MatchString(comment.Text) {
				limit = 1000 // the output of an Example cannot be wrapped
			}
			at := fset.Position(comment.Pos())
			next := strings.TrimLeft(group.List[min(i+1, len(group.List)-1)].Text, "/ ")
			for n, text := range strings.Split(comment.Text, "\n") {
				whole := strings.ReplaceAll(lines[at.Line-1+n], "\t", "    ")
				if n == 0 && !strings.HasPrefix(strings.TrimSpace(whole), "/") || directive.MatchString(text) {
					whole = "" // the code before it, or a directive, cannot be wrapped
				}
				f.line(path, at.Line+n, utf8.RuneCountInString(whole), limit, text, next)
				if directive.MatchString(text) || limit > 80 {
					text = ""
				}
				text = strings.TrimPrefix(strings.TrimPrefix(text, "/*"), "//")
				prose = append(prose, strings.TrimSuffix(strings.TrimPrefix(text, " "), "*/"))
			}
		}
		f.paragraphs(path, fset.Position(group.Pos()).Line, prose)
	}
	return nil
}

func (f findings) markdown(path, src string) {
	fenced := false
	lines := strings.Split(src+"\n", "\n")
	prose := make([]string, len(lines)) // without code, headings and tables
	for i, text := range lines[:len(lines)-1] {
		fence := strings.HasPrefix(strings.TrimSpace(text), "```")
		fenced = fenced != fence // a fence begins a block of code or ends it
		if fence || fenced || strings.HasPrefix(text, "    ") {
			continue
		}
		width := utf8.RuneCountInString(text)
		text = inlineCode.ReplaceAllString(text, "``")
		switch text[:min(1, len(text))] {
		case "|": // each cell is a paragraph, and the row cannot be wrapped
			width = 0
			for cell := range strings.SplitSeq(text, "|") {
				f.paragraphs(path, i+1, []string{strings.TrimSpace(cell)})
			}
		case "#":
			f.paragraphs(path, i+1, []string{text})
		default:
			prose[i] = text
		}
		f.line(path, i+1, width, 120, text, strings.TrimSpace(lines[i+1]))
	}
	f.paragraphs(path, 1, prose)
}

// examples are sentences and the kinds of finding in them.
var examples = []struct{ sentence, kinds string }{
	{"New copies cfg: what it points to is not copied.", "colon what"},
	{"It returns what was read.", "what"},
	{"What servers say is parsed here.", "what"},
	{"the size of what is kept", "what"},
	{"The last column shows what is left.", ""},
	{"It decides only what the first attempt does.", ""},
	{"What does a timeout limit?", ""},
	{"The budget is empty: no retry is sent.", "colon"},
	{"Ignore the error: the response has a body.", "colon"},
	{"Processes that share a seed wait for the same times: leave Rand nil.", "colon"},
	{"An error does not say that it is the caller's: if the timer fired first, it is another one.", "colon"},
	{"The wait ends: RoundTrip returns the response.", "colon"},
	{"Hazard B7: the server closes the connection.", ""},
	{"Deprecated: callers should not use it.", ""},
	{"The most specific one has three parts: a scheme, a host and a port.", ""},
	{"The context has two ends: the caller's, and one that is set when the timer fires.", ""},
	{"The header is Retry-After: 5.", ""},
	{"If a host has several limits, set CooldownKey: requests with the same key share one.", "colon"},
	{"parsePort returns the port: nothing, a colon, or a colon and the digits that follow it.", ""},
	{"If the outer one cannot see it, that does not hold: then three attempts are five.", "colon"},
	{"**A layer that changes requests:** Base must change a clone.", ""},
	{"A request that somebody deletes does not arrive: set a deadline.", "colon"},
	{`The type has a zero value: "".`, ""},
	{"nil: the source that all share", ""},
	{"The hourly limit has X-RateLimit-Remaining: 0 and is final.", ""},
	{"needSockets skips the test in some networks: there, errors are not the same.", "colon"},
	{"It is late; nil: the response is used.", ""},
	{"The wait has a limit: one as long as RoundTrip takes.", ""},
	{"The clock is that of the client: Wed, 06 May 2026.", ""},
}

// checkExamples returns an error if the rules for clauses do not find the right
// ones of the examples in a comment and in Markdown.
func checkExamples() error {
	var errs []error
	for _, e := range examples {
		inGo := findings{io.Discard, map[string]int{}}
		errs = append(errs, inGo.goFile("example.go", "package p\n\n// Text:\n//\n// "+e.sentence+"\n"))
		inMarkdown := findings{io.Discard, map[string]int{}}
		inMarkdown.markdown("example.md", "# Heading\n\n"+e.sentence+"\n")
		for _, found := range []findings{inGo, inMarkdown} {
			delete(found.kinds, "width")
			if got := strings.Join(slices.Sorted(maps.Keys(found.kinds)), " "); got != e.kinds {
				errs = append(errs, fmt.Errorf("example %q: found %q, want %q", e.sentence, got, e.kinds))
			}
		}
	}
	return errors.Join(errs...)
}

func main() {
	args := append([]string{"ls-files", "-co", "--exclude-standard", "--"}, os.Args[1:]...)
	list, err := exec.Command("git", args...).Output()
	found, errs := findings{os.Stdout, map[string]int{}}, []error{checkExamples(), err}
	for _, path := range strings.Fields(string(list)) {
		src, err := os.ReadFile(path)
		switch {
		case err != nil && !os.IsNotExist(err): // git still knows what was just deleted
			errs = append(errs, err)
		case strings.HasSuffix(path, ".md"):
			found.markdown(path, string(src))
		case strings.HasSuffix(path, ".go") && err == nil:
			errs = append(errs, found.goFile(path, string(src)))
		}
	}
	if err := errors.Join(errs...); err != nil || len(found.kinds) > 0 {
		fmt.Fprintln(os.Stderr, "prose:", found.kinds, err)
		os.Exit(1)
	}
}
