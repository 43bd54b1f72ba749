// Package gateway is the tier that faces callers: the public gRPC API and its
// JSON form over HTTP. It resolves names, finds leaders, and owns nothing: every
// decision is made behind it.
//
// NOT_LEADER and other words of the trust domain never leave it. A request is
// validated before it comes here (libs/validate, in the interceptors).
package gateway
