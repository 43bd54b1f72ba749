// Novad is Nova in one process.
package main

import (
	"context"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/services/novad"
)

func main() {
	var cfg novad.Config
	config.Program{
		Name:  "novad",
		About: "All of Nova in one process: a durable stream store on one directory, in memory, or on Oxia and S3.",
		Flags: cfg.Flags,
		Check: cfg.Check,
		Run:   func(ctx context.Context) error { return novad.Run(ctx, cfg) },
		Commands: []config.Command{{
			Name: "restore", About: "rebuild a lost metastore from the buckets, offline",
			Run: func(ctx context.Context) error { return novad.Restore(ctx, cfg) },
		}},
	}.Main()
}
