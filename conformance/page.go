package main

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"strings"
)

//go:embed page.html
var pageText string

// pageRow is a case in the page.
type pageRow struct {
	*Case
	Group, Reason string
	Cells         []pageCell
}

type pageCell struct{ Class, Text, Why string }

// html returns the page of all results.
func html(results []Result, cases []*Case) ([]byte, error) {
	ran := installed(results)
	var rows []pageRow
	var musts []string // the commands that show them
	for i, c := range cases {
		row := pageRow{Case: c, Reason: reasons[c.ID]}
		if i == 0 || cases[i-1].group != c.group {
			row.Group = strings.TrimLeft(c.group, "0123456789-")
		}
		for _, r := range ran {
			row.Cells = append(row.Cells, newPageCell(c, r.Verdicts[i]))
			if c.Level == levelMust && len(r.Verdicts[i].Problems) > 0 {
				musts = append(musts, fmt.Sprintf("go run . -clients '^%s$' -run '^%s$'", r.Name, c.ID))
			}
		}
		rows = append(rows, row)
	}
	var counted []count
	for _, r := range ran {
		counted = append(counted, counts(r, cases))
	}
	page, err := template.New("page").Parse(pageText)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = page.Execute(&b, map[string]any{"Results": ran, "Counts": counted, "Rows": rows, "Musts": musts})
	return b.Bytes(), err
}

func newPageCell(c *Case, v Verdict) pageCell {
	text, why, _ := strings.Cut(strings.TrimPrefix(cell(c, v), "○ "), ": ")
	switch {
	case v.Skip != "":
		return pageCell{"skip", "–", v.Skip}
	case len(v.Problems) > 0:
		return pageCell{strings.ToLower(c.Level), text, why + ". " + v.Error}
	case fails(c, v):
		return pageCell{"less", text, v.Error}
	}
	return pageCell{"", text, ""}
}
