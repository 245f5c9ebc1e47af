-- The budget of one host, shared by all processes of a namespace. One call
-- records what a process counted since its last report, and then charges for
-- retries. Times are in microseconds, by the clock of the server.
local window, ratio, burst = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local successes, age, refunds = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local helped = tonumber(ARGV[7]) -- of the successes, those of retries
local need, extra, hold = tonumber(ARGV[8]), tonumber(ARGV[9]), tonumber(ARGV[10])

local steps = 10
local step = math.floor(window / steps)
local lease = step
local retention = 24 * 60 * 60 * 1000 -- milliseconds

local server = redis.call('TIME')
local clock = server[1] * 1000000 + server[2]

-- The clock of the server may go back. now, the time of the budget, does not.
-- host is the host's time at stopped, which is earlier than now only if the
-- host fails. failing is the time up to which processes may have made retries
-- without a report, or nil if the host does not fail.
local now, host, stopped, failing = clock, clock, clock, nil
local state = redis.call('HMGET', KEYS[1], 'clock', 'time', 'host', 'stopped', 'failing', 'slots')
if state[1] then
	now = state[2] + math.max(clock - state[1], 0)
	host, stopped, failing = tonumber(state[3]), tonumber(state[4]), tonumber(state[5])
end

-- Successes count from the time of the oldest, so none counts for too long.
local from = now - age
if failing and successes > 0 and from > stopped then
	-- The host has answered since, so it was not down all the time. It may have
	-- been down for most of a long time.
	host = host + math.min(from - stopped, lease)
	stopped = from
	if from > failing then
		failing = nil
	end
end
if not failing then
	host, stopped = host + now - stopped, now
end

-- A slot has the counts of one step of the host's time: successes, and charges
-- that were not canceled. Charges are up to six steps ahead of the time.
local current = math.floor(host / step)
local first, last = current - steps + 1, current + 6
local slots = {}
for n = first, last do
	slots[n] = {0, 0}
end
for n, s, c in string.gmatch(state[6] or '', '(%d+):(%d+):(%d+)') do
	n = tonumber(n)
	if n >= first then
		slots[n] = {tonumber(s), tonumber(c)}
	end
end
local oldest = math.floor((host - math.max(stopped - from, 0)) / step)
if oldest >= first then
	slots[oldest][1] = slots[oldest][1] + successes
end

-- cancel cancels the latest n charges of the slots up to a certain one.
local function cancel(n, slot)
	for i = slot, first, -1 do
		local canceled = math.min(n, slots[i][2])
		n, slots[i][2] = n - canceled, slots[i][2] - canceled
	end
end
cancel(refunds, last)
-- A retry that succeeded cancels 1 more, of a charge before. A charge in the slot
-- of the successes, or a later one, may be that of an outage since then.
cancel(helped, oldest - 1)

local granted, left = 0, 0
if need > 0 then
	local quota, charges = 0, 0
	for _, slot in pairs(slots) do
		quota, charges = quota + slot[1], charges + slot[2]
	end
	-- A product like 100 * 0.29 is a little less than the whole number it
	-- stands for.
	quota = burst + math.floor(quota * ratio * (1 + 2 ^ -51)) - charges
	granted = math.max(math.min(need, quota), 0)
	if granted < need then
		failing = math.max(failing or 0, now + hold)
	end
	-- What a process takes for later is a quarter of the rest, so that others
	-- find some. In an outage, the Burst is all there is, so it is left out.
	local more = math.max(math.min(extra, math.floor((quota - granted - burst) / 4)), 0)
	if more > 0 then
		left = lease
	end
	failing = math.max(failing or 0, now + left)
	granted = granted + more
	-- The host may have answered since stopped. So the charge is in the latest slot
	-- in which the time can be now, from reports that are up to half a window old.
	local slot = math.floor((host + math.min(now - stopped, 6 * step)) / step)
	slots[slot][2] = slots[slot][2] + granted
end

local list = {}
for n = first, last do
	if slots[n][1] + slots[n][2] > 0 then
		list[#list + 1] = string.format('%.0f:%.0f:%.0f', n, slots[n][1], slots[n][2])
	end
end
redis.call('HSET', KEYS[1],
	'clock', string.format('%.0f', clock),
	'time', string.format('%.0f', now),
	'host', string.format('%.0f', host),
	'stopped', string.format('%.0f', stopped),
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
return {granted, left}
