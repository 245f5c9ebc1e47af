package retrydebug

import (
	"net/http"

	"github.com/seed421102f4/httpretry"
)

// NamedHandlerOf is New for any origins.
func NamedHandlerOf(origins map[string][]httpretry.OriginStatus) http.Handler {
	var h handler
	for name, of := range origins {
		h = append(h, source{name: name, origins: func() []httpretry.OriginStatus { return of }})
	}
	return h
}
