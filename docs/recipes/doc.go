// Package recipes contains the code of docs/recipes.md that needs a server, a
// test in virtual time or other modules, and the measurements of
// docs/layers.md.
package recipes
