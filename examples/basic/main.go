// Basic is the shortest complete program: a client that retries. Its server
// fails twice before it answers, so the program takes about two seconds:
//
//	go run ./examples/basic
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"

	"github.com/seed421102f4/httpretry"
)

func main() {
	if err := run(os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer) error {
	status := []int{503, 503, 200}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(out, "The server answers %d.\n", status[0])
		w.WriteHeader(status[0])
		status = status[1:]
	}))
	defer server.Close()

	client := &http.Client{Transport: new(httpretry.RetryTransport)}
	defer client.CloseIdleConnections()
	resp, err := client.Get(server.URL)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	fmt.Fprintf(out, "The client got %s.\n", resp.Status)
	return nil
}
