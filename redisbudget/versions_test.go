package redisbudget_test

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/redisbudget"
)

// released is the budget.lua of the last release. After the next one, that of
// the new release replaces it: cp budget.lua testdata/released.lua. Until there
// is a release, it is the first script for format v1.
//
//go:embed testdata/released.lua
var released string

// A version is this package as processes of one version of a program use it,
// for the budget of target.
type version struct {
	key      string
	exchange func(context.Context, redisbudget.Report) (granted int64, left time.Duration, err error)
}

func currentVersion(t testing.TB, cfg redisbudget.Config) version {
	b := newBudget(t, cfg)
	return version{b.Key(target), func(ctx context.Context, r redisbudget.Report) (int64, time.Duration, error) {
		return b.Exchange(ctx, target, r)
	}}
}

// releasedVersion uses the script as that release does. The key, the defaults
// and the arguments are replaced together with the script.
func releasedVersion(cfg redisbudget.Config) version {
	key := fmt.Sprintf("{%s:v1:%d:host:%s}",
		cmp.Or(cfg.Namespace, "httpretry"), cmp.Or(cfg.Window, 30*time.Second).Microseconds(), target)
	run := redis.NewScript(released)
	return version{key, func(ctx context.Context, r redisbudget.Report) (int64, time.Duration, error) {
		reply, err := run.Run(ctx, cfg.Client, []string{key},
			cmp.Or(cfg.Window, 30*time.Second).Microseconds(), cmp.Or(cfg.Ratio, 0.2), max(cmp.Or(cfg.Burst, 5), 0),
			r.Successes, r.Age.Microseconds(), r.Refunds, r.Helped, r.Need, r.Extra,
			cmp.Or(cfg.FlushInterval, 100*time.Millisecond).Microseconds()).Int64Slice()
		if err != nil {
			return 0, 0, err
		}
		if len(reply) != 2 {
			return 0, 0, fmt.Errorf("want two values: %v", reply)
		}
		return reply[0], time.Duration(reply[1]) * time.Microsecond, nil
	}}
}

// A rollout is the versions that the processes of a namespace have, in turn.
type rollout struct {
	name     string
	versions func(testing.TB, redisbudget.Config) []version
}

var (
	onlyCurrent = rollout{"current", func(t testing.TB, cfg redisbudget.Config) []version {
		return []version{currentVersion(t, cfg)}
	}}
	releasedFirst = rollout{"released, current", func(t testing.TB, cfg redisbudget.Config) []version {
		return []version{releasedVersion(cfg), currentVersion(t, cfg)}
	}}
	currentFirst = rollout{"current, released", func(t testing.TB, cfg redisbudget.Config) []version {
		return []version{currentVersion(t, cfg), releasedVersion(cfg)}
	}}
)

// shareKey reports whether the versions have one budget together. Otherwise
// each has a budget of its own, which the others do not read.
func shareKey(versions []version) bool {
	for _, v := range versions {
		if v.key != versions[0].key {
			return false
		}
	}
	return true
}

// Processes of the last release and of this version use one server, in random
// order and in real time.
func TestRolloutKeepsTheLaw(t *testing.T) {
	addr := freeAddr(t)
	startRedis(t, addr)
	const window = 400 * time.Millisecond
	for _, s := range []setting{{1, 10, 5, window}, {2, 5, 2, window}, {1, 3, 0, window}, {5, 2, 1, window}} {
		t.Run(s.String(), func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(5) {
				sim := newRealSimulation(t, s, releasedFirst, addr, seed)
				for range 150 {
					sim.step(t)
				}
				// A busy machine may execute a script later than it was sent, by
				// more than the history can have.
				if sim.slowest > sim.margin {
					t.Logf("a script took %v", sim.slowest)
					continue
				}
				sim.requireLaw(t)
				sim.requireOutageLaw(t)
				for i, v := range sim.versions {
					assert.Greater(t, sim.granted[i], int64(10), "hardly a retry is allowed to processes with %s", v.key)
				}
				return
			}
			require.Fail(t, "the server was never fast enough")
		})
	}
}

// If processes have another Ratio and Burst, as two versions with other defaults
// do, the law holds with the highest of each.
func TestOtherRatiosAndBurstsKeepTheLaw(t *testing.T) {
	highest := setting{2, 5, 5, 10 * time.Second}
	mixed := rollout{"mixed", func(t testing.TB, cfg redisbudget.Config) []version {
		many, few := cfg, cfg
		many.Burst, few.Ratio = 2, 0.1
		return []version{currentVersion(t, many), currentVersion(t, few)}
	}}
	granted := make([]int64, 2)
	for seed := range uint64(20) {
		sim := newSimulation(t, highest, mixed, seed)
		sim.onlyRetries = seed%2 == 1
		for range 200 {
			sim.step(t)
		}
		sim.requireLaw(t)
		sim.requireOutageLaw(t)
		for i, n := range sim.granted {
			granted[i] += n
		}
	}
	for _, n := range granted {
		assert.Greater(t, n, int64(100), "hardly a retry is allowed")
	}
}

// On a real server, too, processes of each version read the fields that those of
// the other version write.
func TestVersionsReadEachOther(t *testing.T) {
	addr := freeAddr(t)
	startRedis(t, addr)
	client := newClient(t, addr)
	for i, r := range []rollout{releasedFirst, currentFirst} {
		t.Run(r.name, func(t *testing.T) {
			versions := r.versions(t, redisbudget.Config{
				Client: other{client}, Namespace: fmt.Sprint(i), Window: 10 * time.Second})
			if !shareKey(versions) {
				t.Skip("the versions have budgets of their own")
			}
			a, b := versions[0], versions[1]
			do := func(v version, r redisbudget.Report) int64 {
				t.Helper()
				granted, _, err := v.exchange(t.Context(), r)
				require.NoError(t, err)
				return granted
			}
			do(a, redisbudget.Report{Successes: 100})
			assert.EqualValues(t, 20+5, do(b, redisbudget.Report{Need: 99}), "the successes and the burst")
			assert.Zero(t, do(a, redisbudget.Report{Need: 1}), "the charges")
			do(b, redisbudget.Report{Refunds: 3})
			assert.EqualValues(t, 3, do(a, redisbudget.Report{Need: 99}), "the refunds")
			time.Sleep(1100 * time.Millisecond) // longer than a slot
			do(b, redisbudget.Report{Successes: 2, Helped: 2})
			assert.EqualValues(t, 2, do(a, redisbudget.Report{Need: 99}), "a charge for each retry that succeeded")
			do(b, redisbudget.Report{Successes: 10, Age: time.Minute})
			assert.Zero(t, do(a, redisbudget.Report{Need: 99}), "an old success")
		})
	}
}
