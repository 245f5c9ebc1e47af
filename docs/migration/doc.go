// Package migration contains the programs of docs/migration.md, and tests its
// claims about other libraries. It also measures the jobs of docs/choosing.md.
package migration
