package fielderr_test

import (
	"errors"
	"io"
	"io/fs"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/seed421102f4/httpretry/internal/fielderr"
)

func TestAt(t *testing.T) {
	require.NoError(t, fielderr.At("Config", nil))
	one := errors.New("A: 1: want 2")
	for _, tt := range []struct {
		err  error
		want string
	}{
		{one, "Config.Policy: A: 1: want 2"},
		{errors.Join(one, errors.New("B: 3: want 4")),
			"Config.Policy: A: 1: want 2\nConfig.Policy: B: 3: want 4"},
		{errors.New(""), "Config.Policy: "},
	} {
		assert.EqualError(t, fielderr.At("Config.Policy", tt.err), tt.want)
	}
}

// Paths can be put before errors that have some already.
func TestAtNests(t *testing.T) {
	inner := errors.Join(fielderr.At("A", errors.New("1")), fielderr.At("B", errors.New("2\n3")))
	assert.EqualError(t, fielderr.At("Outer", inner), "Outer: A: 1\nOuter: B: 2\nOuter: B: 3")
}

func TestAtWraps(t *testing.T) {
	path := &fs.PathError{Op: "open", Path: "x", Err: io.EOF}
	err := fielderr.At("Config", errors.Join(errors.New("other"), path))
	require.ErrorIs(t, err, io.EOF)
	var found *fs.PathError
	require.ErrorAs(t, err, &found)
	assert.Same(t, path, found)
}
