package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/metastore"
	"github.com/nova-stream/nova/libs/metastore/bbolt"
	memmeta "github.com/nova-stream/nova/libs/metastore/mem"
	meteredmeta "github.com/nova-stream/nova/libs/metastore/metered"
	"github.com/nova-stream/nova/libs/metastore/oxia"
	"github.com/nova-stream/nova/libs/objectstore"
	"github.com/nova-stream/nova/libs/objectstore/fs"
	memobjects "github.com/nova-stream/nova/libs/objectstore/mem"
	meteredobjects "github.com/nova-stream/nova/libs/objectstore/metered"
	"github.com/nova-stream/nova/libs/objectstore/probe"
	"github.com/nova-stream/nova/libs/objectstore/s3"
	"github.com/nova-stream/nova/libs/telemetry"
)

// Metastore says where the metadata is.
type Metastore struct {
	Memory bool   // for novad --dev
	Dir    string // one node, on disk
	Oxia   string // host:port[/namespace]
	Naming string // an Oxia of its own for names
}

// Flags declares the settings of Oxia.
func (m *Metastore) Flags(f *config.Flags) {
	f.String(&m.Oxia, "oxia", "", "the metastore, host:port[/namespace]")
	f.String(&m.Naming, "oxia-naming", "", "the metastore of names, host:port[/namespace]; empty: the same as --oxia")
}

// Check validates.
func (m *Metastore) Check() error {
	if m.Naming != "" && m.Naming != m.Oxia {
		return errors.New("--oxia-naming: a metastore of its own for names is not available in this version")
	}
	if m.Oxia == "" && m.Dir == "" && !m.Memory {
		return errors.New("--oxia must name the metastore")
	}
	return nil
}

// Open opens the metastore, metered.
func (m *Metastore) Open(t *telemetry.Telemetry) (metastore.Store, error) {
	var store metastore.Store
	var err error
	switch {
	case m.Memory:
		store = memmeta.New()
	case m.Oxia != "":
		store, err = oxia.Open(oxia.Config{Address: m.Oxia, Log: t.Log})
	default:
		store, err = bbolt.Open(bbolt.Config{Dir: filepath.Join(m.Dir, "meta"), Log: t.Log})
	}
	if err != nil {
		return nil, err
	}
	metered, err := meteredmeta.New(store, t.Tracer, t.Meter)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("metastore metrics: %w", err), store.Close())
	}
	return metered, nil
}

// Objects says where the objects are.
type Objects struct {
	Memory  bool   // for novad --dev
	Dir     string // one node, on disk
	S3      s3.Config
	Express string // zone buckets
}

// Flags declares the settings of S3.
func (o *Objects) Flags(f *config.Flags) {
	f.String(&o.S3.Bucket, "s3-bucket", "", "bucket of the standard profile; credentials come from the usual chain of the AWS SDK")
	f.String(&o.S3.Endpoint, "s3-endpoint", "", "URL of an S3 server that is not Amazon's")
	f.String(&o.S3.Region, "s3-region", "", "region of the bucket; empty: as AWS_REGION says")
	f.Bool(&o.S3.PathStyle, "s3-path-style", false, "put the bucket into the path of requests instead of the host name")
	f.String(&o.S3.Prefix, "s3-prefix", "", "put before every key: path segments that each end in a slash")
	f.String(&o.Express, "s3-express-buckets", "", "buckets of the express profile: zone=bucket[@endpoint],..., an odd number")
}

// Check validates.
func (o *Objects) Check() error {
	if o.Express != "" {
		return errors.New("--s3-express-buckets: the express profile is not available in this version")
	}
	if o.Memory || o.Dir != "" && o.S3.Bucket == "" {
		return nil
	}
	return o.S3.Validate()
}

// Open opens the object store, metered.
func (o *Objects) Open(ctx context.Context, t *telemetry.Telemetry) (objectstore.Store, error) {
	var store objectstore.Store
	var err error
	switch {
	case o.Memory:
		store = memobjects.New()
	case o.S3.Bucket != "":
		store, err = s3.Open(ctx, o.S3)
	default:
		store, err = fs.Open(filepath.Join(o.Dir, "objects"))
	}
	if err != nil {
		return nil, err
	}
	metered, err := meteredobjects.New(store, t.Tracer, t.Meter)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("object store metrics: %w", err), store.Close())
	}
	return metered, nil
}

// Probe refuses a store that does not keep its promises, see objectstore/probe.
func Probe(ctx context.Context, store objectstore.Store) error {
	if err := probe.Run(ctx, store); err != nil {
		return fmt.Errorf("the object store cannot be used: %w", err)
	}
	return nil
}
