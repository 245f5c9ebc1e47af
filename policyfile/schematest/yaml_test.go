package schematest_test

import (
	"encoding/json"
	"fmt"

	"go.yaml.in/yaml/v3"

	"github.com/seed421102f4/httpretry/policyfile"
)

// A ConfigMap of Kubernetes with policies in YAML. Mounted as a volume, its
// entry is the file policies.yaml.
const configMap = `
apiVersion: v1
kind: ConfigMap
metadata: {name: retries}
data:
  policies.yaml: |
    default:
      attemptTimeout: 2s
    policies:
      api.stripe.com: {preset: stripe, attemptTimeout: 10s}
      "*.internal.example.com":
        backoff: FullJitter Base=50ms Max=2s
        budget: {burst: 1}
`

// parseYAML reads policies in YAML. The positions in its errors are those of
// the JSON, so their paths are more useful.
func parseYAML(text []byte) (*policyfile.File, error) {
	var all any
	if err := yaml.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	converted, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return nil, err
	}
	return policyfile.Parse(converted)
}

func Example_yaml() {
	var mounted struct{ Data map[string]string }
	if err := yaml.Unmarshal([]byte(configMap), &mounted); err != nil {
		panic(err)
	}
	f, err := parseYAML([]byte(mounted.Data["policies.yaml"]))
	if err != nil {
		panic(err)
	}
	fmt.Println(f.Policy().AttemptTimeout, f.Policies()["api.stripe.com"].AttemptTimeout)
	_, err = parseYAML([]byte("policies:\n  a.test: {attemptTimeout: 2}\n"))
	fmt.Println(err)
	// Output:
	// 2s 10s
	// 4:25: policies["a.test"].attemptTimeout: 2: want a duration as text with its unit, such as "500ms" or "2s"
}
