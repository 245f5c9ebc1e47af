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
			Transports []struct {
				Origins []struct {
					Budgets []struct{ Balance, Successes int }
				}
			}
		}
		err = json.NewDecoder(resp.Body).Decode(&state)
		resp.Body.Close()
		fmt.Println(state.Transports[0].Origins[0].Budgets, err)
	}
	// Output:
	// [{5 0}] <nil>
	// [{5 1}] <nil>
}

func ExampleNew() {
	search, billing := new(httpretry.RetryTransport), new(httpretry.RetryTransport)
	page, err := retrydebug.New(retrydebug.Config{
		Transports: map[string]*httpretry.RetryTransport{"search": search, "billing": billing},
	})
	if err != nil {
		log.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/debug/httpretry", page)
	server := httptest.NewServer(mux)
	defer server.Close()

	resp, err := http.Get(server.URL + "/debug/httpretry?format=json")
	if err != nil {
		log.Fatal(err)
	}
	defer resp.Body.Close()
	var state struct{ Transports []struct{ Name string } }
	fmt.Println(json.NewDecoder(resp.Body).Decode(&state), state.Transports)
	// Output:
	// <nil> [{billing} {search}]
}
