//go:build ignore

// Prose checks the sentences in comments of Go files and in Markdown: those of
// the repository, or of some files and folders:
//
//	go run .ci/prose.go -- attempt.go docs
//
// The rules know a few words and no grammar. So each run first checks the
// examples below.
//
//   - Verbs that describe a program as a person are not used.
//   - A clause with "what" is a question. In a statement, it follows a verb
//     such as "decides" or "shows" (see asks). It does not stand for a noun.
//   - A colon does not join two statements. A period does, or "because". A
//     colon may follow a label ("Hazard B7"), and may precede a list, a name, a
//     value or a quotation. See isStatement for the definition of a statement.
package main

import (
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
)

var (
	verb = regexp.MustCompile(`(?i)\b(?:hears?|heard|(?:is|are|was|were|be|being|been|gets?) told|tells? of|` +
		`hand(?:s|ed|ing)? back|lets? go|(?:leaves?|left|leaving) alone|(?:asks?|asked|wants?) to be|in vain|` +
		`for ever|speaks? (?:of|for)|(?:is|are|be|been) taken for|(?:leaves?|left|leaving) behind|` +
		`(?:says?|knows?|learns?) nothing|tells? the truth|takes? note|poses? as|its own business|nobody's)\b`)
	output     = regexp.MustCompile(`(?im)^ *(?:unordered )?output:(?s:.*)`) // of an Example
	inlineCode = regexp.MustCompile("`[^`\n]*`")
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
	auxiliary = words(`is are was were has have had does do did can cannot may might must will would should could isn't
		aren't wasn't weren't hasn't haven't doesn't don't didn't can't won't wouldn't shouldn't it's that's there's came
		went began broke gave took became knew wrote saw lost kept got`)
	// These are verbs unless an article, a preposition or the like precedes
	// them.
	verbs = words(`accepts accumulate accumulates add adds agree allow allows answers appears applies apply arrive arrives
		asks begin begins belong belongs bounds breaks calls cancels changes checks closes comes compares concerns considers
		consists consumes contains continue continues copies costs counts covers decide decides delays depend depends
		describes determines differ differs drains drops ends exceed exceeds exist exists expires fails finds fits follows
		gets gives goes happen happens has helps holds ignores includes keeps knows lacks lasts leads leaves lets lies limits
		logs looks loses makes marks matches matters mean means measures moves multiplies multiply names need needs obtains
		occurs opens outlives overflows overlap owns panics passes points prefers prevents prints protects proves reaches
		reads receives recover recovers refers refills refuses rejects releases remain remains removes repeats replaces
		reports requires resends resets resumes returns runs saves says seems sends sets share shares shows signs sleeps
		spreads starts stays stops succeed succeeds supplies takes tells tests throws tries turns uses wait waits wants wins
		works writes`)
	notBeforeVerb = words(`a an the its his her their our your these those this no not of for in on at with by to from as
		than all any some each both many several most few two three four ten and or own other such first last next same
		between whose per into without until`)
	// A subordinate clause begins with one of these, and has a verb. The others
	// are prepositions, too, unless a pronoun or a name follows them.
	subordinate = words(`that which who whose whom if when because while where what how whether unless although though till
		since whatever whoever wherever so lest once`)
	preposition = words(`than as after before`)
	pronoun     = words(`it they he she you we one this these nobody nothing somebody`)
	isName      = regexp.MustCompile(`^[A-Z]`)
	// A command begins with one of these, or is after one of the others and a
	// comma: "To retry, send it again".
	beforeImperative = words(`if when where to for with without in before after`)
	imperative       = words(`add ask avoid call check choose close count do don't give ignore keep leave let limit make never pass
		prefer put read run send set share start test treat try use wait write`)
)

// words returns the set of the words in list.
func words(list string) map[string]bool {
	set := map[string]bool{}
	for _, w := range strings.Fields(list) {
		set[w] = true
	}
	return set
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
		beginsClause := subordinate[lower] && (lower != "that" || i > 0 && before != ",") ||
			preposition[lower] && i+1 < len(tokens) && (pronoun[tokens[i+1]] || isName.MatchString(tokens[i+1]))
		switch {
		case imperative[lower] && (i == 0 || before == "," && beforeImperative[strings.ToLower(tokens[0])]):
			return true
		case isVerb && (open == 0 || beginsSentence):
			return true
		case isVerb:
			open--
		case token == "," || token == ";":
			open = 0
		case beginsClause:
			open++
		}
		before = lower
	}
	return false
}

