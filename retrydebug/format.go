package retrydebug

import (
	"mime"
	"net/http"
	"strconv"
	"strings"
)

// wantsJSON reports whether a request asks for JSON, by the format in its query
// or by its Accept header.
func wantsJSON(format string, header http.Header) bool {
	if format != "" {
		return format == "json"
	}
	json, html := preferences(header.Values("Accept"))
	switch {
	case json.quality != html.quality:
		return json.quality > html.quality
	case json.quality == 0:
		return false
	default:
		// A client that names JSON and accepts the rest, too, is not a browser:
		// "application/json, */*".
		return json.precision > html.precision
	}
}

// preference is how much a client wants a media type.
type preference struct {
	quality   float64 // from 0 to 1
	precision int     // of the range that says so; 0: no range does
}

// preferences returns those for application/json and text/html. As in section
// 12.5.1 of RFC 9110, the most precise range determines the quality. Ranges
// that are not valid are ignored.
func preferences(accept []string) (json, html preference) {
	for media := range strings.SplitSeq(strings.Join(accept, ","), ",") {
		name, params, err := mime.ParseMediaType(media)
		if err != nil {
			continue
		}
		quality := 1.0
		if q, ok := params["q"]; ok {
			quality, err = strconv.ParseFloat(q, 64)
			// NaN is not within the range.
			if err != nil || !(quality >= 0 && quality <= 1) {
				continue
			}
		}
		json.note(name, "application/json", quality)
		html.note(name, "text/html", quality)
	}
	return json, html
}

// note changes p if the range with the given name concerns the media type.
func (p *preference) note(name, mediaType string, quality float64) {
	kind, _, _ := strings.Cut(mediaType, "/")
	precision := 0
	switch name {
	case mediaType:
		precision = 3
	case kind + "/*":
		precision = 2
	case "*/*":
		precision = 1
	}
	if precision > p.precision {
		*p = preference{quality, precision}
	}
}
