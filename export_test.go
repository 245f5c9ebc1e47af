package httpretry

// DepositMany is b.Deposit(host) n times over, for numbers that would take years to count to.
func DepositMany(b *HostBudget, host string, n uint64) {
	w := b.hosts.get(host, b.open)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.turn()
	w.tally().successes += n
}
