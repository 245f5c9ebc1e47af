// Package test holds the black-box tests of package httpretry. Each file tests
// one thing against servers that misbehave on purpose (internal/faults), with
// the helpers of internal/contract. The tests of a single source file of the
// root are next to that file.
//
// Request bodies have five files:
//
//   - requestbodyreplay: each attempt sends the same bytes, within ReplayBuffer
//   - requestbodygetbody: a retry gets its body from Request.GetBody
//   - requestbodyresend: net/http gets it from GetBody to resend an attempt
//   - requestbodyduplex: a response arrives while the body is being sent
//   - requestbodyfails: the caller's body blocks, fails, panics or is short
package test
