package sdktest

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// SigV4 checks the signature of a request by AWS Signature Version 4, and
// those of its chunks if it is streamed. It returns the payload without the
// framing of such a stream, and the trailers that came with it.
func SigV4(r *Request, secret string) (payload []byte, trailers map[string]string, err error) {
	const algorithm = "AWS4-HMAC-SHA256 "
	auth, found := strings.CutPrefix(r.Header.Get("Authorization"), algorithm)
	if !found {
		return nil, nil, fmt.Errorf("no %sin Authorization", algorithm)
	}
	field := map[string]string{}
	for part := range strings.SplitSeq(auth, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		field[name] = value
	}
	_, scope, _ := strings.Cut(field["Credential"], "/")
	date := r.Header.Get("X-Amz-Date")
	at, err := time.Parse("20060102T150405Z", date)
	if err != nil {
		return nil, nil, err
	}
	if age := time.Since(at).Abs(); age > 5*time.Minute {
		return nil, nil, fmt.Errorf("signed %v ago", age)
	}

	hash := r.Header.Get("X-Amz-Content-Sha256")
	if hash == "" {
		hash = hexSum(r.Content)
	}
	s := &sigV4{date: date, scope: scope, key: []byte("AWS4" + secret), signature: field["Signature"]}
	for part := range strings.SplitSeq(scope, "/") {
		s.key = mac(s.key, part)
	}
	if s.sign("AWS4-HMAC-SHA256", hexSum([]byte(canonical(r, field["SignedHeaders"], hash)))) != s.signature {
		return nil, nil, fmt.Errorf("the signature of %s %s does not fit", r.Method, r.RequestURI)
	}
	switch {
	case strings.HasPrefix(hash, "STREAMING-"):
		return s.chunks(r.Content, strings.HasPrefix(hash, "STREAMING-AWS4-HMAC-SHA256"))
	case hash != "UNSIGNED-PAYLOAD" && hash != hexSum(r.Content):
		return nil, nil, fmt.Errorf("the payload of %s %s is not what was signed", r.Method, r.RequestURI)
	}
	return r.Content, nil, nil
}

// canonical returns the canonical request. The path is not encoded again,
// which is S3's rule and makes no difference to a path of "/".
func canonical(r *Request, signedHeaders, hash string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n%s\n", r.Method, r.URL.EscapedPath(), canonicalQuery(r.URL.Query()))
	for name := range strings.SplitSeq(signedHeaders, ";") {
		value := strings.Join(r.Header.Values(name), ",")
		switch name {
		case "host":
			value = r.Host
		case "content-length":
			value = strconv.FormatInt(r.ContentLength, 10)
		}
		fmt.Fprintf(&b, "%s:%s\n", name, strings.Join(strings.Fields(value), " "))
	}
	fmt.Fprintf(&b, "\n%s\n%s", signedHeaders, hash)
	return b.String()
}

func canonicalQuery(query url.Values) string {
	for _, values := range query {
		slices.Sort(values)
	}
	return strings.ReplaceAll(query.Encode(), "+", "%20")
}

type sigV4 struct {
	date, scope string
	key         []byte
	signature   string // of the request, then of the chunk before
}

func (s *sigV4) sign(algorithm string, rest ...string) string {
	return hex.EncodeToString(mac(s.key, strings.Join(append([]string{algorithm, s.date, s.scope}, rest...), "\n")))
}

// chunks decodes a body in the encoding aws-chunked. Each chunk is its length
// in hexadecimal digits, its signature if signed, and the data.
func (s *sigV4) chunks(content []byte, signed bool) (payload []byte, trailers map[string]string, err error) {
	for {
		head, rest, _ := bytes.Cut(content, []byte("\r\n"))
		digits, signature, _ := strings.Cut(string(head), ";chunk-signature=")
		size, err := strconv.ParseInt(digits, 16, 32)
		if err != nil || size > int64(len(rest)) {
			return nil, nil, fmt.Errorf("bad chunk %q", head)
		}
		data := rest[:size]
		if signed {
			s.signature = s.sign("AWS4-HMAC-SHA256-PAYLOAD", s.signature, hexSum(nil), hexSum(data))
			if s.signature != signature {
				return nil, nil, fmt.Errorf("the signature of the chunk at %d does not fit", len(payload))
			}
		}
		if size == 0 {
			trailers, err := s.trailers(rest, signed)
			return payload, trailers, err
		}
		payload = append(payload, data...)
		content = bytes.TrimPrefix(rest[size:], []byte("\r\n"))
	}
}

// trailers reads the part of the body after the last chunk.
func (s *sigV4) trailers(content []byte, signed bool) (map[string]string, error) {
	const own = "x-amz-trailer-signature"
	trailers := map[string]string{}
	var lines strings.Builder // in canonical form
	for line := range strings.Lines(string(content)) {
		name, value, found := strings.Cut(strings.TrimSpace(line), ":")
		if !found {
			continue
		}
		name = strings.ToLower(name)
		trailers[name] = value
		if name != own {
			fmt.Fprintf(&lines, "%s:%s\n", name, value)
		}
	}
	if signed && len(trailers) > 0 &&
		s.sign("AWS4-HMAC-SHA256-TRAILER", s.signature, hexSum([]byte(lines.String()))) != trailers[own] {
		return nil, fmt.Errorf("the signature of the trailers does not fit")
	}
	return trailers, nil
}

func mac(key []byte, text string) []byte {
	h := hmac.New(sha256.New, key)
	h.Write([]byte(text))
	return h.Sum(nil)
}

func hexSum(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
