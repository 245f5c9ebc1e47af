package hosttable

// SharedName is the name of the entry that long hosts share.
const SharedName = sharedName

// Size returns the number of entries that t has counted.
func (t *Table[T]) Size() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.table.Load().entries)
}

// HashOf returns the hash under which t holds host.
func (t *Table[T]) HashOf(host string) (hash uint64, ok bool) {
	table := t.table.Load()
	for i := range table.buckets {
		for e := table.buckets[i].Load(); e != nil; e = e.next.Load() {
			if e.host == host {
				return e.hash, true
			}
		}
	}
	return 0, false
}

// FindHash looks host up as if hash were its hash.
func (t *Table[T]) FindHash(host string, hash uint64) *T {
	if e := t.table.Load().find(host, hash); e != nil {
		return &e.Value
	}
	return nil
}
