package node

import (
	"context"
	"errors"
	"fmt"
	iofs "io/fs"
	"log/slog"
	"os"
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

func (m *Metastore) open(log *slog.Logger) (metastore.Store, error) {
	switch {
	case m.Memory:
		return memmeta.New(), nil
	case m.Oxia != "":
		return opened[metastore.Store](oxia.Open(oxia.Config{Address: m.Oxia, Log: log}))
	}
	return opened[metastore.Store](bbolt.Open(bbolt.Config{Dir: filepath.Join(m.Dir, "metadata"), Log: log}))
}

// metadataFile is what a directory's metadata lie in.
func (m *Metastore) metadataFile() string { return filepath.Join(m.Dir, "metadata", bbolt.FileName) }

// CheckFresh refuses a directory that holds records whose metadata are gone: a
// new, empty metastore over them would hide them and write beside them.
func (m *Metastore) CheckFresh(ctx context.Context, objects objectstore.Store) error {
	if m.Dir == "" || m.Memory {
		return nil
	}
	if _, err := os.Stat(m.metadataFile()); !errors.Is(err, iofs.ErrNotExist) {
		return nil // there, or told when it is opened
	}
	found, err := objects.List(ctx, "chain/", "", 1)
	if err != nil {
		return fmt.Errorf("look for records in --dir %s: %w", m.Dir, err)
	}
	if len(found) == 0 {
		return nil
	}
	return fmt.Errorf("--dir %s holds records but no metadata: put %s back from a copy; "+
		"or run novad restore with the same flags; it will not start without, since that would begin anew and hide the records",
		m.Dir, m.metadataFile())
}

// opened keeps a failed open from becoming an interface that is not nil.
func opened[S any, T any](store T, err error) (S, error) {
	var s S
	if err == nil {
		s = any(store).(S)
	}
	return s, err
}

// OpenMetastore opens the metastore, metered; Close closes it. wrap, if not
// nil, puts something between.
func (p *Process) OpenMetastore(m *Metastore, wrap func(metastore.Store) metastore.Store) (metastore.Store, error) {
	store, err := m.open(p.Log)
	if err != nil && m.Oxia != "" {
		return nil, fmt.Errorf("--oxia %s: %w", m.Oxia, err)
	}
	if err != nil {
		return nil, err
	}
	if wrap != nil {
		store = wrap(store)
	}
	p.OnClose(store.Close)
	metered, err := meteredmeta.New(store, p.Telemetry.Tracer, p.Telemetry.Meter)
	if err != nil {
		return nil, fmt.Errorf("metastore metrics: %w", err)
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

// Name is the store as the flags name it.
func (o *Objects) Name() string {
	switch {
	case o.S3.Bucket != "":
		name := "the object store --s3-bucket " + o.S3.Bucket
		if o.S3.Endpoint != "" {
			name += " --s3-endpoint " + o.S3.Endpoint
		}
		if o.S3.Prefix != "" {
			name += " --s3-prefix " + o.S3.Prefix
		}
		return name
	case o.Dir != "":
		return "the object store in --dir " + o.Dir
	}
	return "the object store in memory"
}

func (o *Objects) open(ctx context.Context) (objectstore.Store, error) {
	switch {
	case o.Memory:
		return memobjects.New(), nil
	case o.S3.Bucket != "":
		return opened[objectstore.Store](s3.Open(ctx, o.S3))
	}
	return opened[objectstore.Store](fs.Open(filepath.Join(o.Dir, "objects")))
}

// OpenObjects opens the object store, metered, and refuses one that does not
// keep its promises (objectstore/probe). Close closes it. wrap, if not nil, puts
// something between.
func (p *Process) OpenObjects(ctx context.Context, o *Objects, wrap func(objectstore.Store) objectstore.Store) (objectstore.Store, error) {
	store, err := o.open(ctx)
	if err != nil {
		return nil, err
	}
	if wrap != nil {
		store = wrap(store)
	}
	p.OnClose(store.Close)
	if err := probe.Run(ctx, store); err != nil {
		return nil, fmt.Errorf("%s cannot be used: %w", o.Name(), err)
	}
	metered, err := meteredobjects.New(store, p.Telemetry.Tracer, p.Telemetry.Meter)
	if err != nil {
		return nil, fmt.Errorf("object store metrics: %w", err)
	}
	return metered, nil
}
