// Nova-index serves the metastore to the other services.
package main

import (
	"context"

	"github.com/nova-stream/nova/libs/config"
	"github.com/nova-stream/nova/libs/discovery"
	"github.com/nova-stream/nova/services/index"
	"github.com/nova-stream/nova/services/node"
)

func main() {
	s := node.Single{Service: discovery.Index}
	var meta node.Metastore
	config.Program{
		Name:  "nova-index",
		About: "The index: the metastore, every record schema in it and the rules of its changes.",
		Flags: func(f *config.Flags) {
			s.Flags(f, 7786, 7886)
			meta.Flags(f)
		},
		Check: func() error { return node.CheckAll(&s, &meta) },
		Run: func(ctx context.Context) error {
			return s.Run(ctx, func(_ context.Context, p *node.Process, _ string) (node.Part, error) {
				store, err := p.OpenMetastore(&meta, nil)
				if err != nil {
					return nil, err
				}
				return index.New(index.Config{}, index.Deps{Store: store, Log: p.Log})
			})
		},
	}.Main()
}
