// Package retrytest has a base transport for tests of code that uses httpretry.
//
// [Base] plays steps, one for each request: responses, errors and delays. It
// fails the test if there are more requests than steps, or fewer. It records
// the requests. Together with testing/synctest, all waits take no time:
//
//	func TestFetch(t *testing.T) {
//		synctest.Test(t, func(t *testing.T) {
//			base := retrytest.Base(t,
//				retrytest.RetryAfter("2"),
//				retrytest.Reset(),
//				retrytest.Status(200),
//			)
//			transport, err := httpretry.New(httpretry.Config{Base: base})
//			if err != nil {
//				t.Fatal(err)
//			}
//			client := &http.Client{Transport: transport}
//			resp, err := client.Get("https://api.example.com/") // or your code
//			if err != nil {
//				t.Fatal(err)
//			}
//			defer resp.Body.Close()
//			if wait := base.Waits()[0]; wait < 2*time.Second {
//				t.Errorf("waited %v, but the server has asked for 2s", wait)
//			}
//		})
//	}
//
// Make a transport for each test, inside the bubble. The clocks of all bubbles
// start at the same time, so the cool-downs and budgets of a shared transport
// would continue in the next test.
//
// With Go 1.27 or later, the server of httptest.NewTestServer works in a bubble
// too, if Base is the Transport of its Client. A server that listens on a network
// does not, because synctest does not consider a wait for the network durable.
package retrytest
