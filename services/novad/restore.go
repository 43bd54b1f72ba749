package novad

import (
	"context"
	"errors"
	"fmt"

	"github.com/nova-stream/nova/libs/discovery/local"
	"github.com/nova-stream/nova/libs/export"
	"github.com/nova-stream/nova/libs/rpc"
	"github.com/nova-stream/nova/services/node"
	"github.com/nova-stream/nova/services/restore"
)

const noExport = "names, settings and what was settled are not known without one (is this the right bucket, prefix or directory?)"

// Restore rebuilds a lost metastore from the bucket, while no program of the
// constellation runs. Of a directory that is proven by its lock.
func Restore(ctx context.Context, cfg Config) (err error) {
	cfg.withDefaults()
	if cfg.Dev {
		return errors.New("restore: --dev keeps everything in memory, nothing of which outlives a program")
	}
	t, err := node.OpenTelemetry(ctx, "novad restore", &cfg.Settings)
	if err != nil {
		return err
	}
	p, err := node.Open(t, &cfg.Settings, local.New(), rpc.NewInproc(rpc.Options{Log: t.Log}))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	if cfg.Metastore.Dir != "" {
		lock, err := node.LockDir(cfg.Metastore.Dir)
		if err != nil {
			return err
		}
		p.OnClose(lock.Close)
	}
	objects, err := p.OpenObjects(ctx, &cfg.Objects, cfg.WrapObjects)
	if err != nil {
		return err
	}
	// Before the metastore is marked: a mistyped directory or prefix stays unmarked.
	if found, err := objects.List(ctx, export.Prefix, "", 1); err != nil {
		return fmt.Errorf("look for exports in %s: %w", cfg.Objects.Name(), err)
	} else if len(found) == 0 {
		return fmt.Errorf("%w in %s: %s", restore.ErrNoExport, cfg.Objects.Name(), noExport)
	}
	meta, err := p.OpenMetastore(&cfg.Metastore, cfg.WrapMetastore)
	if err != nil {
		return err
	}
	report, err := restore.Run(ctx, restore.Deps{Objects: objects, Metastore: meta, Log: p.Log})
	switch {
	case errors.Is(err, restore.ErrInUse):
		return fmt.Errorf("%w: a restore is for one that is lost; nothing was changed", err)
	case errors.Is(err, restore.ErrNoExport):
		return fmt.Errorf("%w: %s", err, noExport)
	case err != nil:
		return fmt.Errorf("%w; run it again: it goes on from any point", err)
	}
	p.Log.InfoContext(ctx, "restored", "storage", cfg.storage(), "export", report.Export, "number", report.Number, "as_of", report.BegunAt,
		"streams", report.Streams, "chains", report.Chains, "lost_and_found", report.Found, "deleted", report.Deleted, "remnants", report.Remnants,
		"settled_objects", report.Settled, "unsettled_directories", report.Unsettled, "unneeded", report.Unneeded, "damage", report.Damage)
	if report.Damage > 0 {
		return fmt.Errorf("restored, with damage in %d places: each is logged above", report.Damage)
	}
	return nil
}
