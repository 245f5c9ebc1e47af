package retrydebug_test

import (
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/retrydebug"
)

func ExampleHandler() {
	transport := new(httpretry.RetryTransport)
	client := &http.Client{Transport: transport}

	// The mux is for an address that is not public:
	// http.ListenAndServe("localhost:6060", mux).
	mux := http.NewServeMux()
	mux.Handle("/debug/httpretry", retrydebug.Handler(transport))
	server := httptest.NewServer(mux)
	defer server.Close()

	for range 2 {
		resp, err := client.Get(server.URL + "/debug/httpretry?format=json")
		if err != nil {
			log.Fatal(err)
		}
		var state struct {
			Origins []struct {
				Policies []struct{ Balance, Successes int }
			}
		}
		err = json.NewDecoder(resp.Body).Decode(&state)
		resp.Body.Close()
		fmt.Println(state.Origins[0].Policies, err)
	}
	// Output:
	// [{5 0}] <nil>
	// [{5 1}] <nil>
}
