// Command gocriu shows how a program that drives criu with go-criu's client can include GPU
// state: gocriu dump PID DIR, gocriu restore DIR.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strconv"

	criu "github.com/checkpoint-restore/go-criu/v7"
	"github.com/checkpoint-restore/go-criu/v7/rpc"
	"google.golang.org/protobuf/proto"

	"cucriu/hooks"
	"cucriu/hooks/config"
)

func main() {
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "gocriu:", err)
		os.Exit(1)
	}
}

func run(verb string, args []string) error {
	cfg, err := config.Load(os.Getenv)
	if err != nil {
		return err
	}
	hook, err := hooks.New(cfg, slog.Default())
	if err != nil {
		return err
	}
	images, err := os.Open(args[len(args)-1])
	if err != nil {
		return err
	}
	defer images.Close()
	opts := &rpc.CriuOpts{ImagesDirFd: proto.Int32(int32(images.Fd())), LogFile: proto.String(verb + ".log")}
	client := criu.MakeCriu()
	client.SetCriuPath(os.Getenv("CUCRIU_CRIU"))
	if verb == "restore" {
		return client.Restore(opts, hooks.NewNotify(context.Background(), hook, opts))
	}
	pid, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	opts.Pid = proto.Int32(int32(pid))
	return client.Dump(opts, hooks.NewNotify(context.Background(), hook, opts))
}
