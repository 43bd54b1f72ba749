// Command oxia is a one-process Oxia server for tests and local use.
//
// It wraps the standalone server of the last module version that holds one,
// without the Kubernetes client that the stock program brings along, and serves
// it under the name that newer clients call.
//
// When it serves it prints one line to standard output, "serving HOST:PORT",
// with the real port, so that the caller may ask for port 0. Logs go to
// standard error. SIGINT and SIGTERM stop it; after a kill it starts again on
// the same folder with everything it acknowledged.
package main

import (
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"syscall"
	"time"

	"github.com/oxia-db/oxia/proto"
	"github.com/oxia-db/oxia/server"
)

// serviceName is what clients since v0.15 call. The messages did not change.
const serviceName = "io.oxia.proto.v1.OxiaClient"

func main() {
	var (
		addr        = flag.String("public-addr", "127.0.0.1:6648", "where clients connect; port 0 takes a free one")
		metrics     = flag.String("metrics-addr", "", "where /metrics is served; empty: nowhere")
		dir         = flag.String("dir", "", "folder for all data; empty: a temporary one, removed at the end")
		shards      = flag.Uint("shards", 1, "number of shards of the one namespace, default; fixed once the folder exists")
		sync        = flag.Bool("sync", true, "fsync the log before a write is acknowledged")
		cacheMB     = flag.Int64("cache-mib", 32, "block cache, MiB")
		logLevel    = flag.String("log-level", "warn", "debug, info, warn or error")
		showVersion = flag.Bool("version", false, "print the version and exit")
	)
	flag.Parse()
	if *showVersion {
		fmt.Println("oxia standalone", version())
		return
	}
	if err := run(*addr, *metrics, *dir, *logLevel, uint32(*shards), *sync, *cacheMB); err != nil {
		fmt.Fprintln(os.Stderr, "oxia:", err)
		os.Exit(1)
	}
}

func run(addr, metrics, dir, logLevel string, shards uint32, sync bool, cacheMB int64) (err error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(logLevel)); err != nil {
		return err
	}
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})))

	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return err
	}
	if dir == "" {
		if dir, err = os.MkdirTemp("", "oxia-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	}

	// Before NewStandalone, which registers the service by this description.
	proto.OxiaClient_ServiceDesc.ServiceName = serviceName
	orderWrites(&proto.OxiaClient_ServiceDesc)

	// Before the server starts, so that a signal during recovery stops it too.
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, syscall.SIGINT, syscall.SIGTERM)

	s, err := server.NewStandalone(server.StandaloneConfig{
		Config: server.Config{
			PublicServiceAddr:          addr,
			MetricsServiceAddr:         metrics,
			DataDir:                    filepath.Join(dir, "db"),
			WalDir:                     filepath.Join(dir, "wal"),
			WalRetentionTime:           time.Hour,
			WalSyncData:                sync,
			NotificationsRetentionTime: time.Hour,
			DbBlockCacheMB:             cacheMB,
		},
		NumShards:            shards,
		NotificationsEnabled: true,
	})
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	fmt.Println("serving " + net.JoinHostPort(host, strconv.Itoa(s.RpcPort())))

	<-stop
	return s.Close()
}

// version returns that of the Oxia module this was built from.
func version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == "github.com/oxia-db/oxia" {
				return module.Version
			}
		}
	}
	return "unknown"
}
