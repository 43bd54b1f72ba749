// nova is the command-line client of a Nova constellation.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/nova-stream/nova/services/cli"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	// A second signal ends the program at once.
	context.AfterFunc(ctx, stop)
	// A reader that has enough, such as head, is seen when writing to it.
	signal.Ignore(syscall.SIGPIPE)
	terminal := false
	if info, err := os.Stderr.Stat(); err == nil {
		terminal = info.Mode()&os.ModeCharDevice != 0
	}
	os.Exit(cli.Execute(ctx, os.Args[1:], cli.Streams{
		In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Environ: os.Environ(), Terminal: terminal,
	}))
}
