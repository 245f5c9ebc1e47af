// Package redisbudget provides an [httpretry.Budget] that many processes share
// through Redis or Valkey.
//
// A [httpretry.HostBudget] limits the retries of one process. If each of a
// thousand processes sends a few requests to a host that is down, the host gets
// up to 5,000 retries, five from each. With a [Budget], it gets five from all
// processes together:
//
//	budget, err := redisbudget.New(redisbudget.Config{Client: client})
//	if err != nil {
//		return err
//	}
//	defer budget.Close()
//	transport, err := httpretry.New(httpretry.Config{
//		Policy: httpretry.Policy{Budget: budget},
//	})
//
// # Limit
//
// For example, a thousand processes have the default Ratio of 0.2, Burst of 5
// and Window of 30 seconds. A host answers 200 of their requests a second, and
// then fails. The last Window had 6,000 successes, so all processes together
// make at most 0.2 * 6,000 + 5 = 1,205 retries that fail, or half as many after
// timeouts. After that, they make no retry until the host answers a request.
//
// In general, all processes of a namespace together keep the law of a
// HostBudget. A retry costs 1, or 2 after a Timeout. For each host and any
// interval of length T,
//
//	cost of charges - refunds <= Ratio * (successes in T and the Window before)
//	                             + Burst * (1 + T/Window)
//	                             + retries that succeeded in T
//
// where the Window before is one of the host's time. While the host answers
// every request with a failure, for any time,
//
//	cost of charges - refunds <= Ratio * (successes in the Window before) + Burst
//
// The host's time is that of Redis, by its clock, without the times in which the
// host fails. It stops when a process asks Redis for a retry. A report of later
// successes moves it on to the first of them, but by a tenth of the Window at
// most, because the host may have been down before. If there can be no retry
// since then that Redis does not know of, it goes on from there by itself. If the
// clock goes back between two calls for a host, no time passes between them.
//
// A retry that succeeds cancels its cost and 1 more, even if it was taken from a
// lease. Redis gets both with the next report, for all processes. The 1 is that
// of a charge which is older than all successes of the report, by up to a
// fiftieth of the Window. So successes from before an outage cancel no charge of
// the outage but their own.
//
// If this package does not know a value exactly, such as the time of a success,
// it assumes the value that allows fewer retries. In particular, successes are
// assumed to be older by the Timeout. Successes count longer than a Window in two
// cases:
//
//   - Redis executes a report later than the Timeout, for example because it
//     was stopped. The successes of the report then count longer by the delay,
//     and cancel charges as if they were later by it.
//   - The clock of Redis goes back. The successes of a host then count longer
//     by the time since the call before.
//
// A host that has had no success since its last withdrawal is remembered for a
// day, and so may be one whose last success followed within a tenth of a Window.
// Any other host is remembered for a little more than a Window. After that, a
// host has a full Burst. The same is true if Redis has lost its data or evicts
// keys.
//
// A retry after a 429 (Too Many Requests) that waits as long as the response
// asks is free, as in a HostBudget. It is always allowed, without a charge.
//
// # Cost
//
// Record and Refund count in memory, without an allocation. The end of a retry
// that was charged for takes a lock of its host. The HostBudget that decides
// while Redis fails takes its lock once for each batch of successes. For a first
// attempt that failed, Record does nothing. A goroutine reports the counts of
// all hosts in one pipeline per FlushInterval, and sends nothing if there are
// none.
//
// Withdraw allows a free retry at once. For any other, it takes a retry from a
// lease, or needs one round trip. The round trips for a host are made one after
// another. A lease has retries for a cost of up to Lease. It has at most a
// quarter of what the successes still allow, and nothing of the Burst. It ends
// after a tenth of the Window or on Close, and its unused retries are then
// refunded. After a refusal, further retries to the host are refused without a
// round trip for one FlushInterval.
//
// # When Redis fails
//
// If Redis returns an error or does not answer within the Timeout, a HostBudget
// of this process with the same settings decides instead, for all hosts. An
// error for a single key has the same effect, for example if the key has
// another type. The HostBudget gets all successes, so it is up to date. One
// probe at a time, at growing intervals of up to five seconds, finds out when
// Redis works again for the key that failed. Reports that fail are lost and
// never sent again, so the shared budget becomes stricter. Each change is one
// line in the log.
//
// A charge of the HostBudget is given back to it, even if Redis works again by
// then. If retries of both budgets have not ended, it is not known whose charge
// is given back. The HostBudget then gets its charges back first, so it may
// allow as many retries more.
//
// Connecting takes several round trips, which may be longer than the Timeout.
// So the retries of a new process also wait for the first connection, for up to
// ten times the Timeout after New. If Redis does not answer at all, a process
// has that wait once.
//
// # Versions
//
// While a new version of a program is rolled out, processes with two versions
// of this package share a namespace. Each process sends the script of its own
// version, so the versions share nothing but the keys in Redis.
//
// The name of a key has the version of its format, which is v1 now. The README
// describes that format. A minor version of this package does one of two things:
//
//   - It keeps the format. Then the scripts of both versions read and write the
//     same fields, and all processes share one budget. If the two versions
//     have another default Ratio or Burst, the law above holds with the higher
//     values.
//   - It changes the version of the format. Then the processes of each version
//     have a budget of their own until the rollout has ended.
//
// The same is true of a minor version with another default Window, which is also
// in the name of a key. No minor version uses a key that does not begin with a
// brace, the namespace and a colon, or a command that the README does not name.
package redisbudget

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed421102f4/httpretry"
)