// problems calls found with each problem of a paragraph, and with its offset.
func problems(paragraph string, found func(problem string, at int)) {
	for _, at := range verb.FindAllStringIndex(paragraph, -1) {
		found("use a verb for programs", at[0])
	}
	for _, span := range sentence.FindAllStringIndex(paragraph, -1) {
		text := strings.TrimRight(paragraph[span[0]:span[1]], ` *_)"`)
		if strings.HasSuffix(text, "?") {
			continue
		}
		for _, at := range what.FindAllStringIndex(text, -1) {
			if !asks.MatchString(text[:at[1]-len("what")]) {
				found("use a noun instead of what", span[0]+at[0])
			}
		}
		for _, at := range colon.FindAllStringIndex(text, -1) {
			left, right := text[:at[0]], text[at[1]:]
			left = left[strings.LastIndex(left, ";")+1:]
			if !value.MatchString(right) && isStatement(left, true) && isStatement(right, false) {
				found("write two sentences, or give the reason", span[0]+at[0])
			}
		}
	}
}

// check returns the problems of a text that begins at a line of a file, with the
// first line of their paragraphs. Indented lines are code, unless they belong to
// a list.
func check(path string, number int, text string) (found []string) {
	var paragraph []string // the last lines before the next one
	inList := false
	for line := range strings.Lines(text + "\n\n") {
		item := listItem.FindString(line)
		indented := strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "  ")
		blank := strings.TrimSpace(line) == ""
		inList = item != "" || inList && (indented || blank)
		isText := !blank && (inList || !indented)
		if !isText || item != "" {
			text := strings.Join(paragraph, " ")
			problems(text, func(problem string, at int) {
				around := strings.ToValidUTF8(text[max(0, at-20):min(at+30, len(text))], "")
				found = append(found, fmt.Sprintf("%s:%d: %s: %s", path, number-len(paragraph), around, problem))
			})
			paragraph = nil
		}
		if isText {
			paragraph = append(paragraph, strings.TrimSpace(line[len(item):]))
		}
		number++
	}
	return found
}

// checkGo returns the problems in the comments of a Go file.
func checkGo(path, src string) (found []string, err error) {
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, path, src, parser.ParseComments)
	if err != nil {
		return nil, err
	}
	for _, group := range file.Comments {
		text := output.ReplaceAllString(group.Text(), "")
		found = append(found, check(path, fset.Position(group.Pos()).Line, text)...)
	}
	return found, nil
}

// checkMarkdown returns the problems in a Markdown file. A heading, and each
// cell of a table, is a paragraph of its own.
func checkMarkdown(path, src string) (found []string) {
	fenced := false
	lines := strings.Split(inlineCode.ReplaceAllString(src, "``"), "\n")
	for i, text := range lines {
		fence := strings.HasPrefix(strings.TrimSpace(text), "```")
		fenced = fenced != fence // a fence begins a block of code or ends it
		switch {
		case fence || fenced:
		case strings.HasPrefix(text, "|") || strings.HasPrefix(text, "#"):
			for cell := range strings.SplitSeq(text, "|") {
				found = append(found, check(path, i+1, strings.TrimSpace(cell))...)
			}
		default:
			continue
		}
		lines[i] = ""
	}
	return append(found, check(path, 1, strings.Join(lines, "\n"))...)
}

// These sentences break a rule.
var bad = []string{
	"New copies cfg: what it points to is not copied.",
	"It returns what was read.",
	"The budget is empty: no retry is sent.",
	"Ignore the error: the response has a body.",
	"An error does not say that it is the caller's: if the timer fired first, it is another one.",
	"If a host has several limits, set CooldownKey: requests with the same key share one.",
	"The server is told of it.",
}

// These do not.
var good = []string{
	"The last column shows what is left. What does a timeout limit?",
	"Hazard B7: the server closes the connection.",
	"The context has two ends: the caller's, and one that is set when the timer fires.",
	"parsePort returns the port: nothing, a colon, or a colon and the digits that follow it.",
	"**A layer that changes requests:** Base must change a clone.",
	"The hourly limit has X-RateLimit-Remaining: 0 and is final.",
}

func main() {
	args := append([]string{"ls-files", "-co", "--exclude-standard", "--"}, os.Args[1:]...)
	list, err := exec.Command("git", args...).Output()
	errs := []error{err}
	if len(list) == 0 {
		errs = append(errs, errors.New("git has no such files"))
	}
	for _, text := range slices.Concat(bad, good) {
		if found := check("example", 1, text); (len(found) > 0) != slices.Contains(bad, text) {
			errs = append(errs, fmt.Errorf("example %q: found %q", text, found))
		}
	}
	for path := range strings.FieldsSeq(string(list)) {
		var found []string
		src, err := os.ReadFile(path)
		switch {
		case os.IsNotExist(err): // git still knows what was just deleted
			continue
		case strings.HasSuffix(path, ".md"):
			found = checkMarkdown(path, string(src))
		case strings.HasSuffix(path, ".go") && err == nil:
			found, err = checkGo(path, string(src))
		}
		errs = append(errs, err)
		for _, problem := range found {
			errs = append(errs, errors.New(problem))
		}
	}
	if err := errors.Join(errs...); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
