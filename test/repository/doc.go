// Package repository holds tests of the repository itself, not of package
// httpretry: imports, examples, links, and documents that name tests or code.
package repository
