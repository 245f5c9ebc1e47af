package hosttable

// A use is the last known use of an entry. Lookups do not update it.
type use[T any] struct {
	generation uint64
	entry      *Entry[T]
}

// A useHeap is a binary heap. The use at index i is not later than the uses at
// 2*i+1 and 2*i+2.
type useHeap[T any] []use[T]

// replaceOldest replaces the least recently used entry by newest, and returns
// the entry that it replaced. The generation of newest is the latest.
//
// An entry is moved at most once for all uses since it was last moved. So a
// lookup writes at most a generation, and adding a host does not visit all
// entries.
func (h useHeap[T]) replaceOldest(newest use[T]) *Entry[T] {
	for {
		oldest := h[0].entry
		// h[0] has the earliest known use. If its entry was not used since, no
		// other entry was last used earlier.
		last := oldest.lastUsed.Load()
		if last == h[0].generation {
			h.replaceFirst(newest)
			return oldest
		}
		h.replaceFirst(use[T]{last, oldest})
	}
}

// replaceFirst replaces h[0] by u, and moves it down to its place.
func (h useHeap[T]) replaceFirst(u use[T]) {
	i := 0
	for {
		earlier := 2*i + 1
		if earlier >= len(h) {
			break
		}
		if right := earlier + 1; right < len(h) && h[right].generation < h[earlier].generation {
			earlier = right
		}
		if u.generation <= h[earlier].generation {
			break
		}
		h[i] = h[earlier]
		i = earlier
	}
	h[i] = u
}
