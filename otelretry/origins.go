package otelretry

import (
	"context"
	"errors"
	"net/url"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/seed421102f4/httpretry"
	"github.com/seed421102f4/httpretry/policyfile"
)

// Origins registers gauges that call [httpretry.RetryTransport.Origins] for each
// collection of metrics: httpretry.budget.balance, httpretry.cooldown.remaining
// and httpretry.request.waiting.
//
// Origins that have the same labels, such as those of a wildcard, are recorded
// as one. It has the lowest balance, the longest cool-down and the sum of the
// waiting requests. A budget that is not a [httpretry.Balancer], such as
// [httpretry.Unlimited], has no balance. An origin that the transport does not
// remember is not recorded.
//
// The Registration keeps the transport in memory until its Unregister is called.
// The error is as that of [Observe].
func Origins(transport *httpretry.RetryTransport, cfg Config) (metric.Registration, error) {
	if transport == nil {
		return nil, errors.New("otelretry: Origins: a nil transport: want a RetryTransport")
	}
	meter := cfg.meter()
	names, err := newHosts(cfg.Hosts)
	balance, err1 := meter.Int64ObservableGauge("httpretry.budget.balance",
		metric.WithUnit("{retry}"),
		metric.WithDescription("Retries that cost 1 that the budget of an origin would allow now."))
	cooldown, err2 := meter.Float64ObservableGauge("httpretry.cooldown.remaining",
		metric.WithUnit("s"),
		metric.WithDescription("Rest of the cool-down of an origin, or 0."))
	waiting, err3 := meter.Int64ObservableUpDownCounter("httpretry.request.waiting",
		metric.WithUnit("{request}"),
		metric.WithDescription("Requests that wait for a retry or a cool-down."))
	if err := errors.Join(err, err1, err2, err3); err != nil {
		return nil, err
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := newSample(transport.Origins(), names, cfg.common(), time.Now())
		for set, n := range s.balance {
			o.ObserveInt64(balance, int64(n), metric.WithAttributeSet(set))
		}
		for set, rest := range s.cooldown {
			o.ObserveFloat64(cooldown, rest.Seconds(), metric.WithAttributeSet(set))
		}
		for set, n := range s.waiting {
			o.ObserveInt64(waiting, int64(n), metric.WithAttributeSet(set))
		}
		return nil
	}, balance, cooldown, waiting)
}

// A sample has the values of the gauges, by their labels.
type sample struct {
	balance  map[attribute.Set]int
	cooldown map[attribute.Set]time.Duration
	waiting  map[attribute.Set]int
}

func newSample(
	origins []httpretry.OriginStatus, names hosts, common []attribute.KeyValue, now time.Time,
) sample {
	s := sample{map[attribute.Set]int{}, map[attribute.Set]time.Duration{}, map[attribute.Set]int{}}
	for _, status := range origins {
		u, err := url.Parse(status.Origin)
		if err != nil {
			u = nil // recorded as another host
		}
		labels := names.add(common[:len(common):len(common)], u)
		set := attribute.NewSet(labels...)
		s.waiting[set] += status.Waiting
		s.cooldown[set] = max(s.cooldown[set], status.CooldownUntil.Sub(now), 0)
		for _, b := range status.Budgets {
			if !b.BalanceKnown {
				continue
			}
			set := set
			if b.Key != "" {
				set = attribute.NewSet(append(labels[:len(labels):len(labels)],
					policyKey.String(b.Key))...)
			}
			lowest, known := s.balance[set]
			if !known || b.Balance < lowest {
				s.balance[set] = b.Balance
			}
		}
	}
	return s
}

// PolicyFile registers the gauge httpretry.policyfile.in_effect. It is 1 if the
// last change of the file of reloader is in effect, and 0 if the file cannot be
// read or is not valid. Before the first Reload, it is not recorded. Of cfg,
// PolicyFile uses the MeterProvider and the Name.
func PolicyFile(reloader *policyfile.Reloader, cfg Config) (metric.Registration, error) {
	if reloader == nil {
		return nil, errors.New("otelretry: PolicyFile: a nil reloader: want a policyfile.Reloader")
	}
	meter := cfg.meter()
	inEffect, err := meter.Int64ObservableGauge("httpretry.policyfile.in_effect",
		metric.WithUnit("{file}"),
		metric.WithDescription("1 if the last change of the file of policies is in effect, or 0."))
	if err != nil {
		return nil, err
	}
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		_, at, err := reloader.Last()
		if at.IsZero() {
			return nil
		}
		value := int64(1)
		if err != nil {
			value = 0
		}
		o.ObserveInt64(inEffect, value, metric.WithAttributes(cfg.common()...))
		return nil
	}, inEffect)
}
