// Command embed is a program of another module that dumps and restores jobs with GPU state:
// embed dump PID DIR, embed restore DIR, embed suspend PID. The watcher is the installed cucriu-hook.
package main

import (
	"context"
	"cucriu/hooks"
	"cucriu/hooks/checkpoint"
	"cucriu/hooks/config"
	"log"
	"log/slog"
	"os"
	"strconv"

	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"
)

func main() {
	if err := run(context.Background(), os.Args[1], os.Args[2:]); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, verb string, args []string) error {
	cfg, err := config.Load(os.Getenv)
	if err != nil {
		return err
	}
	hook, err := hooks.New(cfg, slog.Default())
	if err != nil {
		return err
	}
	options := checkpoint.Options{Path: os.Getenv("CUCRIU_CRIU"), RPC: new(rpc.CriuOpts)}
	if verb == "restore" {
		_, err = checkpoint.Restore(ctx, hook, args[0], options)
		return err
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	if verb == "suspend" {
		_, err = checkpoint.Suspend(ctx, hook, []int{pid})
		return err
	}
	options.RPC.Pid = proto.Int32(int32(pid))
	_, err = checkpoint.Dump(ctx, hook, args[1], options)
	return err
}
