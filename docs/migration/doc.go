// Package migration contains the programs of docs/migration.md, and tests its
// claims and those of docs/switching.md about other libraries.
package migration
