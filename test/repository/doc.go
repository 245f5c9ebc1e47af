// Package repository holds tests of the repository itself, not of package
// httpretry: imports, documents that name tests, and the style of tests.
package repository