// Config configures a [Budget]. All processes of a namespace should have the same
// Ratio, Burst, Window and Strict. If they do not, those with another Window
// have a budget of their own, and the law holds with the highest Ratio and
// Burst.
type Config struct {
	_ [0]func() // no unkeyed literals, no comparison

	// Client is for a server, a cluster or a failover group: Redis 6 or later,
	// or Valkey. A Budget copies the options of a redis.Client or
	// redis.ClusterClient for connections of its own, without the hooks, so
	// that it can bound their timeouts and send nothing twice. It uses a Client
	// of any other type as it is. Its timeouts then also determine how long
	// probes and Close wait. Close does not close Client, and Client must not
	// be closed before the Budget.
	Client redis.UniversalClient

	// Namespace names the budget that processes share, in up to 64 letters,
	// digits, dots, dashes, underscores and slashes. "" means "httpretry".
	Namespace string

	// Ratio is the cost of failed retries per success, from 0.000001 to
	// 1000000. 0 means 0.2. As in httpretry.HostBudget, this and the next three
	// fields are for each host, but for all processes together.
	Ratio float64

	// Burst is the cost of failed retries beyond Ratio, at most 1000000. 0 means 5;
	// negative means none.
	Burst int

	// Window is how long successes and retries count, from a millisecond to
	// 365 days, but at least twice FlushInterval and Timeout together. 0 means
	// 30 seconds.
	Window time.Duration

	Strict bool // charge for retries that succeed, too

	// FlushInterval is the time between reports to Redis, at least a
	// millisecond. 0 means 100 milliseconds.
	FlushInterval time.Duration

	// FlushSize is the number of successes of one host that are reported
	// without waiting for the FlushInterval, at least 1. 0 means 1000.
	FlushSize int

	// Lease is the cost of the retries that a process takes for one host at a
	// time, from 1 to 1000. 0 means 8.
	Lease int

	// Timeout is how long a retry waits for Redis, and how long a report may
	// take, from a millisecond to a minute. For each host, a process makes one
	// call at a time. The Timeout of a retry includes the rest of the call that
	// is running. 0 means 50 milliseconds.
	//
	// The first connection may take longer. Until ten times the Timeout after
	// New, retries wait for it before their own Timeout begins. Retries to
	// several hosts at once need further connections, which are opened within
	// the Timeout. So set a Timeout of at least eight times the round trip to
	// Redis.
	Timeout time.Duration

	// Logger logs when Redis fails and when it works again. Nil means
	// slog.Default().
	Logger *slog.Logger

	// Observe is called with each Decision, at the end of Withdraw, whose
	// context it gets. The retry waits for it. It may be called concurrently.
	// Nil means none.
	Observe func(context.Context, Decision)
}

