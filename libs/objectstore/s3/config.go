package s3

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	awshttp "github.com/aws/aws-sdk-go-v2/aws/transport/http"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go/logging"

	"github.com/nova-stream/nova/libs/objectstore"
)

// Config says where the bucket is. Only Bucket must be given.
type Config struct {
	Bucket    string // --s3-bucket
	Endpoint  string // --s3-endpoint: URL of a server other than Amazon's
	Region    string // --s3-region; "": as the environment says, us-east-1 with an Endpoint
	PathStyle bool   // --s3-path-style: the bucket in the path instead of the host name
	// Prefix (--s3-prefix) is put before every key: whole segments and a slash,
	// at most MaxPrefixBytes. It does not count towards objectstore.MaxKeyBytes.
	Prefix string

	// Credentials are the SDK's usual chain if nil: environment, profile, web
	// identity, container, instance.
	Credentials aws.CredentialsProvider

	// ConnectTimeout is for TCP, and again for TLS. 0 means 3 s.
	ConnectTimeout time.Duration
	// Silence is how long the store may send nothing before an attempt is given
	// up: until its answer begins, and between two pieces of a body. 0 means
	// 10 s. A put gets a second more for each 256 KiB of its body.
	Silence time.Duration
	// RetryPause is the longest pause before the first repeat of a read, delete
	// or list; it doubles up to 2 s. 0 means 50 ms.
	RetryPause time.Duration
}

// MaxPrefixBytes is the longest Config.Prefix: S3 takes keys of 1024 bytes.
const MaxPrefixBytes = 1024 - objectstore.MaxKeyBytes

const (
	defaultConnectTimeout = 3 * time.Second
	defaultSilence        = 10 * time.Second
	defaultRetryPause     = 50 * time.Millisecond
	// maxIdleConns are kept per host: the lanes of a writer and the fan-out of a
	// reader should find their connection open. (The SDK keeps 10.)
	maxIdleConns = 256
)

// Validate returns what is wrong with c, naming the flag.
func (c Config) Validate() error {
	if c.Bucket == "" {
		return errors.New("--s3-bucket: no bucket is named")
	}
	if c.Endpoint != "" {
		u, err := url.Parse(c.Endpoint)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
			return fmt.Errorf("--s3-endpoint: %q is not a URL such as https://s3.example.com:9000", c.Endpoint)
		}
	}
	if c.Prefix != "" {
		if len(c.Prefix) > MaxPrefixBytes {
			return fmt.Errorf("--s3-prefix: at most %d bytes, this one has %d", MaxPrefixBytes, len(c.Prefix))
		}
		if !strings.HasSuffix(c.Prefix, "/") || objectstore.CheckKey("", strings.TrimSuffix(c.Prefix, "/")) != nil {
			return fmt.Errorf("--s3-prefix: %q is not segments of A-Z a-z 0-9 . _ - that each end in a slash", c.Prefix)
		}
	}
	return nil
}

// Open returns a store. It asks for credentials, so that a missing one is said at
// once, and sends nothing to the bucket: probe.Run does.
func Open(ctx context.Context, c Config) (*Store, error) {
	if err := c.Validate(); err != nil {
		return nil, fmt.Errorf("objectstore/s3: open: %w", err)
	}
	if c.ConnectTimeout == 0 {
		c.ConnectTimeout = defaultConnectTimeout
	}
	if c.Silence == 0 {
		c.Silence = defaultSilence
	}
	if c.RetryPause == 0 {
		c.RetryPause = defaultRetryPause
	}
	client := awshttp.NewBuildableClient().
		WithDialerOptions(func(d *net.Dialer) { d.Timeout = c.ConnectTimeout }).
		WithTransportOptions(func(t *http.Transport) {
			t.TLSHandshakeTimeout = c.ConnectTimeout
			t.MaxIdleConnsPerHost = maxIdleConns
			t.MaxIdleConns = maxIdleConns
		})
	options := []func(*config.LoadOptions) error{
		config.WithHTTPClient(client),
		config.WithRetryer(func() aws.Retryer { return aws.NopRetryer{} }),
		// Older servers know only the checksums that requests must have.
		config.WithRequestChecksumCalculation(aws.RequestChecksumCalculationWhenRequired),
		config.WithResponseChecksumValidation(aws.ResponseChecksumValidationWhenRequired),
		config.WithLogger(logging.Nop{}),
	}
	if c.Region != "" {
		options = append(options, config.WithRegion(c.Region))
	}
	if c.Credentials != nil {
		options = append(options, config.WithCredentialsProvider(c.Credentials))
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("objectstore/s3: open bucket %s: AWS configuration: %w", c.Bucket, err)
	}
	if loaded.Region == "" {
		if c.Endpoint == "" {
			return nil, fmt.Errorf("objectstore/s3: open bucket %s: no region: give --s3-region or AWS_REGION", c.Bucket)
		}
		loaded.Region = "us-east-1" // what other servers call theirs unless told
	}
	if _, err := loaded.Credentials.Retrieve(ctx); err != nil {
		return nil, fmt.Errorf("objectstore/s3: open bucket %s: no credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile, or a role): %w", c.Bucket, err)
	}
	// Frozen, the client keeps our limits (the service would set its own), and
	// its connections can be closed.
	frozen := loaded.HTTPClient
	if client, ok := frozen.(*awshttp.BuildableClient); ok {
		frozen = client.Freeze()
	}
	loaded.HTTPClient = frozen
	api := s3.NewFromConfig(loaded, func(o *s3.Options) {
		o.UsePathStyle = c.PathStyle
		if c.Endpoint != "" {
			o.BaseEndpoint = aws.String(c.Endpoint)
		}
		o.DisableLogOutputChecksumValidationSkipped = true
	})
	return &Store{config: c, api: api, http: frozen, credentials: loaded.Credentials, reads: latencies{budget: hedgeSaved}}, nil
}
