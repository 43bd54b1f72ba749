package s3

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"

	"github.com/aws/aws-sdk-go-v2/aws"
	smithy "github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"github.com/nova-stream/nova/libs/objectstore"
)

// codes is what S3's error codes mean, whatever the status they come with.
// Source: "List of error codes" of the S3 API reference, and the codes of the
// servers named behind.
var codes = map[string]error{
	"NoSuchKey":          objectstore.ErrNotFound,
	"InvalidRange":       objectstore.ErrRange,
	"PreconditionFailed": objectstore.ErrExists, // or ErrMismatch, by operation

	"ConditionalRequestConflict": objectstore.ErrUnavailable, // 409: undecided, unlike 412
	"OperationAborted":           objectstore.ErrUnavailable,
	"RequestTimeout":             objectstore.ErrUnavailable, // 400
	"InternalError":              objectstore.ErrUnavailable,
	"IncompleteBody":             objectstore.ErrUnavailable, // damaged on the way, all three
	"BadDigest":                  objectstore.ErrUnavailable,
	"XAmzContentSHA256Mismatch":  objectstore.ErrUnavailable,
	"RequestTimeTooSkewed":       objectstore.ErrUnavailable, // the SDK corrects by the answer's date
	"ExpiredToken":               objectstore.ErrUnavailable, // the next attempt fetches a new one
	"TokenRefreshRequired":       objectstore.ErrUnavailable,

	"SlowDown":                 objectstore.ErrThrottled,
	"ServiceUnavailable":       objectstore.ErrThrottled,
	"Throttling":               objectstore.ErrThrottled,
	"ThrottlingException":      objectstore.ErrThrottled,
	"TooManyRequests":          objectstore.ErrThrottled,
	"RequestLimitExceeded":     objectstore.ErrThrottled,
	"BandwidthLimitExceeded":   objectstore.ErrThrottled,
	"TooManyRequestsException": objectstore.ErrThrottled,

	// versitygw, 409: a put whose folder went meanwhile with the last object in it, as
	// well as "a" where "a/b" is, which Nova's keys never are.
	"ExistingObjectIsDirectory": objectstore.ErrUnavailable,
	"ObjectParentIsFile":        objectstore.ErrPermanent, // versitygw, 409
}

// advice says what to do about refusals, by code.
func (s *Store) advice(code string) string {
	bucket, endpoint := s.config.Bucket, s.config.Endpoint
	if endpoint == "" {
		endpoint = "Amazon S3"
	}
	at := fmt.Sprintf("bucket %s at %s: ", bucket, endpoint)
	switch code {
	case "NoSuchBucket":
		return at + "there is no such bucket: create it, or correct --s3-bucket, --s3-endpoint or --s3-region"
	case "InvalidBucketName":
		return at + "correct --s3-bucket"
	case "AccessDenied", "AllAccessDisabled", "AccountProblem", "Forbidden":
		return at + "the credentials may not do this: let them get, put, delete and list objects of the bucket, or use others"
	case "InvalidAccessKeyId", "InvalidToken", "SignatureDoesNotMatch", "InvalidSecurity", "MissingSecurityHeader", "AuthorizationQueryParametersError":
		return at + "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, profile or role), and --s3-endpoint and --s3-region, which they are for"
	case "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException":
		return at + "it is in another region: correct --s3-region or --s3-endpoint"
	case "RequestTimeTooSkewed":
		return at + "its clock and ours differ by minutes: correct ours"
	case "", "UnknownError", "NotFound", "BadRequest", "MethodNotAllowed": // made up by the SDK
		return at + "the answer is not one of S3: check --s3-endpoint and --s3-path-style"
	}
	return at + "see the store's documentation of this code"
}

// judge turns an error of the SDK into one of the store. ctx is the caller's:
// once it has ended, a failure without an answer is its error.
func (s *Store) judge(ctx context.Context, op, key string, err error) error {
	var api smithy.APIError
	var answer *smithyhttp.ResponseError
	status, code, message := 0, "", ""
	if errors.As(err, &answer) {
		status = answer.HTTPStatusCode()
	}
	// For an answer without a code (a proxy's) the SDK makes one up from the
	// status, such as "NotFound", which is not "NoSuchKey".
	if errors.As(err, &api) {
		code, message = api.ErrorCode(), api.ErrorMessage()
	}
	// A body that is cut or not XML is an error without a code, but with a status.
	answered := code != "" || status >= 300
	if !answered {
		return s.unanswered(ctx, op, key, err)
	}
	kind, known := codes[code]
	if !known {
		kind = byStatus(status)
	}
	if code == "ExpiredToken" || code == "TokenRefreshRequired" {
		if cache, ok := s.credentials.(*aws.CredentialsCache); ok {
			cache.Invalidate()
		}
	}
	switch {
	case errors.Is(kind, objectstore.ErrNotFound), errors.Is(kind, objectstore.ErrExists):
		if op == "PutIfMatch" {
			return objectstore.Fail(op, key, objectstore.ErrMismatch, "")
		}
		return objectstore.Fail(op, key, kind, "")
	case errors.Is(kind, objectstore.ErrRange):
		return objectstore.Fail(op, key, kind, "")
	case errors.Is(kind, objectstore.ErrPermanent):
		return objectstore.Fail(op, key, kind, "HTTP status %d, code %q (%s): %s", status, code, message, s.advice(code))
	}
	hint := ""
	if code == "RequestTimeTooSkewed" {
		hint = ": " + s.advice(code)
	}
	return objectstore.Fail(op, key, kind, "HTTP status %d, code %q (%s)%s", status, code, message, hint)
}

// byStatus judges an answer whose code says nothing to us.
func byStatus(status int) error {
	switch {
	case status == http.StatusPreconditionFailed:
		return objectstore.ErrExists
	case status == http.StatusTooManyRequests, status == http.StatusServiceUnavailable:
		return objectstore.ErrThrottled
	case status == http.StatusRequestTimeout, status == http.StatusConflict, status == http.StatusTemporaryRedirect,
		status >= 500 && status != http.StatusNotImplemented, status < 300:
		return objectstore.ErrUnavailable
	}
	// 404 too: it does not say that the object is what was not found.
	return objectstore.ErrPermanent
}

// unanswered judges a failure of the transport. Causes are told, not wrapped:
// those of an attempt's own deadline would look like the caller's.
func (s *Store) unanswered(ctx context.Context, op, key string, err error) error {
	if ended := objectstore.Expired(ctx, op, key); ended != nil {
		return ended
	}
	var certificate *tls.CertificateVerificationError
	if errors.As(err, &certificate) {
		return objectstore.Fail(op, key, objectstore.ErrPermanent, "%s: check --s3-endpoint and the trusted certificates (AWS_CA_BUNDLE)", certificate)
	}
	return objectstore.Fail(op, key, objectstore.ErrUnavailable, "%v", err)
}

// passing: a repeat may succeed.
func passing(err error) bool {
	return errors.Is(err, objectstore.ErrUnavailable) || errors.Is(err, objectstore.ErrThrottled)
}
