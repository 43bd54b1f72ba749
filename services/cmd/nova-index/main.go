// Nova-index serves the metastore to the other services.
package main

import (
	"context"
	"time"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/node"
)

func main() {
	s := node.Single{Service: discovery.Index}
	var meta node.Metastore
	var objects node.Objects
	var export index.ExportConfig
	config.Program{
		Name:  "nova-index",
		About: "The index: the metastore, every record schema in it and the rules of its changes.",
		Flags: func(f *config.Flags) {
			s.Flags(f, 7786, 7886)
			meta.Flags(f)
			objects.Flags(f)
			f.Duration(&export.Interval, "export-interval", time.Hour, "how often the metadata are exported to the bucket, which a restore needs; nothing is deleted before an export no longer needs it; 0: never")
		},
		Check: func() error {
			if objects.S3.Bucket == "" {
				export.Interval = 0
				return node.CheckAll(&s, &meta)
			}
			return node.CheckAll(&s, &meta, &objects, export)
		},
		Run: func(ctx context.Context) error {
			return s.Run(ctx, func(ctx context.Context, p *node.Process, _ string) (node.Part, error) {
				store, err := p.OpenMetastore(&meta, nil)
				if err != nil {
					return nil, err
				}
				if err := index.CheckRestored(ctx, store); err != nil {
					return nil, err
				}
				svc, err := index.New(index.Config{}, index.Deps{Store: store, Log: p.Log, Meter: p.ServiceMeter(s.Service)})
				if err != nil {
					return nil, err
				}
				if export.Interval == 0 {
					p.Log.WarnContext(ctx, "the metadata are not exported: without exports in the bucket a lost metastore cannot be restored (--export-interval, --s3-bucket)")
					return index.NewExporting(svc, export, nil)
				}
				bucket, err := p.OpenObjects(ctx, &objects, nil)
				if err != nil {
					return nil, err
				}
				if err := index.CheckBucket(ctx, store, bucket, objects.Name()); err != nil {
					return nil, err
				}
				return index.NewExporting(svc, export, bucket)
			})
		},
	}.Main()
}
