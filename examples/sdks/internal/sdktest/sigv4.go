package sdktest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
)

var authorization = regexp.MustCompile(`^AWS4-HMAC-SHA256 Credential=([^/]+)/\d+/([^/]+)/([^/]+)/aws4_request, ?` +
	`SignedHeaders=([^,]+), ?Signature=([0-9a-f]+)$`)

// SigV4 checks the signature of a request by AWS Signature Version 4, and
// those of its chunks if it is streamed. It returns the payload without the
// framing of such a stream, and the trailers that came with it.
func SigV4(r *Request, secret string) (payload []byte, trailers map[string]string, err error) {
	auth := authorization.FindStringSubmatch(r.Header.Get("Authorization"))
	if auth == nil {
		return nil, nil, fmt.Errorf("no signature in Authorization: %q", r.Header.Get("Authorization"))
	}
	region, service, names, signature := auth[2], auth[3], auth[4], auth[5]
	creds := aws.Credentials{AccessKeyID: auth[1], SecretAccessKey: secret}
	at, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil {
		return nil, nil, err
	}
	if age := time.Since(at).Abs(); age > 5*time.Minute {
		return nil, nil, fmt.Errorf("signed %v ago", age)
	}

	sum := sha256.Sum256(r.Content)
	hash := r.Header.Get("X-Amz-Content-Sha256")
	if hash == "" {
		hash = hex.EncodeToString(sum[:])
	}
	signed := r.Clone(context.Background())
	signed.Header, signed.ContentLength = http.Header{}, 0
	for name := range strings.SplitSeq(names, ";") {
		if name == "content-length" {
			signed.ContentLength = r.ContentLength
		} else if values := r.Header.Values(name); values != nil {
			signed.Header[http.CanonicalHeaderKey(name)] = values
		}
	}
	// Only S3 has paths that are longer than "/", which it does not escape.
	signer := v4.NewSigner(func(o *v4.SignerOptions) { o.DisableURIPathEscaping = true })
	if err := signer.SignHTTP(context.Background(), creds, signed, hash, service, region, at); err != nil {
		return nil, nil, err
	}
	if !strings.HasSuffix(signed.Header.Get("Authorization"), "Signature="+signature) {
		return nil, nil, fmt.Errorf("the signature of %s does not fit", r.operation())
	}

	switch {
	case strings.HasPrefix(hash, "STREAMING-"):
		c := chunks{at: at}
		if !strings.HasPrefix(hash, "STREAMING-UNSIGNED") {
			seed, err := hex.DecodeString(signature)
			if err != nil {
				return nil, nil, err
			}
			c.signer = v4.NewStreamSigner(creds, service, region, seed)
		}
		return c.decode(r.Content)
	case hash != "UNSIGNED-PAYLOAD" && hash != hex.EncodeToString(sum[:]):
		return nil, nil, fmt.Errorf("the payload of %s is not what was signed", r.operation())
	}
	return r.Content, nil, nil
}

// chunks is a body in the encoding aws-chunked. Each chunk is its length in
// hexadecimal digits, its signature if signed, and the data.
type chunks struct {
	at     time.Time
	signer *v4.StreamSigner // nil if the chunks are not signed
}

func (c chunks) decode(content []byte) (payload []byte, trailers map[string]string, err error) {
	for {
		head, rest, _ := bytes.Cut(content, []byte("\r\n"))
		digits, signature, _ := strings.Cut(string(head), ";chunk-signature=")
		size, err := strconv.ParseInt(digits, 16, 32)
		if err != nil || size > int64(len(rest)) {
			return nil, nil, fmt.Errorf("bad chunk %q", head)
		}
		if c.signer != nil {
			want, err := c.signer.GetSignature(context.Background(), nil, rest[:size], c.at)
			if err != nil || hex.EncodeToString(want) != signature {
				return nil, nil, errors.Join(err,
					fmt.Errorf("the signature of the chunk at %d does not fit", len(payload)))
			}
		}
		if size == 0 {
			trailers = map[string]string{}
			for line := range strings.Lines(string(rest)) {
				name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
				trailers[strings.ToLower(name)] = value
			}
			return payload, trailers, nil
		}
		payload = append(payload, rest[:size]...)
		content = bytes.TrimPrefix(rest[size:], []byte("\r\n"))
	}
}
