-- The budget of one host, shared by all processes of a namespace. One call
-- records what a process counted since its last report, and then charges for
-- retries. Times are in microseconds, by the clock of the server.
local window, ratio, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local successes, age, refunds = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local helped = tonumber(ARGV[7]) -- of the successes, those of retries
local need, extra, hold = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

local steps = 10
local step = math.floor(window / steps)
local retention = 24 * 60 * 60 * 1000 -- milliseconds

local server = redis.call('TIME')
local clock = server[1] * 1000000 + server[2]

-- taken has the tokens that the Burst does not have: how many were taken in each
-- tick, beginning with the oldest. A tick is a tenth of a step.
local tick = step / 10
local taken = {}

-- put returns up to n tokens to the Burst, of those that were taken until the
-- given time. The latest of them are returned first.
local function put(n, time)
	for i = #taken, 1, -1 do
		local t = taken[i]
		if (t.tick + 1) * tick <= time then
			local back = math.min(n, t.n)
			n, t.n = n - back, t.n - back
		end
	end
end

-- The Burst refills while failing is nil. Else failing is the time up to which
-- processes may have made retries without a report.
local now, failing = clock, nil
local state = redis.call('HMGET', KEYS[1], 'clock', 'time', 'taken', 'failing', 'slots')
if state[1] then
	-- The clock of the server may go back. The time of the budget does not.
	local passed = math.max(clock - state[1], 0)
	now = state[2] + passed
	for at, n in string.gmatch(state[3] or '', '(%d+):(%S+)') do
		taken[#taken + 1] = {tick = tonumber(at), n = tonumber(n)}
	end
	failing = tonumber(state[4])
	if not failing then
		put(burst * passed / window, math.huge)
	end
end
local current = math.floor(now / step)

-- A slot has the counts of one step: successes, charges that were not
-- refunded, and of those charges the ones that took a token. The slots are
-- those of the window, beginning with the current one.
local slots = {}
for i = 1, steps do
	slots[i] = {0, 0, 0}
end
for n, s, c, b in string.gmatch(state[5] or '', '(%d+):(%d+):(%d+):(%d+)') do
	if tonumber(n) > current - steps then
		slots[current - n + 1] = {tonumber(s), tonumber(c), tonumber(b)}
	end
end

if successes > 0 then
	-- They count from the time of the oldest, so none counts for too long.
	local from = slots[current - math.floor((now - age) / step) + 1]
	if from then
		from[1] = from[1] + successes
	end
	if failing and now - age >= failing then
		failing = nil
	end
end

-- Refunds cancel the latest charges, and give back the tokens of those first.
for _, slot in ipairs(slots) do
	local canceled = math.min(refunds, slot[2])
	local returned = math.min(canceled, slot[3])
	slot[2], slot[3] = slot[2] - canceled, slot[3] - returned
	put(returned, math.huge)
	refunds = refunds - canceled
end

-- A retry that succeeded returns a token that was taken before its success. A
-- token that was taken since then may be that of an outage, and remains taken.
put(helped, now - age)

local granted = 0
local ends = (current + 1) * step
if need > 0 then
	local quota, charges = 0, 0
	for _, slot in ipairs(slots) do
		quota, charges = quota + slot[1], charges + slot[2]
	end
	-- A product like 100 * 0.29 is a little less than the whole number it
	-- stands for.
	quota = math.floor(quota * ratio * (1 + 2 ^ -51))
	local left = math.max(quota - charges, 0)
	local tokens = burst
	for _, t in ipairs(taken) do
		tokens = tokens - t.n
	end
	local by_ratio = math.min(need, left)
	local by_burst = math.min(need - by_ratio, math.max(math.floor(tokens), 0))
	-- What a process takes for later is a quarter of the rest, so that others
	-- find some, and never a token: in an outage those are all there is.
	granted = by_ratio + by_burst + math.min(extra, math.floor((left - by_ratio) / 4))
	if granted > 0 then
		slots[1][2], slots[1][3] = slots[1][2] + granted, slots[1][3] + by_burst
		if by_burst > 0 then
			taken[#taken + 1] = {tick = math.floor(now / tick), n = by_burst}
		end
		failing = math.max(failing or 0, ends)
	end
	if granted < need then
		failing = math.max(failing or 0, now + hold)
	end
end

local list = {}
for i, slot in ipairs(slots) do
	if slot[1] + slot[2] > 0 then
		list[#list + 1] = string.format('%.0f:%.0f:%.0f:%.0f', current - i + 1, slot[1], slot[2], slot[3])
	end
end

-- A report is at most half a window old, so older ticks are kept as one. It is
-- the latest of them, so that no token seems older than it is.
local kept, old = {}, math.floor(now / tick) - steps * 10 / 2
for _, t in ipairs(taken) do
	local last = kept[#kept]
	if t.n > 0 and last and (t.tick == last.tick or t.tick <= old) then
		last.tick, last.n = t.tick, last.n + t.n
	elseif t.n > 0 then
		kept[#kept + 1] = t
	end
end
for i, t in ipairs(kept) do
	kept[i] = string.format('%.0f:%.17g', t.tick, t.n)
end

redis.call('HSET', KEYS[1],
	'clock', string.format('%.0f', clock),
	'time', string.format('%.0f', now),
	'taken', table.concat(kept, ' '),
	'failing', failing and string.format('%.0f', failing) or '',
	'slots', table.concat(list, ' '))
-- After a window, the budget of a host that does not fail is that of a new
-- host. A host that fails is remembered longer, because a new one has a full
-- Burst.
local lifetime = math.ceil((window + step) / 1000)
if failing then
	lifetime = math.max(lifetime, retention)
end
redis.call('PEXPIRE', KEYS[1], string.format('%.0f', lifetime))
return {granted, ends - now}
