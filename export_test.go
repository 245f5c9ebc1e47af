package httpretry

// DepositMany calls b.Deposit(origin, false) n times, for numbers that would
// take years to count to.
func DepositMany(b *HostBudget, origin string, n uint64) {
	w := b.hosts.Get(origin, b.open)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.look(0)
	w.tally().successes += n
}

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
func IsPlain(p Policy) bool { return p.resolve().isPlain }
