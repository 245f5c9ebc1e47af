package policyfile

import (
	"github.com/seed421102f4/httpretry/internal/fielderr"
)

// located returns the problems of an error of SetPolicies, each where the file
// with these contents sets the field. Parse cannot find these problems, because
// they depend on the transport.
func (f *File) located(data []byte, err error) error {
	r := reading{data: data}
	reported := map[problem]bool{} // entries may inherit a problem
	for _, p := range fielderr.Problems(err) {
		found := problem{text: p.Text()}
		switch from := f.find(p.Key, p.Field); from.member {
		case "": // The file does not set the field, so only Go's path names it.
			found.text = p.String()
		case "preset": // The position names the preset, and not the field.
			found.text = p.Field + ": " + found.text
			fallthrough
		default:
			found.path = join(from.path, from.member, false)
			found.offset = from.offsets[from.member]
		}
		if !reported[found] {
			r.report(found.offset, found.path, "%s", found.text)
		}
		reported[found] = true
	}
	return r.error()
}

// find returns the place that sets a field of the policy with a key, or of the
// default for "".
func (f *File) find(key, goField string) place {
	if goField == "" { // the problem is one of the key
		return place{}
	}
	field, _ := policyTable.forGo(goField)
	_, from := find(f.sources(key), field)
	return from
}
