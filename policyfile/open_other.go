//go:build !unix

package policyfile

import "os"

// openFlags are those of os.Open. No file of the system is a named pipe.
const openFlags = os.O_RDONLY
