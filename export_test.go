package httpretry

// KnownText returns the number of the entry of errorTexts that decides what
// err is, or -1, and how many there are.
func KnownText(err error) (entry, entries int) {
	texts := errorTexts()
	for i, e := range texts {
		if e.matches(err.Error()) {
			return i, len(texts)
		}
	}
	return -1, len(texts)
}

// IsPlain reports whether requests that follow p may be plain.
func IsPlain(p Policy) bool { return p.withDefaults().plainAllowed }

// AsGiven returns p as a user writes it, if it is the argument of a function of
// WithPolicyFunc.
func AsGiven(p Policy) Policy {
	p.isArgument = false
	return p
}
