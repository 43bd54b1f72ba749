// novad runs a whole Nova constellation in one process.
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
		About: "novad runs a whole Nova constellation in one process: in memory (--dev) or in one directory (--dir).",
		Flags: cfg.Flags,
		Check: cfg.Complete,
		Run:   func(ctx context.Context) error { return novad.Run(ctx, cfg) },
	}.Main()
}
