package strategies

// StartAt starts s as if k waits had been returned already, where s is one of the strategies that count: no test can
// count to MaxInt.
func StartAt(s Strategy, k int) Sequence {
	return s.(interface{ from(k int) Sequence }).from(k)
}
