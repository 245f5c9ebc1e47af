// Package migration contains the programs of docs/migration.md, and the tests
// of what the guide says about other libraries.
package migration
