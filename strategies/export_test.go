package strategies

// StartAt starts s as if k waits had been returned already. s is one of the
// strategies that count retries. No test can count to MaxInt.
func StartAt(s Strategy, k int) Sequence {
	return s.(interface{ from(k int) Sequence }).from(k)
}
