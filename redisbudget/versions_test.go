package redisbudget_test

import (
	"cmp"
	"context"
	_ "embed"
	"fmt"
	"slices"
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
	return !slices.ContainsFunc(versions, func(v version) bool { return v.key != versions[0].key })
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
	for _, n := range simulate(t, highest, mixed, 20) {
		assert.Greater(t, n, int64(100), "hardly a retry is allowed")
	}
}

// On a real server, too, processes of each version read the fields that those of
// the other version write.
func TestVersionsReadEachOther(t *testing.T) {
	addr := freeAddr(t)
	startRedis(t, addr)
	play := play{moves: []move{
		successes(0, 200, 0), retries(0, 99, 20+5), retries(0, 1, 0),
		refunds(0, 3), retries(0, 99, 3),
		helped(1100*time.Millisecond, 2, 0), retries(0, 99, 2), // a slot is a second
		successes(0, 10, time.Minute), retries(0, 99, 0), rich(),
	}}
	client := newClient(t, addr)
	for _, r := range []rollout{releasedFirst, currentFirst} {
		require.NoError(t, client.FlushAll(t.Context()).Err())
		t.Run(r.name, func(t *testing.T) {
			play.run(t, r, client, func(m move) { time.Sleep(m.after) })
		})
	}
}