// A Decision is the answer of a budget to one call of Withdraw. There is none
// for a retry that is free, or whose context was done before.
type Decision struct {
	_ [0]func() // no unkeyed literals, no comparison

	Origin  string // of the request, as the function httpretry.Origin returns it
	Allowed bool   // the result of Withdraw
	Shared  bool   // the budget in Redis decided, not the HostBudget of this process
}

const (
	defaultNamespace     = "httpretry"
	defaultFlushInterval = 100 * time.Millisecond
	defaultFlushSize     = 1000
	defaultLease         = 8
	maxLease             = 1000
	defaultTimeout       = 50 * time.Millisecond
	maxTimeout           = time.Minute

	// Those of httpretry.HostBudget in the same version, which tests compare. They
	// are constants, so that an upgrade of the core only leaves all processes with
	// the same budget.
	defaultRatio  = 0.2
	defaultBurst  = 5
	defaultWindow = 30 * time.Second
)

var namespaces = regexp.MustCompile(`^[A-Za-z0-9._/-]{1,64}$`)

// validate returns an error with one line for each invalid field.
func (c *Config) validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("redisbudget: "+format, args...)) }
	// A typed nil would panic on first use.
	switch v := reflect.ValueOf(c.Client); {
	case !v.IsValid():
		bad("Config.Client: nil: want a usable client")
	case v.Kind() == reflect.Pointer && v.IsNil():
		bad("Config.Client: a nil %T: want a usable client", c.Client)
	}
	if c.Namespace != "" && !namespaces.MatchString(c.Namespace) {
		bad(`Config.Namespace: %q: want "" (the default, %q) or up to 64 of A-Z a-z 0-9 . _ / -`, c.Namespace, defaultNamespace)
	}
	local := httpretry.HostBudget{Ratio: c.Ratio, Burst: c.Burst, Window: c.Window}
	if err := local.Validate(); err != nil {
		for line := range strings.SplitSeq(err.Error(), "\n") {
			bad("%s", strings.Replace(line, "HostBudget.", "Config.", 1))
		}
	}
	if f := c.FlushInterval; f != 0 && f < time.Millisecond {
		bad("Config.FlushInterval: %v: want 0 (the default, %v) or at least %v", f, defaultFlushInterval, time.Millisecond)
	}
	if c.FlushSize < 0 {
		bad("Config.FlushSize: %d: want 0 (the default, %d) or at least 1", c.FlushSize, defaultFlushSize)
	}
	if c.Lease < 0 || c.Lease > maxLease {
		bad("Config.Lease: %d: want 0 (the default, %d) or a number from 1 to %d", c.Lease, defaultLease, maxLease)
	}
	if t := c.Timeout; t != 0 && (t < time.Millisecond || t > maxTimeout) {
		bad("Config.Timeout: %v: want 0 (the default, %v) or a duration from %v to %v",
			t, defaultTimeout, time.Millisecond, maxTimeout)
	}
	// A success counts from the earliest time at which it may have been, so
	// with a shorter Window it would hardly count.
	window := cmp.Or(c.Window, defaultWindow)
	// Twice a very long interval would overflow.
	interval := min(cmp.Or(c.FlushInterval, defaultFlushInterval), math.MaxInt64/4)
	least := 2 * (interval + cmp.Or(c.Timeout, defaultTimeout))
	if len(errs) == 0 && window < least {
		bad("Config.Window: %v: want at least %v, twice FlushInterval and Timeout together", window, least)
	}
	return errors.Join(errs...)
}

