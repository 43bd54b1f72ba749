// Package integration tests a whole constellation through its public gRPC API.
//
// Every behaviour is tested in every shape of deployment (shape_test.go): all
// in memory, one durable directory, and every service as processes of their own
// over real Oxia, Consul and S3 servers. A shape owns the storage, so that it
// can stop the constellation and start another one over what is left.
//
// The tests speak the generated client, not the SDK: what the SDK would resend
// or resume by itself is what is looked at here.
package integration
