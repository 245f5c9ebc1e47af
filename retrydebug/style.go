package retrydebug

import (
	"crypto/sha256"
	"encoding/base64"
)

// contentSecurityPolicy allows nothing but the style and an empty icon. A page
// without an icon makes browsers request /favicon.ico. The policy forbids that,
// and some browsers log an error.
var contentSecurityPolicy = "default-src 'none'; style-src '" + styleHash() +
	"'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func styleHash() string {
	sum := sha256.Sum256([]byte(style))
	return "sha256-" + base64.StdEncoding.EncodeToString(sum[:])
}

// style is the CSS of the page. Text has a contrast of at least 4.5 to 1 with
// its background.
const style = `
:root {
	color-scheme: light dark;
	--back: #fff; --text: #1f2328; --quiet: #59636e; --line: #d8dee4; --head: #f6f8fa; --link: #0757ba;
	--cooling: #7a4100; --cooling-back: #fff0d4;
	--empty: #a40e26; --empty-back: #ffe9e7;
	--waiting: #0550ae; --waiting-back: #e0f1ff;
	--failing: #5e37a6; --failing-back: #f3ecff;
}
@media (prefers-color-scheme: dark) {
	:root {
		--back: #0d1117; --text: #e6edf3; --quiet: #9aa4af; --line: #2b323b; --head: #161b22; --link: #79b8ff;
		--cooling: #f5c26b; --cooling-back: #3b2a08;
		--empty: #ffa198; --empty-back: #481519;
		--waiting: #84c3ff; --waiting-back: #0f2d4d;
		--failing: #d4b5ff; --failing-back: #32204f;
	}
}
* { box-sizing: border-box; }
body {
	margin: 0 auto; padding: 1rem 1.25rem 2rem; max-width: 84rem;
	font: 14px/1.45 system-ui, sans-serif; font-variant-numeric: tabular-nums;
	color: var(--text); background: var(--back);
}
a { color: var(--link); }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem 1.25rem; }
h1 { margin: 0; font-size: 1.15rem; }
header p { margin: 0; }
h2 { margin: 1.25rem 0 0; font-size: 1rem; overflow-wrap: anywhere; }
h2 ~ table caption { padding-top: .2rem; }
h2 ~ .none { margin: .5rem 0; text-align: left; }
nav { margin-left: auto; color: var(--quiet); }
nav a { margin-left: .75rem; }
table { width: 100%; border-collapse: collapse; }
caption { padding: .8rem 0; text-align: left; font-weight: 600; line-height: 1.9; }
caption span { margin-left: .4rem; font-weight: 400; }
th, td { text-align: left; vertical-align: baseline; }
tbody th { font-weight: 500; }
tbody th, code { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px; overflow-wrap: anywhere; }
td > span, caption span { padding: .1rem .5rem; border-radius: 1rem; white-space: nowrap; }
.cooling { color: var(--cooling); background: var(--cooling-back); }
.empty { color: var(--empty); background: var(--empty-back); }
.waiting { color: var(--waiting); background: var(--waiting-back); }
.failing { color: var(--failing); background: var(--failing-back); }
.ok { color: var(--quiet); }
.quiet { color: var(--quiet); }
.none { margin: 3rem 0; text-align: center; color: var(--quiet); }
footer { margin-top: 1.5rem; font-size: 12px; color: var(--quiet); }
dl { margin: 0; display: flex; flex-wrap: wrap; gap: .15rem 1.5rem; }
dt, dd { display: inline; margin: 0; }
dt { font-weight: 600; }
dd::before { content: " "; }
@media (min-width: 64.01rem) {
	th, td { padding: .3rem .6rem; border-bottom: 1px solid var(--line); }
	td { white-space: nowrap; }
	tbody th { width: 22%; }
	td[data-label="State"], td[data-label="Cool-down"] { min-width: 8rem; } /* about equal in all tables */
	td[data-label="Last failure"] { min-width: 9.5rem; white-space: normal; }
	td[data-label="Policy"] { width: 16%; white-space: normal; }
	.more th { color: var(--quiet); font-weight: 400; }
	.n { text-align: right; }
	thead th {
		position: sticky; top: 0; vertical-align: bottom; font-size: 12px; font-weight: 600;
		color: var(--quiet); background: var(--head);
	}
	tbody tr:hover > * { background: var(--head); }
}
@media (max-width: 64rem) {
	body { padding: .75rem .75rem 1.5rem; }
	nav { margin-left: 0; width: 100%; }
	nav a { display: inline-block; padding: .35rem 0; }
	table, tbody, caption { display: block; }
	thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
	tbody tr {
		display: grid; grid-template-columns: repeat(4, 1fr); gap: .35rem .5rem;
		padding: .7rem 0; border-top: 1px solid var(--line);
	}
	tbody th, tbody td { display: block; }
	tbody th { grid-column: 1 / -1; font-weight: 600; }
	td::before { display: block; font-size: 11px; color: var(--quiet); content: attr(data-label); }
	td:empty { display: none; }
	td[data-label="Policy"], td[data-label="Last failure"] { grid-column: 1 / -1; }
	td[data-label="State"], td[data-label="Cool-down"] { grid-column: span 2; }
	td:not(.n)::before { display: inline; margin-right: .5rem; }
}
`
