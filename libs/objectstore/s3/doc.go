// Package s3 is an object store on Amazon S3, S3 Express and servers that speak
// their protocol, by aws-sdk-go-v2.
//
// Conditional writes are If-None-Match: * and If-Match; a store that ignores
// them is found by objectstore/probe, which every process runs first. Protocol:
// the S3 API reference, PutObject, GetObject, DeleteObjects, ListObjectsV2 and
// "Error responses".
//
// # Attempts
//
// The SDK's retries are off. A put is one attempt: its caller knows what it sent
// and recognises its own object when a repeat meets ErrExists. Reads, deletes and
// lists, which may be repeated blindly, are tried up to four times with jittered
// pauses while the store is unavailable or throttles.
//
// An attempt ends when the store is silent for too long (Config.Silence, plus
// time for the bytes of a put), so a store that accepts connections and never
// answers costs an error and no hang. That is ErrUnavailable, not the caller's
// DeadlineExceeded.
//
// A read whose answer does not begin within the recent 95th percentile (at least
// 50 ms) is asked a second time, once; the first answer wins, the other request
// is canceled. At most about one read in ten is hedged, so that a store that is
// slow for everybody is not asked everything twice.
//
// A body that ends early is ErrUnavailable, never a short success.
//
// # Errors
//
// Answers are judged by S3's error code, and by HTTP status only if there is no
// known code: RequestTimeout comes with status 400, and a 404 of a proxy is not
// the absence of an object.
//
// # Limits
//
// Buckets of S3 Express list in no order and from no given key: List is of use
// on standard buckets only.
package s3
