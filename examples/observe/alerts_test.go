package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestAlerts plays the outages to a Prometheus. Each fires its alerts, each query
// of the dashboard has data, and no query has a label that is not exported.
func TestAlerts(t *testing.T) {
	for _, program := range []string{"prometheus", "promtool"} {
		if _, err := exec.LookPath(program); err != nil {
			require.Empty(t, os.Getenv("CI"), "%s is missing", program)
			t.Skip(program + " is missing: install Debian's package prometheus")
		}
	}
	for _, args := range []string{"check rules alerts.yml", "test rules alerts_test.yml"} {
		out, err := exec.Command("promtool", strings.Fields(args)...).CombinedOutput()
		require.NoError(t, err, "promtool %s: %s", args, out)
	}
	registry := prometheus.NewRegistry()
	ctx, cancel := context.WithCancel(t.Context())
	played := make(chan error, 1)
	go func() { played <- playOutages(ctx, registry, 200*time.Millisecond) }()
	defer func() {
		cancel()
		assert.NoError(t, <-played)
	}()
	server := startPrometheus(t, registry)

	unseen := map[string]bool{"HttpretryLocalBudget ": true, "HttpretryPolicyFile ": true,
		"HttpretryHostFailsWithoutRetries certificate.test": true, "HttpretryHostFailsWithoutRetries unknown.test": true,
		"HttpretryHostHangs hangs.test": true, "HttpretryBudgetExhausted unavailable.test": true,
		"HttpretryBudgetExhausted refused.test": true, "HttpretryCoolDown limited.test": true}
	for _, host := range hosts[:len(hosts)-1] {
		unseen["HttpretryHostFails "+host] = true
	}
	for end := time.Now().Add(time.Minute); len(unseen) > 0; {
		require.True(t, time.Now().Before(end), "do not fire: %v", unseen)
		for _, alert := range query(t, server, `ALERTS{alertstate="firing"}`) {
			assert.NotEqual(t, "works.test", alert["server_address"], "%v", alert)
			delete(unseen, alert["alertname"]+" "+alert["server_address"])
		}
		<-time.After(100 * time.Millisecond) // another process evaluates the rules
	}

	series := map[string][]string{"httpretry:requests:rate5m": nil, "httpretry:failures:rate5m": nil}
	var labels []string // of all metrics
	for _, s := range query(t, server, `{__name__=~"httpretry_.*"}`) {
		for label := range s {
			series[s["__name__"]] = append(series[s["__name__"]], label)
			labels = append(labels, label)
		}
	}
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	_, withoutComment, _ := strings.Cut(string(rules), "\ngroups:")
	queries := dashboardQueries(t)
	for _, q := range queries {
		assert.NotEmpty(t, query(t, server, q), "no data: %s", q)
	}
	for _, text := range append(queries, withoutComment) {
		for _, m := range regexp.MustCompile(`\b(httpretry[_:][\w:]+)(\{[^}]*\})?`).FindAllStringSubmatch(
			regexp.MustCompile(`by \([^)]*\)|\{\{[^}]*\}\}`).ReplaceAllString(text, ""), -1) {
			if known, isMetric := series[m[1]]; assert.True(t, isMetric || slices.Contains(labels, m[1]), "not exported: %s", m[1]) {
				for _, label := range regexp.MustCompile(`(\w+)(=|!)`).FindAllStringSubmatch(m[2], -1) {
					assert.Contains(t, known, label[1], "of %s", m[1])
				}
			}
		}
		for _, by := range regexp.MustCompile(`by \(([^)]*)\)`).FindAllStringSubmatch(text, -1) {
			assert.Subset(t, labels, strings.Split(by[1], ", "))
		}
	}
}

// dashboardQueries returns the queries of the dashboard, for all hosts.
func dashboardQueries(t *testing.T) (all []string) {
	var dashboard struct {
		Panels []struct{ Targets []struct{ Expr string } }
	}
	data, err := os.ReadFile("dashboard.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(data, &dashboard))
	require.NotEmpty(t, dashboard.Panels)
	for _, panel := range dashboard.Panels {
		require.Len(t, panel.Targets, 1)
		all = append(all, strings.NewReplacer("$__rate_interval", "10s", "$transport", ".*", "$host", ".*").
			Replace(panel.Targets[0].Expr))
	}
	return all
}

// startPrometheus starts a Prometheus that scrapes registry, and has the rules
// with shorter times. It returns its URL.
func startPrometheus(t *testing.T, registry *prometheus.Registry) string {
	metrics := httptest.NewServer(promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	t.Cleanup(metrics.Close)
	folder := t.TempDir()
	rules, err := os.ReadFile("alerts.yml")
	require.NoError(t, err)
	write := func(name, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600))
	}
	write("alerts.yml", strings.NewReplacer("[5m]", "[5s]", "for: 2m", "for: 1s").Replace(string(rules)))
	write("prometheus.yml", fmt.Sprintf("global: {scrape_interval: 500ms, scrape_timeout: 400ms, evaluation_interval: 500ms}\n"+
		"rule_files: [alerts.yml]\nscrape_configs: [{job_name: demo, static_configs: [{targets: [%q]}]}]\n", metrics.Listener.Addr()))
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := free.Addr().String()
	require.NoError(t, free.Close())
	cmd := exec.Command("prometheus", "--config.file="+filepath.Join(folder, "prometheus.yml"),
		"--storage.tsdb.path="+filepath.Join(folder, "data"), "--web.listen-address="+addr)
	log := new(strings.Builder)
	cmd.Stdout, cmd.Stderr = log, log
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if err := cmd.Wait(); t.Failed() {
			t.Log(err, log)
		}
	})
	require.Eventually(t, func() bool {
		resp, err := http.Get("http://" + addr + "/-/ready")
		if err != nil {
			return false
		}
		resp.Body.Close()
		return resp.StatusCode == http.StatusOK
	}, time.Minute, 50*time.Millisecond)
	return "http://" + addr
}

// query returns the labels of the series that a query has now.
func query(t *testing.T, server, q string) (all []map[string]string) {
	resp, err := http.Get(server + "/api/v1/query?" + url.Values{"query": {q}}.Encode())
	require.NoError(t, err)
	defer resp.Body.Close()
	var answer struct {
		Error string
		Data  struct {
			Result []struct{ Metric map[string]string }
		}
	}
	require.NoError(t, json.NewDecoder(resp.Body).Decode(&answer))
	require.Empty(t, answer.Error, q)
	for _, r := range answer.Data.Result {
		all = append(all, r.Metric)
	}
	return all
}
