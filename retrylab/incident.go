package main

import (
	"cmp"
	"maps"
	"slices"
	"strings"
)

// An incident is a failure that was published, as flags of outage.
type incident struct {
	about string
	flags []string
}

// incidents are the values of -incident. Only the causes are those of the
// incident. The figures are small ones that have the same effect.
func incidents() map[string]incident {
	return map[string]incident{
		"google-cloud-2025-06-12": {
			"Tasks of Google Cloud's Service Control restart and read their policies from a database. They did so without random exponential back-off, which overloaded it (https://status.cloud.google.com/incidents/ow5i3PPK96RduMcb1SsW). Here, the tasks begin at random times.",
			[]string{
				"-fault=errors", "-from=20s", "-to=80s", "-length=200s", "-rate=20", "-attempts=-1",
				"-budgets=unlimited,default", "-strategies=Constant Wait=1s,Exponential Base=1s Max=8s,FullJitter Base=1s Max=64s",
			},
		},
		"cloudflare-2025-09-12": {
			"Each render of Cloudflare's dashboard calls the Tenant Service API again, while a new version of that is deployed (https://blog.cloudflare.com/deep-dive-into-cloudflares-sept-12-dashboard-and-api-outage/). Here, a page calls it until it has an answer.",
			[]string{
				"-fault=refuse", "-from=20s", "-to=50s", "-length=120s", "-rate=20", "-attempts=-1",
				"-budgets=unlimited,default", "-strategies=Constant Wait=200ms,DecorrelatedV2",
			},
		},
	}
}

func incidentNames() string { return strings.Join(slices.Sorted(maps.Keys(incidents())), ", ") }

// useIncident sets the flags of an incident, and then those of the command line
// again.
func (o *options) useIncident(name string) error {
	if name == "" {
		return nil
	}
	return cmp.Or(oneOf("incident", name, incidentNames()), o.Parse(slices.Concat(incidents()[name].flags, o.args)))
}