// A Budget is an [httpretry.Budget] that all processes of a namespace share.
// New returns one; the zero value is not usable. It has a goroutine that ends
// with Close. All methods may be called concurrently. It is no
// [httpretry.Balancer], because only Redis knows the balance.
type Budget struct {
	settings

	client     redis.UniversalClient
	ownsClient bool
	local      httpretry.HostBudget
	hosts      hosts

	begin     time.Time       // the zero of now
	connected <-chan struct{} // closed when connect of New has ended or may not take longer
	state     state
	active    list          // hosts to report
	wake      chan struct{} // there is something to do after an idle time
	full      chan struct{} // there are FlushSize successes
	stop      context.CancelFunc

	workers  workers
	closing  sync.Once
	closeErr error
}

// settings is a Config with its defaults.
type settings struct {
	namespace     string
	ratio         float64
	burst         int
	window        time.Duration
	flushInterval time.Duration
	flushSize     int64
	lease         int64
	timeout       time.Duration
	logger        *slog.Logger
	observe       func(context.Context, Decision)
}

var _ httpretry.Budget = (*Budget)(nil)

// New returns a Budget for cfg, or an error with one line for each invalid
// field: its path, its value and the allowed values. New does not wait for
// Redis. It connects in the background; in a cluster, to each master.
func New(cfg Config) (*Budget, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	b := &Budget{
		settings: settings{
			namespace:     cmp.Or(cfg.Namespace, defaultNamespace),
			ratio:         cmp.Or(cfg.Ratio, defaultRatio),
			burst:         max(cmp.Or(cfg.Burst, defaultBurst), 0),
			window:        cmp.Or(cfg.Window, defaultWindow),
			flushInterval: cmp.Or(cfg.FlushInterval, defaultFlushInterval),
			flushSize:     int64(cmp.Or(cfg.FlushSize, defaultFlushSize)),
			lease:         int64(cmp.Or(cfg.Lease, defaultLease)),
			timeout:       cmp.Or(cfg.Timeout, defaultTimeout),
			logger:        cfg.Logger,
			observe:       cfg.Observe,
		},
		begin: time.Now(),
		wake:  make(chan struct{}, 1),
		full:  make(chan struct{}, 1),
	}
	b.local.Ratio, b.local.Burst, b.local.Window, b.local.Strict = cfg.Ratio, cfg.Burst, cfg.Window, cfg.Strict
	b.client, b.ownsClient = ownClient(cfg.Client, b.timeout)
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	connecting, connected := context.WithTimeout(ctx, b.connectTimeout())
	b.connected = connecting.Done()
	b.workers.start(func() {
		// The first report or withdrawal finds the same error.
		_ = b.connect(connecting)
		connected()
		b.run(ctx)
	})
	return b, nil
}

// maxCost is the highest cost of a retry.
const maxCost = 2

// cost returns the cost of a retry that follows last, as in a HostBudget.
func cost(last httpretry.AttemptResult) int64 {
	switch {
	case last.Throttled:
		return 0
	case last.Timeout:
		return maxCost
	}
	return 1
}

// Withdraw reports whether one retry may be sent to last.Origin, and charges
// its cost if so. After a Throttled attempt, it returns true at once, without a
// charge. Otherwise it waits for Redis, for at most the Timeout. While New
// connects, it waits for that first: see Config.Timeout. If ctx is done before
// the answer, it returns false.
func (b *Budget) Withdraw(ctx context.Context, last httpretry.AttemptResult) bool {
	n := cost(last)
	if n == 0 {
		return true
	}
	h := b.host(last.Origin)
	allowed, err := b.withdrawShared(ctx, h, n)
	switch {
	case err == nil:
	case ctx.Err() != nil:
		return false
	// Redis has failed, so the budget of this process decides.
	default:
		allowed = b.local.Withdraw(ctx, last)
	}
	if allowed {
		h.open.add(n, err == nil)
	}
	if b.observe != nil {
		b.observe(ctx, Decision{Origin: last.Origin, Allowed: allowed, Shared: err == nil})
	}
	return allowed
}

