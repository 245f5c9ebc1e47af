package retrydebug

import (
	"net/http"

	"github.com/seed421102f4/httpretry"
)

// HandlerOf is Handler for any origins.
func HandlerOf(origins func() []httpretry.OriginStatus) http.Handler { return handler(origins) }
