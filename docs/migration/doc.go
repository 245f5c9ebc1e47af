// Package migration contains the programs of docs/migration.md, and tests its
// claims about other libraries.
package migration