// Refund cancels the latest charges for last.Origin within the last Window, up
// to the cost of the retry. After a Throttled attempt, there is none to cancel.
// It does not block.
func (b *Budget) Refund(last httpretry.AttemptResult) {
	n := cost(last)
	if n == 0 {
		return
	}
	h := b.host(last.Origin)
	// The local budget may have charged for it, even if Redis works now.
	toLocal, toShared := h.open.giveBack(n)
	if toLocal {
		b.local.Refund(last)
	}
	// Without Redis, the shared charge remains.
	if !toShared || b.state.load() != shared {
		return
	}
	// The latest charge of this process may be that of a lease, which then gets
	// its retry back.
	b.putBack(h, n)
}

// Record records a success of ended.Origin. If a retry that was not free
// succeeded, it cancels the latest charges within the last Window, up to the
// cost of the retry and 1 more, except with Strict. An attempt that did not
// succeed changes nothing. Record does not block.
func (b *Budget) Record(ended, charged httpretry.AttemptResult) {
	var n int64 // what the attempt has cost
	if charged.Number > 0 {
		n = cost(charged)
	}
	if !ended.Succeeded() {
		if n > 0 {
			b.host(ended.Origin).open.keep(n)
		}
		return
	}
	h := b.host(ended.Origin)
	toLocal, toShared := false, false
	if n > 0 {
		toLocal, toShared = h.open.giveBack(n)
	}
	if !toLocal {
		charged = httpretry.AttemptResult{}
	}
	b.local.Record(ended, charged)
	phase := b.state.load()
	// After Close, no goroutine takes hosts from the list.
	if phase == closed {
		return
	}
	successes := h.successes.Add(1)
	if toShared && phase == shared && !b.local.Strict {
		// The success is reported anyway. In a lease, the charge would be of no
		// use to other processes.
		h.refunds.Add(n)
		h.helped.Add(1)
	}
	b.activate(h)
	if successes == b.flushSize {
		notify(b.full)
	}
}

// Close sends the last report, returns all leases and ends the goroutine. It
// returns an error if the report fails. After Close, the HostBudget of this
// process decides. Close may be called more than once.
func (b *Budget) Close() error {
	b.closing.Do(func() {
		before := b.state.close()
		b.stop()
		b.workers.finish()
		failed := func(err error) {
			if err != nil {
				b.closeErr = errors.Join(b.closeErr, fmt.Errorf("redisbudget: close: %w", err))
			}
		}
		if before == shared {
			failed(b.flush(true))
		}
		if b.ownsClient {
			failed(b.client.Close())
		}
	})
	return b.closeErr
}

// now returns the time since b began. It never goes back.
func (b *Budget) now() time.Duration { return time.Since(b.begin) }

// host returns the state of an origin.
func (b *Budget) host(origin string) *host {
	// The digest of a long name takes its place. A name with the prefix of a
	// digest is replaced, too, so that it cannot be the digest of another name.
	if len(origin) > maxNameLen || strings.HasPrefix(origin, digestPrefix) {
		origin = digest(origin)
	}
	return b.hosts.get(origin, b.key)
}

// format is the version of the keys' content. The package documentation says
// when it has to change.
const format = "v1"

// key returns the key of a host in Redis. The braces make a cluster put all
// keys of a host, should there ever be several, on one server. A name that is
// long or has unusual bytes is replaced by its digest.
func (b *Budget) key(name string) string {
	kind := "host"
	if !plainNames.MatchString(name) {
		kind = "sha256"
		if !digests.MatchString(name) {
			name = digest(name)
		}
		name = name[len(digestPrefix):]
	}
	return fmt.Sprintf("{%s:%s:%d:%s:%s}", b.namespace, format, b.window.Microseconds(), kind, name)
}

const digestPrefix = "\x00sha256:"

var (
	plainNames = regexp.MustCompile(`^[!-z]{1,128}$`)
	digests    = regexp.MustCompile("^\x00sha256:[0-9a-f]{64}$")
)

// digest returns a short name that no other name has.
func digest(name string) string {
	sum := sha256.Sum256([]byte(name))
	return digestPrefix + hex.EncodeToString(sum[:])
}
